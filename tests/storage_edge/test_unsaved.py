"""Small bodies are on disk a moment after they have arrived; until then they are in memory alone."""

import asyncio
import errno
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from storage_edge.client.handlers import STORE
from storage_edge.rules.freshness import Policy, Times
from storage_edge.storage import disk
from storage_edge.storage.purges import Purge
from storage_edge.storage.store import Store
from storage_edge.storage.stored_responses import StoredResponse
from tests.storage_edge.conftest import RAW, Edge, Origin, StartEdge

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
    store: Store, body: bytes = b"hello", target: str = TARGET, saved: disk.Saved | None = None
) -> StoredResponse:
    """A public response, as a fetch stores it."""
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
    for number in range(2 * disk.MOST_BYTES // MEMORY_OBJECT):
        await save(store, piece, f"{TARGET}{number}")
        assert not store.unsaved.is_full
    assert store.disk.responses > disk.MOST_BYTES // MEMORY_OBJECT


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
    """Nothing of it remains, and what came before it in the same transaction is saved all the same."""
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
