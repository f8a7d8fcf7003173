"""What the documents say that time brings about: so at the start, and otherwise after hours or forty days. One server,
moved three times, for all of it."""

import datetime
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from api_server.web.routes import Role
from tests.api_server.mirrors.service import new_mirror
from tests.api_server.testing.states import control
from tests.support.browser import COOKIE, new_session
from tests.support.ci import ci_project
from tests.support.forge import Forge, running_forge
from tests.support.invitations import invite_by_mail, page_of
from tests.support.runner import a_runner

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
    other = await project.job("other: {script: 'true', tags: [none]}")  # the newest keep theirs
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


#: What is answered before, after one and two hours, and after forty days.
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
