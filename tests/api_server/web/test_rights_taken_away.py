"""Two callers at once, over the whole route table: what needs a right never succeeds after somebody has been told that
it is taken away, in this process or another one."""

import asyncio
from typing import Any

import pytest

from api_server.web.routes import Role
from tests.support.forge import Answer, Forge, Person
from tests.support.furnished import furnish
from tests.support.rights import stopped_before_acting, stopped_while_acting
from tests.support.route_table import ROUTES, name_of
from tests.support.takings import TAKINGS, Stage
from tests.support.waiting import until_somebody_waits

WRITES = [
    route
    for route in ROUTES
    if route.method != "GET"
    and route.access.who not in ("anyone", "job")
    and name_of(route) != "POST /projects/{id}/ci/lint"  # which writes nothing
    and not route.path.endswith("/access_tokens/self/rotate")  # which only bots may
]


async def _schedule_of(owner: Person, url: str) -> int:
    """A schedule of hers, with a variable."""
    schedules = f"{url}/pipeline_schedules"
    made = await owner.api.post(schedules, {"description": "hers", "ref": "main", "cron": "0 4 1 1 *"})
    variable = {"key": "KEY", "value": "x"}
    assert (await owner.api.post(f"{schedules}/{made.body['id']}/variables", variable)).status == 201
    return int(made.body["id"])


@pytest.fixture(scope="module")
async def stage(two_forges: tuple[Forge, Forge]) -> Stage:
    one, other = two_forges
    furnished = await furnish(one)
    owner, admin = await one.user("owner"), await one.user("admin", admin=True)
    ids = furnished.ids
    await one.member("projects", ids["id"], owner, Role.OWNER)
    await one.member("groups", ids["group_id"], owner, Role.OWNER)
    url = f"/projects/{ids['id']}"
    token = await one.root.post(
        f"/users/{owner.id}/personal_access_tokens", {"name": "other", "scopes": ["api"]}
    )
    furnished.of_root["personal_access_tokens_id"] = token.body["id"]
    branch = await one.root.post(f"{url}/repository/branches", {"branch": "v2", "ref": "main"})
    assert branch.status == 201, branch
    other_project = await one.project(owner)
    runner = await one.root.post(
        "/user/runners", {"runner_type": "project_type", "project_id": other_project["id"]}
    )
    merge_request = (await one.root.get(f"{url}/merge_requests/{ids['merge_request_iid']}")).body
    ids |= {
        "runner_id": runner.body["id"],
        "head": merge_request["sha"],
        "other_project_id": other_project["id"],
        "schedule_of_root_id": ids["pipeline_schedule_id"],
        "pipeline_schedule_id": await _schedule_of(owner, url),
        "trigger_id": (await owner.api.post(f"{url}/triggers", {"description": "hers"})).body["id"],
    }
    return Stage(one, other, furnished, owner, admin)


@pytest.mark.parametrize("taking", TAKINGS)
async def test_what_was_judged_before_a_right_was_taken_away_is_refused(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, taking: str
) -> None:
    """All routes at once: judged, then the right is taken away and that is answered, then they go on."""
    wanted = TAKINGS[taking]
    routes = [route for route in WRITES if wanted.needs(route)]
    await stage.warm()
    with stopped_before_acting(stage.other, monkeypatch) as stop:
        answers = [asyncio.create_task(stage.call(route)) for route in routes]
        await stop.until(len(routes), answers)
        early = {
            name_of(route): answer.result()
            for route, answer in zip(routes, answers, strict=True)
            if answer.done()
        }
        assert early == {}, "each request has to be one that would be done"
        await wanted.take(stage)
        stop.open()
        refused = await asyncio.gather(*answers)
        await wanted.give(stage)
    told = {name_of(route): _told(answer) for route, answer in zip(routes, refused, strict=True)}
    assert {name: answer for name, answer in told.items() if answer not in wanted.refusals} == {}


def _told(answer: Answer) -> tuple[int, Any]:
    body = answer.body
    return answer.status, (body.get("message") or body.get("error")) if isinstance(body, dict) else body


@pytest.mark.parametrize("taking", TAKINGS)
async def test_who_takes_a_right_away_waits_for_what_is_being_done_with_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, taking: str
) -> None:
    wanted = TAKINGS[taking]
    name = (
        "POST /member_roles"
        if "administrator" in taking
        else "POST /projects/{id}/merge_requests/{merge_request_iid}/approve"
    )
    route = next(route for route in WRITES if name_of(route) == name)
    await stage.warm()
    with stopped_while_acting(stage.other, monkeypatch) as stop:
        answer = asyncio.create_task(stage.call(route))
        await stop.until(1, [answer])
        taken = asyncio.create_task(wanted.take(stage))
        await until_somebody_waits(stage.one.database)
        assert not taken.done()
        assert not answer.done()
        stop.open()
        assert (await answer).status == 201
        await taken
        await wanted.give(stage)
