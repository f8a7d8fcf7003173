"""Small bodies that are not yet on disk, and purges in every state of the disk tier."""

import asyncio
import contextlib
import errno
import hashlib
import itertools
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from storage_edge.client.handlers import STORE
from storage_edge.rules.freshness import Policy, Times
from storage_edge.storage import disk
from storage_edge.storage import index as index_module
from storage_edge.storage.bodies import BodyGoneError
from storage_edge.storage.purges import Purge
from storage_edge.storage.store import Store
from storage_edge.storage.stored_responses import StoredResponse
from tests.storage_edge.conftest import RAW, Clock, Edge, Origin, StartEdge

TARGET = "http://origin" + RAW
MEMORY_OBJECT = 2 * 1024 * 1024


@attrs.frozen
class Stores:
    """Opens stores on one data directory."""

    directory: Path
    open: list[Store] = attrs.field(factory=list)

    def __call__(self, memory_bytes: int = 64 * 1024 * 1024) -> Store:
        store = Store(
            self.directory,
            lambda: 0.0,
            memory_bytes=memory_bytes,
            memory_object_bytes=MEMORY_OBJECT,
            disk_bytes=2**30,
        )
        self.open.append(store)
        return store

    async def close(self, store: Store) -> None:
        self.open.remove(store)
        await store.aclose()


@pytest.fixture
async def new_store(tmp_path: Path) -> AsyncIterator[Stores]:
    stores = Stores(tmp_path / "data")
    yield stores
    for store in list(stores.open):
        await stores.close(store)


async def save(
    store: Store, body: bytes = b"hello", target: str = TARGET, saved: disk.OnSaved | None = None
) -> StoredResponse:
    """Save a public response, as a fetch does."""
    spool = store.spool(target, len(body))
    stored = StoredResponse(
        target=target,
        status=200,
        reason="OK",
        headers=CIMultiDictProxy(CIMultiDict({"ETag": '"1"'})),
        times=Times(requested=0, received=0, date=0, age=0),
        policy=Policy(lifetime=1e9),
        selected=(),
        private=False,
        epoch=store.ledger.epoch,
        body=spool,
    )
    await spool.write(body)
    spool.finish()
    await store.save(stored, spool, saved)
    spool.release()
    return stored


async def body_of(stored: StoredResponse | None) -> bytes | None:
    if stored is None:
        return None
    reader = stored.body.open()
    try:
        return bytes(await reader.read(0, MEMORY_OBJECT))
    finally:
        reader.close()


async def test_a_body_comes_to_the_disk_by_itself(edge: Edge, origin: Origin) -> None:
    origin.answers(b"hello")
    await edge.get(RAW)
    store = edge.app[STORE]
    async with asyncio.timeout(20):
        while store.disk.size != len(b"hello"):
            await asyncio.sleep(0.01)


async def test_who_is_told_when_it_is_saved_gets_its_digest_and_file(new_store: Stores) -> None:
    told: list[tuple[StoredResponse, str, Path]] = []
    store = new_store()
    stored = await save(store, saved=lambda *saved: told.append(saved))
    await store.unsaved.flush()
    ((response, digest, file),) = told
    assert (response, digest) == (stored, hashlib.sha256(b"hello").hexdigest())
    assert file.read_bytes() == b"hello"


async def test_stopping_saves_what_waits(new_store: Stores) -> None:
    store = new_store()
    await save(store)
    await new_store.close(store)
    assert await body_of(await new_store().find(TARGET, {})) == b"hello"


async def test_an_edge_that_stops_at_once_keeps_what_it_has_fetched(
    start_edge: StartEdge, origin: Origin
) -> None:
    edge = await start_edge()
    origin.answers(b"hello")
    await edge.get(RAW)
    await edge.app.shutdown()
    await edge.app.cleanup()
    again = await start_edge()
    assert "; hit" in (await again.get(RAW)).cache_status
    assert len(origin.requests) == 1


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("names", [{"urls": frozenset({TARGET})}, {"prefixes": ("http://origin/group/",)}])
async def test_a_purge_meanwhile_wins(new_store: Stores, names: dict[str, object], soft: bool) -> None:
    store, other = new_store(), new_store()
    await save(store)
    assert await store.purge(Purge(soft=soft, **names)) == 1  # type: ignore[arg-type]
    stored = await store.find(TARGET, {})
    assert (stored is not None and stored.stale) == soft
    await store.unsaved.flush()
    assert await other.find(TARGET, {}) is None
    assert store.disk.responses == 0


async def test_a_purge_of_another_process_meanwhile_wins(new_store: Stores) -> None:
    store, other = new_store(), new_store()
    await save(store)
    await other.purge(Purge(urls=frozenset({TARGET})))
    await store.unsaved.flush()
    assert await store.find(TARGET, {}) is None
    assert await new_store().find(TARGET, {}) is None


async def test_what_has_left_memory_is_still_found(new_store: Stores) -> None:
    store = new_store(memory_bytes=0)
    await save(store)
    assert await body_of(await store.find(TARGET, {})) == b"hello"


async def test_the_newest_is_what_remains(new_store: Stores) -> None:
    store = new_store()
    for body in (b"1", b"2", b"3" * (MEMORY_OBJECT + 1), b"4"):
        await save(store, body)
        if len(body) > 1:
            found = await body_of(await store.find(TARGET, {}))
            assert found is not None
            assert set(found) == set(body)
    await new_store.close(store)
    assert await body_of(await new_store().find(TARGET, {})) == b"4"


async def test_what_became_private_meanwhile_is_private_on_disk(new_store: Stores) -> None:
    store = new_store()
    stored = await save(store)
    await store.update(stored, attrs.evolve(stored, private=True))
    found = await new_store().find(TARGET, {})
    assert found is None or found.private
    await new_store.close(store)
    found = await new_store().find(TARGET, {})
    assert found is not None
    assert found.private


async def test_what_is_removed_meanwhile_does_not_come_back(new_store: Stores) -> None:
    store = new_store()
    await store.remove(await save(store))
    await store.unsaved.flush()
    assert await store.find(TARGET, {}) is None
    assert await new_store().find(TARGET, {}) is None


async def test_what_waits_is_bounded(new_store: Stores) -> None:
    store = new_store()
    piece = bytes(MEMORY_OBJECT)
    for number in range(2 * disk.MAX_UNSAVED_BYTES // MEMORY_OBJECT):
        await save(store, piece, f"{TARGET}{number}")
        assert not store.unsaved.is_full
    assert store.disk.responses > disk.MAX_UNSAVED_BYTES // MEMORY_OBJECT


async def test_what_cannot_be_saved_stays_in_memory(new_store: Stores) -> None:
    store = new_store()
    store.disk.budget = 1
    await save(store)
    await store.unsaved.flush()
    assert await body_of(await store.find(TARGET, {})) == b"hello"
    assert store.disk.responses == 0


async def test_what_waits_together_is_one_transaction(new_store: Stores) -> None:
    store = new_store()
    begun: list[str] = []
    await save(store, b"first")
    await store.unsaved.flush()
    store.disk.ask(lambda index: index.set_trace_callback(begun.append))
    for number in range(disk.BATCH):
        await save(store, b"%d" % number, f"{TARGET}{number}")
    await store.unsaved.flush()
    assert sum(statement.startswith("BEGIN") for statement in begun) == 1
    assert store.disk.responses == disk.BATCH + 1


async def test_large_bodies_wait_for_each_other(new_store: Stores) -> None:
    """Other processes are not kept from the index for long."""
    store = new_store()
    begun: list[str] = []
    store.disk.ask(lambda index: index.set_trace_callback(begun.append))
    for number in range(4):
        await save(store, bytes([number]) * MEMORY_OBJECT, f"{TARGET}{number}")
    await store.unsaved.flush()
    assert sum(statement.startswith("BEGIN") for statement in begun) == 2


async def test_one_that_cannot_be_saved_takes_no_others_with_it(
    new_store: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it remains, and earlier ones in the same transaction are saved all the same."""
    store = new_store()
    for name in ("a", "bad", "c"):
        await save(store, name.encode(), TARGET + name)
    move_to = disk.Unsaved.move_to

    def failing(self: disk.Unsaved, path: Path, directory: Path) -> None:
        if self.body.data == b"bad":
            raise OSError(errno.EIO, "broken")
        move_to(self, path, directory)

    monkeypatch.setattr(disk.Unsaved, "move_to", failing)
    await store.unsaved.flush()
    other = new_store()
    assert await body_of(await other.find(TARGET + "a", {})) == b"a"
    assert await other.find(TARGET + "bad", {}) is None
    digest = hashlib.sha256(b"bad").hexdigest()
    assert not store.disk.files.path(digest).exists()
    assert await body_of(await store.find(TARGET + "bad", {})) == b"bad"
    assert store.disk.failures == 1


async def test_a_purge_of_one_that_waits_takes_no_others_with_it(new_store: Stores) -> None:
    store = new_store()
    for name in ("a", "purged", "c"):
        await save(store, name.encode(), TARGET + name)
    await new_store().purge(Purge(urls=frozenset({TARGET + "purged"})))
    await store.unsaved.flush()
    other = new_store()
    found = [await body_of(await other.find(TARGET + name, {})) for name in ("a", "purged", "c")]
    assert found == [b"a", None, b"c"]


async def test_where_there_is_no_room_for_all_others_go(new_store: Stores) -> None:
    store = new_store()
    store.disk.budget = 100
    for number in range(30):
        await save(store, b"%06d" % number, f"{TARGET}{number}")
    await store.unsaved.flush()
    other = new_store()
    assert store.disk.size <= 100
    assert await body_of(await other.find(f"{TARGET}29", {})) == b"000029"
    assert store.disk.responses == 100 // 6


@pytest.mark.parametrize("same_target", [True, False])
async def test_the_same_bytes_twice_in_one_go(new_store: Stores, same_target: bool) -> None:
    store = new_store()
    for number, body in enumerate((b"one", b"two", b"one")):
        await save(store, body, TARGET if same_target else f"{TARGET}{number}")
    await store.unsaved.flush()
    other = new_store()
    assert await body_of(await other.find(TARGET if same_target else f"{TARGET}2", {})) == b"one"
    assert store.disk.size == len(b"one") + (0 if same_target else len(b"two"))


TARGETS = [f"/group/app/-/raw/main/{letter}" for letter in "abc"]
KEYS = {target: f"project-{number}" for number, target in enumerate(TARGETS)}
#: Bodies that stay in memory, and those that do not.
SIZES = [10, 3000]
PROCESSES = [0, 1]
#: A folder in which fsync costs nothing.
MEMORY = Path("/dev/shm")

STEP = st.one_of(
    st.tuples(st.just("store"), st.sampled_from(TARGETS), st.sampled_from(PROCESSES), st.sampled_from(SIZES)),
    st.tuples(st.just("purge"), st.sampled_from(TARGETS), st.sampled_from(PROCESSES), st.sampled_from(["key", "url"])),
    st.tuples(
        st.sampled_from(["purge while storing", "restart", "kill", "full", "room", "tend", "lose"]),
        st.sampled_from(TARGETS),
        st.sampled_from(PROCESSES),
        st.sampled_from(SIZES),
    ),
)  # fmt: skip


@attrs.define
class World:
    """Two processes with one directory. The index is the part of the disk that can be full: while `holder` has its
    write lock, nothing can be written there."""

    directory: Path
    stores: list[Store] = attrs.field(factory=list)
    holder: sqlite3.Connection | None = None
    #: Versions of each target that no acknowledged purge has removed.
    allowed: dict[str, set[int]] = attrs.field(factory=lambda: {target: set() for target in TARGETS})
    numbers: itertools.count = attrs.field(factory=itertools.count)

    def start(self) -> Store:
        return Store(
            self.directory, Clock(), memory_bytes=100_000, memory_object_bytes=1000, disk_bytes=100_000
        )

    async def begin(self, target: str, process: int, size: int) -> tuple[Store, StoredResponse, int]:
        """Begin a response at this moment."""
        store, number = self.stores[process], next(self.numbers)
        store.catch_up()
        spool = store.spool(target, size)
        headers = CIMultiDict({"ETag": f'"{number}"', "Surrogate-Key": KEYS[target]})
        stored = StoredResponse(
            target=target,
            status=200,
            reason="OK",
            headers=CIMultiDictProxy(headers),
            times=Times(requested=0, received=0, date=0, age=0),
            policy=Policy(lifetime=1e9),
            selected=(),
            private=False,
            epoch=store.ledger.epoch,
            body=spool,
        )
        await spool.write(str(number).encode().ljust(size))
        spool.finish()
        return store, stored, number

    async def end(self, store: Store, stored: StoredResponse) -> None:
        await store.save(stored, stored.body)  # type: ignore[arg-type]
        stored.body.release()  # type: ignore[attr-defined]

    async def purge(self, target: str, process: int, how: str) -> None:
        names = {"urls": frozenset({target})} if how == "url" else {"keys": frozenset({KEYS[target]})}
        await self.stores[process].purge(Purge(**names))
        self.allowed[target].clear()

    async def step(self, what: str, target: str, process: int, detail: object) -> None:
        match what:
            case "store":
                store, stored, number = await self.begin(target, process, int(str(detail)))
                self.allowed[target].add(number)
                await self.end(store, stored)
            case "purge":
                await self.purge(target, process, str(detail))
            case "purge while storing":
                store, stored, _ = await self.begin(target, 1 - process, int(str(detail)))
                await self.purge(target, process, "key")
                await self.end(store, stored)
            case "restart":
                await self.stores[process].aclose()
                self.stores[process] = self.start()
            case "kill":  # the other one lives on, and this one has not closed anything
                killed, self.stores[process] = self.stores[process], self.start()
                await killed.aclose()
            case "full" if self.holder is None:
                self.holder = self.hold()
            case "room" if self.holder is not None:
                self.holder.close()
                self.holder = None
            case "tend":
                await self.stores[process].tend()
            case "lose":
                self.lose()

    def lose(self) -> None:
        for root in self.directory.glob("v*"):
            shutil.rmtree(root)

    def hold(self) -> sqlite3.Connection | None:
        index = sqlite3.connect(
            next(self.directory.glob("v*/index.sqlite3"), ":memory:"), isolation_level=None
        )
        try:
            index.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            index.close()
            return None
        return index

    async def check(self) -> None:
        """Check that no process serves anything that has been purged."""
        for store in self.stores:
            for target in TARGETS:
                found = await store.find(target, {})
                if found is None:
                    continue
                with contextlib.suppress(BodyGoneError):  # counts as not stored
                    reader = found.body.open()
                    number = int(bytes(await reader.read(0, 4000)))
                    reader.close()
                    assert number in self.allowed[target], (target, number, self.allowed)

    async def close(self) -> None:
        if self.holder is not None:
            self.holder.close()
        for store in self.stores:
            await store.aclose()


async def _carry_out(steps: list[tuple[str, str, int, object]]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        world = World(Path(directory))
        world.stores += [world.start(), world.start()]
        try:
            for what, target, process, detail in steps:
                await world.step(what, target, process, detail)
                await world.check()
        finally:
            await world.close()


@given(steps=st.lists(STEP, min_size=1, max_size=12))
@settings(max_examples=settings().max_examples // 2, suppress_health_check=list(HealthCheck))
async def test_nothing_that_was_purged_is_served(
    steps: list[tuple[str, str, int, object]], never_waiting: None
) -> None:
    await _carry_out(steps)


@pytest.fixture
def never_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "BUSY_SECONDS", 0.0)


async def test_a_purge_under_a_full_disk_survives_both_processes(never_waiting: None) -> None:
    target = TARGETS[0]
    await _carry_out(
        [
            ("store", target, 0, 3000),
            ("full", target, 0, 0),
            ("purge", target, 1, "key"),
            ("restart", target, 0, 0),
            ("kill", target, 1, 0),
            ("room", target, 0, 0),
            ("tend", target, 0, 0),
            ("restart", target, 1, 0),
        ]
    )
