"""Purges in whatever state the disk tier is in: what has been purged is not served by anybody afterwards."""

import contextlib
import itertools
import shutil
import sqlite3
import tempfile
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from storage_edge.rules.freshness import Policy, Times
from storage_edge.storage import index as index_module
from storage_edge.storage.bodies import BodyGoneError
from storage_edge.storage.purges import Purge
from storage_edge.storage.store import Store
from storage_edge.storage.stored_responses import StoredResponse
from tests.storage_edge.conftest import Clock

TARGETS = [f"/group/app/-/raw/main/{letter}" for letter in "abc"]
KEYS = {target: f"project-{number}" for number, target in enumerate(TARGETS)}
#: Bodies that stay in memory, and those that do not.
SIZES = [10, 3000]
PROCESSES = [0, 1]
#: Where fsync costs nothing.
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
    """Two processes on one directory. The index is the part of the disk that can be full: while `holder` has its write
    lock, nothing can be written there.
    """

    directory: Path
    stores: list[Store] = attrs.field(factory=list)
    holder: sqlite3.Connection | None = None
    #: Versions of each target of which no purge has been acknowledged.
    allowed: dict[str, set[int]] = attrs.field(factory=lambda: {target: set() for target in TARGETS})
    numbers: itertools.count = attrs.field(factory=itertools.count)

    def start(self) -> Store:
        return Store(
            self.directory, Clock(), memory_bytes=100_000, memory_object_bytes=1000, disk_bytes=100_000
        )

    async def begin(self, target: str, process: int, size: int) -> tuple[Store, StoredResponse, int]:
        """A response whose request begins now."""
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
        """Each process serves nothing that has been purged."""
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
