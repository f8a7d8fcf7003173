"""The hunt for leaks: whatever happens in whatever order, nobody gets what the service would refuse him."""

import asyncio
import itertools

import attrs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.storage_edge.conftest import Answer, Clock, Edge, Origin, StartEdge
from tests.storage_edge.projects import Project

USERS = ["alice", "bob", "mallory", ""]
FIELDS: list[dict[str, str]] = [
    {},
    {"Range": "bytes=0-9"},
    {"Range": "bytes=0-3,8-9"},
    {"If_None_Match": '"v1"'},
    {"If_None_Match": "*"},
    {"Cache_Control": "no-cache"},
    {"Cache_Control": "max-stale=9999"},
    {"Cache_Control": "only-if-cached"},
]
REQUEST = st.tuples(st.sampled_from(USERS), st.sampled_from(["GET", "GET", "HEAD"]), st.sampled_from(FIELDS))
CHANGE = st.one_of(
    st.tuples(st.just("grant"), st.sampled_from(USERS[:3])),
    st.tuples(st.just("revoke"), st.sampled_from(USERS[:3])),
    st.tuples(
        st.sampled_from(["publish", "hide", "push", "purge", "restart", "wait", "nothing"]), st.just("")
    ),
)
#: Requests sent together, and what changes while they are under way.
STEP = st.tuples(st.lists(REQUEST, min_size=1, max_size=4), CHANGE, st.booleans())

_numbers = itertools.count()


@attrs.define
class World:
    """The project, the edge in front of it, and what may be known of it."""

    start_edge: StartEdge
    edge: Edge
    project: Project
    clock: Clock
    target: str

    def readers(self) -> set[str]:
        return set(USERS) if self.project.public else set(self.project.readers)

    async def change(self, what: str, user: str) -> None:
        """A change as the service makes it: what takes access away or moves a ref is purged first."""
        match what:
            case "grant":
                self.project.readers.add(user)
            case "revoke":
                self.project.readers.discard(user)
            case "publish":
                self.project.public = True
            case "hide":
                self.project.public = False
                await self.edge.purge(prefixes=[self.target])
            case "push":
                self.project.version += 1
                self.project.body = _content(self.target, self.project.version, len(self.project.body))
                await self.edge.purge(prefixes=[self.target])
            case "purge":
                await self.edge.purge(prefixes=[self.target], soft=True)
            case "restart":
                self.edge = await self.start_edge()
            case "wait":
                self.clock.advance(90)

    async def ask(self, user: str, method: str, fields: dict[str, str]) -> Answer:
        return await self.edge.get(f"{self.target}?token={user}", method, **fields)


def _content(target: str, version: int, size: int) -> bytes:
    head = f"{target} version {version} ".encode()
    return head + b"s" * (size - len(head))


@given(st.lists(STEP, min_size=1, max_size=8), st.sampled_from([200, 300_000]), st.booleans())
@settings(max_examples=settings().max_examples // 2, suppress_health_check=list(HealthCheck))
async def test_nobody_gets_what_the_service_would_refuse(
    start_edge: StartEdge, origin: Origin, clock: Clock, steps: list, size: int, public: bool
) -> None:
    target = f"/group/secret-{next(_numbers)}/-/raw/main/plan.txt"
    project = Project(origin, readers={"alice", "bob"}, public=public, body=_content(target, 1, size))
    world = World(start_edge, await start_edge(), project, clock, target)
    for requests, (what, user), together in steps:
        readers, versions = world.readers(), {project.version}
        asked = [asyncio.create_task(world.ask(*request)) for request in requests]
        if together:
            await asyncio.sleep(0.001)
            await world.change(what, user)
            readers, versions = readers | world.readers(), versions | {project.version}
        for (asker, method, _), answer in zip(requests, await asyncio.gather(*asked), strict=True):
            _check(answer, asker in readers, method, versions, target)
        if not together:
            await world.change(what, user)


def _check(answer: Answer, may_read: bool, method: str, versions: set[int], target: str) -> None:
    if not may_read:
        assert answer.status in {404, 504}
        assert b"version" not in answer.body
        assert b"ss" not in answer.body
        assert "ETag" not in answer.headers
        return
    assert answer.status in {200, 206, 304, 404, 504}
    if answer.status == 200 and method == "GET":
        assert any(answer.body == _content(target, version, len(answer.body)) for version in versions)
