"""Runners that are changed while they wait, or while a job is being handed to them: judged as they are then."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from api_server.ci.runners.job_handlers import PENDING_JOBS
from api_server.web.context import SERVICES
from tests.support.ci import CiProject
from tests.support.forge import Answer, Client, Forge
from tests.support.runner import Runner, a_runner, until_waiting
from tests.support.waiting import until_somebody_waits

FORBIDDEN = (403, {"message": "403 Forbidden"})
CHANGES: dict[str, tuple[Callable[[Client, Runner], Awaitable[Answer]], tuple[int, object]]] = {
    "token reset": (
        lambda root, runner: root.post(f"/runners/{runner.id}/reset_authentication_token"),
        FORBIDDEN,
    ),
    "token reset by itself": (
        lambda root, runner: root.post("/runners/reset_authentication_token", {"token": runner.token}),
        FORBIDDEN,
    ),
    "removed": (lambda root, runner: root.delete(f"/runners/{runner.id}"), FORBIDDEN),
    "paused": (lambda root, runner: root.put(f"/runners/{runner.id}", {"paused": True}), (204, "")),
    "other tags": (
        lambda root, runner: root.put(
            f"/runners/{runner.id}", {"tag_list": ["other"], "run_untagged": False}
        ),
        (204, ""),
    ),
    "protected refs only": (
        lambda root, runner: root.put(f"/runners/{runner.id}", {"access_level": "ref_protected"}),
        (204, ""),
    ),
}


async def test_a_runner_that_has_changed_while_it_waited_gets_no_job(
    forge: Forge, project: CiProject
) -> None:
    """The job goes to a runner that has not changed and waits behind the others."""
    runners = [await a_runner(forge, project_id=project.id) for _ in CHANGES]
    polls = [asyncio.create_task(runner.poll(last_update="x")) for runner in runners]
    await until_waiting(forge, *runners)
    for runner, (change, _) in zip(runners, CHANGES.values(), strict=True):
        assert (await change(forge.root, runner)).status in (200, 201, 204)
    last = await a_runner(forge, project_id=project.id)
    unchanged = asyncio.create_task(last.poll(last_update="x"))
    await until_waiting(forge, last)
    await project.pipeline()
    assert (await unchanged).status == 201
    with forge.server.app[SERVICES][PENDING_JOBS].emptied():
        answers = [(answer.status, answer.body) for answer in await asyncio.gather(*polls)]
    assert dict(zip(CHANGES, answers, strict=True)) == {name: told for name, (_, told) in CHANGES.items()}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE runners SET token_digest = '' WHERE id = %(id)s",
        "DELETE FROM runners WHERE id = %(id)s",
    ],
)
async def test_whoever_is_changing_a_runner_is_waited_for(
    forge: Forge, project: CiProject, statement: str
) -> None:
    runner = await a_runner(forge, project_id=project.id)
    await runner.poll()  # so that it has been heard of
    await project.pipeline()
    async with forge.database.transaction() as transaction:
        await transaction.run(statement, id=runner.id)
        poll = asyncio.create_task(runner.poll())
        await until_somebody_waits(forge.database)
    answer = await poll
    assert (answer.status, answer.body) == FORBIDDEN


async def test_a_token_is_replaced_once(forge: Forge, project: CiProject) -> None:
    """By two who have it at the same time."""
    runner = await a_runner(forge, project_id=project.id)
    answers = await asyncio.gather(
        *(
            forge.anonymous.post("/runners/reset_authentication_token", {"token": runner.token})
            for _ in range(4)
        )
    )
    assert sorted(answer.status for answer in answers) == [201, 403, 403, 403]
    [replaced] = [answer.body["token"] for answer in answers if answer.status == 201]
    verified = await forge.anonymous.post("/runners/verify", {"token": replaced})
    assert (verified.status, verified.body["id"]) == (200, runner.id)
