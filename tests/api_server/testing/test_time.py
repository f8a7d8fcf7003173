"""The clock is moved, and all work that has become due by then is done before the answer."""

import datetime
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs
import pytest

from api_server.state.database import Clock
from api_server.state.queue import enqueue
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.api_server.mirrors.service import new_mirror
from tests.api_server.status_checks.receiver import answer, running_receiver
from tests.api_server.testing.states import control, put_back
from tests.support.browser import COOKIE, new_session
from tests.support.ci import ci_project
from tests.support.forge import Forge, running_forge
from tests.support.invitations import invite_by_mail, page_of
from tests.support.merge_requests import new_project, open_merge_request
from tests.support.runner import a_runner


@attrs.define
class Work:
    """The moments at which tasks of the tests have run, by the service's clock."""

    clock: Clock
    moments: dict[str, list[datetime.datetime]] = attrs.field(factory=dict)

    def note(self, name: str) -> int:
        """Record a run of the task; return the number of its runs."""
        self.moments.setdefault(name, []).append(self.clock())
        return len(self.moments[name])


@pytest.fixture(scope="module")
async def clocked(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Forge, Work]]:
    """A server with tasks of the tests' own."""
    made: list[Work] = []

    def add_tasks(app: Any) -> None:
        work = Work(app[SERVICES].clock)
        made.append(work)

        async def nightly() -> None:
            work.note("nightly")

        async def failing() -> None:
            if work.note("failing") < 3:
                raise ValueError("not yet")

        async def later() -> None:
            work.note("later")

        app[SERVICES].queue.add_periodic("tests_nightly", "0 3 * * *", nightly)
        app[SERVICES].queue.add("tests_failing", failing, attempts=5)
        app[SERVICES].queue.add("tests_later", later)

    folder = tmp_path_factory.mktemp("clocked")
    url = new_database()
    async with running_forge(url, folder, add_tasks, testing=True, allow_local_requests=True) as forge:
        yield forge, made[0]


async def advance(forge: Forge, **by: float) -> datetime.datetime:
    """Move the clock by arguments of `timedelta`; all work that has become due is done."""
    moved = await control(forge, "POST", "clock", {"advance": datetime.timedelta(**by).total_seconds()})
    assert (moved.status, moved.body["left"]) == (200, []), moved
    return datetime.datetime.fromisoformat(moved.body["now"])


async def now(forge: Forge) -> datetime.datetime:
    return datetime.datetime.fromisoformat((await control(forge, "GET", "clock")).body["now"])


async def test_the_clock_goes_on_from_where_it_was_set_until_it_is_reset(clocked: tuple[Forge, Work]) -> None:
    forge, _ = clocked
    async with put_back(forge):
        before = await now(forge)
        later = before + datetime.timedelta(days=400)
        moved = await control(forge, "POST", "clock", {"now": later.isoformat()})
        assert moved.status == 200, moved
        assert later <= await now(forge) < later + datetime.timedelta(minutes=2)
        project = await forge.project()
        assert project["created_at"][:10] == (await now(forge)).isoformat()[:10]
        snapshot = (await control(forge, "POST", "snapshot", {})).body["id"]
        await control(forge, "POST", "reset")
        assert before <= await now(forge) < before + datetime.timedelta(minutes=5)
        await control(forge, "POST", "restore", {"id": snapshot})
        assert later <= await now(forge)


@pytest.mark.parametrize(
    "wanted",
    [
        {"advance": -1}, {"advance": "1"}, {"advance": True}, {"advance": 1e12}, {"now": "2001-01-01T00:00:00Z"},
        {"now": "soon"}, {"now": "2101-01-01T00:00:00"}, {"now": "9999-12-31T23:59:59Z"}, {}, [],
        {"advance": 1, "now": "2101-01-01T00:00:00Z"},
    ],
)  # fmt: skip
async def test_where_the_clock_cannot_go_is_said(clocked: tuple[Forge, Work], wanted: Any) -> None:
    forge, _ = clocked
    before = await now(forge)
    refused = await control(forge, "POST", "clock", wanted)
    assert (refused.status, list(refused.body)) == (400, ["message"])
    assert await now(forge) < before + datetime.timedelta(minutes=1)


async def test_a_token_expires(clocked: tuple[Forge, Work]) -> None:
    forge, _ = clocked
    async with put_back(forge):
        user = await forge.user()
        expires_at = ((await now(forge)) + datetime.timedelta(days=10)).date().isoformat()
        token = await forge.token(user.id, expires_at=expires_at)
        statuses = []
        for days in (0, 8, 8):
            await advance(forge, days=days)
            asked = await forge.anonymous.get("/user", headers={"PRIVATE-TOKEN": token})
            statuses.append(asked.status)
        assert statuses == [200, 200, 401]


async def test_periodic_work_is_done_once_however_far_the_clock_goes(clocked: tuple[Forge, Work]) -> None:
    forge, work = clocked
    async with put_back(forge):
        work.moments.clear()
        until = await advance(forge, days=30)
        assert len(work.moments["nightly"]) == 1
        assert abs(until - work.moments["nightly"][0]) < datetime.timedelta(minutes=1)


async def test_what_was_queued_for_later_and_what_is_tried_again(clocked: tuple[Forge, Work]) -> None:
    forge, work = clocked
    async with put_back(forge):
        work.moments.clear()
        await advance(forge, days=2)  # the queue uses the moved clock too
        async with forge.database.transaction() as transaction:
            at = transaction.now + datetime.timedelta(hours=5)
            await enqueue(transaction, "tests_later", at=at)
            await enqueue(transaction, "tests_failing")
        settled = await control(forge, "POST", "settle")
        assert (settled.status, settled.body) == (200, {"left": []})
        assert {name: len(moments) for name, moments in work.moments.items() if name != "nightly"} == {
            "failing": 1
        }
        for _ in range(3):
            await advance(forge, minutes=5)
        assert len(work.moments["failing"]) == 3
        assert "later" not in work.moments
        await advance(forge, hours=5)
        assert len(work.moments["later"]) == 1


async def test_a_delayed_job_becomes_pending(clocked: tuple[Forge, Work]) -> None:
    forge, _ = clocked
    async with put_back(forge):
        project = await ci_project(forge)
        job = await project.job("job: {script: 'true', when: delayed, start_in: 1 day}")
        url = f"{project.url}/jobs/{job['id']}"
        statuses = [(await forge.root.get(url)).body["status"]]
        for _ in range(2):
            await advance(forge, hours=13)
            statuses.append((await forge.root.get(url)).body["status"])
        assert statuses == ["scheduled", "scheduled", "pending"]


async def test_a_delivery_is_repeated(clocked: tuple[Forge, Work]) -> None:
    forge, _ = clocked
    async with put_back(forge), running_receiver() as receiver:
        receiver.answers = [answer(500), answer(204)]
        alice = await forge.user("alice")
        project = await new_project(forge, alice)
        check = {"name": "QA", "external_url": receiver.url}
        made = await alice.api.post(f"/projects/{project['id']}/external_status_checks", check)
        assert made.status == 201, made
        await open_merge_request(alice, project)
        await control(forge, "POST", "settle")
        assert len(receiver.received) == 1
        await advance(forge, hours=1)
        assert len(receiver.received) == 2


async def test_an_edge_that_is_not_there_is_told_of(new_forge: Any) -> None:
    settings = {"edge_urls": ["http://127.0.0.1:1"], "edge_purge_token": "t" * 32, "work": False}
    async with new_forge(testing=True, **settings) as forge:
        for name, body in (("clock", {"advance": 1}), ("reset", None)):
            refused = await control(forge, "POST", name, body)
            assert refused.status == 503
            assert "http://127.0.0.1:1" in refused.body["message"]


Question = Callable[[], Awaitable[object]]
HOUR, FORTY_DAYS = datetime.timedelta(hours=1), datetime.timedelta(days=40)
DELAYED = "job: {script: 'true', tags: [none], when: delayed, start_in: 30 minutes}"


def day(days: int) -> str:
    return str(datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=days))


async def a_token(forge: Forge) -> Question:
    user = await forge.user()
    sent = {"PRIVATE-TOKEN": await forge.token(user.id, expires_at=day(10))}

    async def asked() -> object:
        return (await forge.anonymous.get("/user", headers=sent)).status

    return asked


async def a_member(forge: Forge) -> Question:
    person, project = await forge.user(), await forge.project()
    url = f"/projects/{project['id']}"
    new = {"user_id": person.id, "access_level": Role.DEVELOPER, "expires_at": day(10)}
    assert (await forge.root.post(f"{url}/members", new)).status == 201

    async def asked() -> object:
        members = await forge.root.get(f"{url}/members")
        return (await person.api.get(url)).status, person.id in [one["id"] for one in members.body]

    return asked


async def an_invitation(forge: Forge) -> Question:
    await invite_by_mail(forge, "late@example.org", expires_at=day(10))
    page = await page_of(forge, "late@example.org")

    async def asked() -> object:
        return (await forge.anonymous.get(f"{forge.base}{page}", allow_redirects=False)).status

    return asked


async def a_session(forge: Forge) -> Question:
    cookie = await new_session(forge, (await forge.user()).id)

    async def asked() -> object:
        page = f"{forge.base}/-/user_settings/active_sessions"
        sent = {"Cookie": f"{COOKIE}={cookie}"}
        return (await forge.anonymous.get(page, headers=sent, allow_redirects=False)).status

    return asked


async def an_artifact(forge: Forge) -> Question:
    project = await ci_project(forge)
    shown = await project.job()
    running = await (await a_runner(forge, project_id=project.id)).job()
    assert (await running.upload(b"an archive", expire_in="30 minutes")).status == 201
    await running.finish()
    other = await project.job("other: {script: 'true', tags: [none]}")  # the newest pipelines keep theirs
    assert other["id"] != shown["id"]

    async def asked() -> object:
        return (await forge.root.get(f"{project.url}/jobs/{shown['id']}/artifacts")).status

    return asked


async def a_delayed_job(forge: Forge) -> Question:
    project = await ci_project(forge)
    job = await project.job(DELAYED)

    async def asked() -> object:
        return (await forge.root.get(f"{project.url}/jobs/{job['id']}")).body["status"]

    return asked


async def a_schedule(forge: Forge) -> Question:
    project = await ci_project(forge)
    await project.commit("job: {script: 'true', tags: [none]}")
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=5)
    new = {"description": "monthly", "ref": "topic", "cron": f"0 4 {later.day} * *"}
    made = await project.api.post(f"{project.url}/pipeline_schedules", new)
    assert made.status == 201, made

    async def asked() -> object:
        return len((await forge.root.get(f"{project.url}/pipelines?source=schedule")).body)

    return asked


async def a_mirror(forge: Forge) -> Question:
    owner = await forge.user()
    project = await forge.project(owner, initialize_with_readme=True)
    mirror = await new_mirror(forge, owner, project["id"], "http://127.0.0.1:9/x.git", enabled=True)
    url = f"/projects/{project['id']}/remote_mirrors/{mirror['id']}"
    assert (await owner.api.post(f"{url}/sync")).status == 204

    async def asked() -> object:
        return (await owner.api.get(url)).body["update_status"]

    return asked


#: The answers before, after one and two hours, and after forty days.
EXPECTED = {
    a_token: [200, 200, 200, 401],
    a_member: [(200, True), (200, True), (200, True), (404, False)],
    an_invitation: [200, 200, 200, 404],
    a_session: [200, 200, 200, 303],
    an_artifact: [200, 404, 404, 404],
    a_delayed_job: ["scheduled", "pending", "pending", "pending"],
    a_schedule: [0, 0, 0, 1],
    a_mirror: ["to_retry", "to_retry", "to_retry", "failed"],  # is tried three times more
}


@pytest.fixture(scope="module")
async def answers(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[str, list[object]]]:
    folder = tmp_path_factory.mktemp("expiries")
    async with running_forge(new_database(), folder, testing=True, allow_local_requests=True) as forge:
        questions = {make: await make(forge) for make in EXPECTED}
        assert (await control(forge, "POST", "settle")).body == {"left": []}
        course = {make.__name__: [await asked()] for make, asked in questions.items()}
        for by in (HOUR, HOUR, FORTY_DAYS):
            moved = await control(forge, "POST", "clock", {"advance": by.total_seconds()})
            assert (moved.status, moved.body["left"]) == (200, []), moved
            for make, asked in questions.items():
                course[make.__name__].append(await asked())
        yield course


@pytest.mark.parametrize("make", EXPECTED)
def test_time_brings_it_about(
    answers: dict[str, list[object]], make: Callable[[Forge], Awaitable[Question]]
) -> None:
    expected = EXPECTED[make]  # type: ignore[index]
    assert answers[make.__name__] == expected
