"""Private objects: stored once, and served to a user only after the origin has accepted that user's token."""

import asyncio
import itertools
from collections import Counter

import attrs
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.storage_edge.conftest import Answer, Clock, Edge, Origin, StartEdge
from tests.storage_edge.origins import Project
from tests.support.waiting import until

PLAN = "/group/secret/-/raw/main/plan.txt"


@pytest.fixture(params=["service", "gitlab"])
async def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def secret_edge(start_edge: StartEdge, flavour: str) -> Edge:
    return await start_edge(origin_flavour=flavour)


@pytest.fixture
def project(origin: Origin, flavour: str) -> Project:
    return Project(origin, readers={"alice", "bob"}, gitlab=flavour == "gitlab")


async def test_the_body_travels_once_for_all_who_may_read_it(secret_edge: Edge, project: Project) -> None:
    for user in ("alice", "bob", "alice"):
        assert (await secret_edge.get(f"{PLAN}?token={user}")).body == project.body
    assert project.sent == 1
    assert len(project.origin.requests) == 3


@pytest.mark.parametrize("query", ["", "?token=mallory", "?token="])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_stored_private_object_is_not_given_to_others(
    secret_edge: Edge, project: Project, query: str, method: str
) -> None:
    await secret_edge.get(f"{PLAN}?token=alice")
    for fields in (
        {},
        {"Range": "bytes=0-2"},
        {"If_None_Match": '"v1"'},
        {"Cache_Control": "only-if-cached"},
    ):
        answer = await secret_edge.get(PLAN + query, method, **fields)
        assert answer.status in {302, 404, 504}
        assert project.body[:3] not in answer.body
        assert "ETag" not in answer.headers


async def test_a_revoked_token_is_refused_at_the_next_request(secret_edge: Edge, project: Project) -> None:
    await secret_edge.get(f"{PLAN}?token=alice")
    project.readers.remove("alice")
    assert (await secret_edge.get(f"{PLAN}?token=alice")).status in {302, 404}
    assert (await secret_edge.get(f"{PLAN}?token=bob")).body == project.body


async def test_a_push_is_seen_at_the_next_request(secret_edge: Edge, project: Project) -> None:
    await secret_edge.get(f"{PLAN}?token=alice")
    project.body, project.version = b"another plan", 2
    assert (await secret_edge.get(f"{PLAN}?token=alice")).body == b"another plan"
    assert (await secret_edge.get(f"{PLAN}?token=bob")).body == b"another plan"
    assert project.sent == 2


async def test_waiting_together_is_no_way_around_access(
    secret_edge: Edge, project: Project, joined: Counter[str]
) -> None:
    users = ["alice", "mallory", "bob", "eve", "alice", ""] * 5
    _, gate = project.origin.held_back()
    clients = [asyncio.create_task(secret_edge.get(f"{PLAN}?token={user}")) for user in users]
    await until(lambda: joined.total() == len(users))
    gate.set()
    answers = await asyncio.gather(*clients)
    for user, answer in zip(users, answers, strict=True):
        if user in project.readers:
            assert (answer.status, answer.body) == (200, project.body)
        else:
            assert answer.status in {302, 404}


async def test_readers_who_wait_for_a_cold_object_share_its_bytes(
    secret_edge: Edge, project: Project, joined: Counter[str]
) -> None:
    project.body = b"p" * 700_000
    _, gate = project.origin.held_back()
    clients = [asyncio.create_task(secret_edge.get(f"{PLAN}?token=alice")) for _ in range(20)]
    await until(lambda: joined.total() == 20)
    gate.set()
    answers = await asyncio.gather(*clients)
    assert all(answer.body == project.body for answer in answers)
    assert project.sent == 1


async def test_a_private_object_is_never_served_stale(
    secret_edge: Edge, project: Project, origin: Origin
) -> None:
    await secret_edge.get(f"{PLAN}?token=alice")

    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=503)

    origin.handler = handler
    assert (await secret_edge.get(f"{PLAN}?token=alice")).status == 503


async def test_an_anonymous_404_is_not_given_to_a_user_with_access(
    secret_edge: Edge, project: Project
) -> None:
    assert (await secret_edge.get(PLAN)).status in {302, 404}
    assert (await secret_edge.get(f"{PLAN}?token=alice")).status == 200


async def test_a_project_made_public_is_shared_again(secret_edge: Edge, project: Project) -> None:
    await secret_edge.get(f"{PLAN}?token=alice")
    await secret_edge.settled()
    project.public = True
    assert (await secret_edge.get(PLAN)).body == project.body
    before = len(project.origin.requests)
    assert (await secret_edge.get(PLAN)).body == project.body
    assert len(project.origin.requests) == before


async def test_private_objects_survive_a_restart_and_are_still_validated(
    start_edge: StartEdge, origin: Origin
) -> None:
    project = Project(origin, readers={"alice"})
    first = await start_edge()
    await first.get(f"{PLAN}?token=alice")
    await first.settled()
    second = await start_edge()
    assert (await second.get(f"{PLAN}?token=alice")).body == project.body
    assert (await second.get(f"{PLAN}?token=mallory")).status == 404
    assert project.sent == 1


async def test_a_grace_is_for_one_token_and_ends_with_a_purge(start_edge: StartEdge, origin: Origin) -> None:
    project = Project(origin, readers={"alice"})
    edge = await start_edge(private_grace=30.0)
    for _ in range(3):
        assert (await edge.get(f"{PLAN}?token=alice")).status == 200
    assert len(origin.requests) == 2
    project.readers.clear()
    assert (await edge.get(f"{PLAN}?token=mallory")).status == 404
    await edge.purge(keys=["project-1"])
    assert (await edge.get(f"{PLAN}?token=alice")).status == 404


async def test_an_answer_from_before_a_purge_begins_no_grace(start_edge: StartEdge, origin: Origin) -> None:
    project = Project(origin, readers={"alice"})
    edge = await start_edge(private_grace=30.0)
    await edge.get(f"{PLAN}?token=alice")
    await edge.settled()
    begun, gate = origin.held_back()
    asked = asyncio.create_task(edge.get(f"{PLAN}?token=alice"))
    await begun.wait()
    project.readers.clear()
    await edge.purge(keys=["project-1"])
    gate.set()
    assert (await asked).status == 200
    assert (await edge.get(f"{PLAN}?token=alice")).status == 404


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_while_the_service_cannot_say_who_may_read_it_nobody_gets_a_private_object(
    start_edge: StartEdge, origin: Origin, method: str
) -> None:
    """This happens while its database is away: permissions for stale objects do not apply to private ones."""
    Project(origin, readers={"alice"})
    edge = await start_edge(stale_when_unreachable=3600.0)
    target = f"{PLAN}?token=alice"
    assert (await edge.get(target)).body == b"the plan"
    await edge.settled()
    origin.answers(b"away", status=503, etag=None, cache_control="no-store", Retry_After="10")
    for _ in range(2):
        answer = await edge.get(target, method)
        body = b"" if method == "HEAD" else b"away"
        assert (answer.status, answer.headers["Retry-After"], answer.body) == (503, "10", body)
        assert "ETag" not in answer.headers
    Project(origin, readers={"alice"})
    again = await edge.get(target)
    assert (again.body, "hit; fwd=request; fwd-status=304" in again.cache_status) == (b"the plan", True)


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
#: Requests sent together, and a change while they are under way.
STEP = st.tuples(st.lists(REQUEST, min_size=1, max_size=4), CHANGE, st.booleans())

_numbers = itertools.count()


@attrs.define
class World:
    """The project, the edge in front of it, and the content that readers may get."""

    start_edge: StartEdge
    edge: Edge
    project: Project
    clock: Clock
    target: str

    def readers(self) -> set[str]:
        return set(USERS) if self.project.public else set(self.project.readers)

    async def change(self, what: str, user: str) -> None:
        """Make a change as the service does: if it takes access away or moves a ref, the purge comes first."""
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
