"""Who may cancel, retry, play and erase jobs of protected branches, and keep what they left (decision D1)."""

from typing import Any

import pytest

from api_server.web.routes import Role
from tests.support.ci import CiProject, bring, ci_project, give_log
from tests.support.deviations import Deviations
from tests.support.forge import Forge, Person

FORBIDDEN = {"message": "403 Forbidden"}
#: Action -> the status that the job is brought into before, the request, and what success is answered with.
ACTIONS = {
    "cancel": ("running", "POST", "cancel", 201),
    "retry": ("failed", "POST", "retry", 201),
    "play": ("manual", "POST", "play", 200),
    "keep": ("success", "POST", "artifacts/keep", 200),
    "erase": ("success", "POST", "erase", 201),
    "delete": ("success", "DELETE", "artifacts", 204),
}
CONFIG = "".join(f"{name}: {{script: echo, when: manual}}\n" for name in ACTIONS)
ARCHIVE = """
    INSERT INTO job_artifacts (project_id, job_id, file_type, file_format, filename, size, object_key, sha256,
        created_at)
    VALUES (%(project_id)s, %(job_id)s, 'archive', 'zip', 'artifacts.zip', 1, 'key', '', %(now)s)
"""
GIVE = "UPDATE jobs SET user_id = %(user_id)s WHERE id = ANY (%(ids)s)"
ROOT = 1
#: Branch -> who may push to it.
LEVELS = {
    "open": None,
    "developers": Role.DEVELOPER,
    "maintainers": Role.MAINTAINER,
    "nobody": Role.NO_ACCESS,
}

RUN = {"cancel", "retry", "play", "keep"}
ALL, NONE = set(ACTIONS), set[str]()
#: Branch and role -> what she may do with jobs of others, and with jobs of her own.
MAY = {
    ("open", "reporter"): (NONE, NONE),
    ("open", "developer"): (RUN, RUN | {"erase"}),
    ("open", "maintainer"): (ALL, ALL),
    ("open", "owner"): (ALL, ALL),
    ("developers", "reporter"): (NONE, NONE),
    ("developers", "developer"): (RUN, RUN),
    ("developers", "maintainer"): (ALL, ALL),
    ("developers", "owner"): (ALL, ALL),
    ("maintainers", "reporter"): (NONE, NONE),
    ("maintainers", "developer"): (NONE, NONE),
    ("maintainers", "maintainer"): (ALL, ALL),
    ("maintainers", "owner"): (ALL, ALL),
    ("nobody", "reporter"): (NONE, NONE),
    ("nobody", "developer"): (NONE, NONE),
    ("nobody", "maintainer"): (NONE, NONE),
    ("nobody", "owner"): (NONE, NONE),
}


@pytest.fixture(scope="module")
async def project(forge: Forge) -> tuple[CiProject, dict[str, Person]]:
    made = await ci_project(forge)
    for branch, level in LEVELS.items():
        await made.commit(CONFIG, branch=branch)
        made.texts[branch] = CONFIG
        if level is not None:
            rule = {"name": branch, "push_access_level": int(level)}
            await forge.root.post(f"{made.url}/protected_branches", rule, expect=201)
    return made, await forge.people(made.id)


@pytest.mark.parametrize(("branch", "role"), MAY)
async def test_actions(project: tuple[CiProject, dict[str, Person]], branch: str, role: str) -> None:
    made, people = project
    deviations = Deviations()
    jobs: dict[str, int] = {}
    for own in (False, True):
        jobs = jobs or await _jobs(made, branch)
        async with made.forge.database.transaction() as transaction:
            owner = people[role].id if own else ROOT
            await transaction.run(GIVE, user_id=owner, ids=list(jobs.values()))
        accepted = set()
        with deviations.of("jobs of her own" if own else "jobs of another"):
            for action, (_, method, path, success) in ACTIONS.items():
                answer = await people[role].api.request(method, f"{made.url}/jobs/{jobs[action]}/{path}")
                if answer.status == success:
                    accepted.add(action)
                else:
                    assert (answer.status, answer.body) == (403, FORBIDDEN)
            assert accepted == MAY[branch, role][own]
        if accepted:
            jobs = {}
    assert not deviations, deviations.report


async def _jobs(project: CiProject, branch: str) -> dict[str, int]:
    """Ids of jobs of a new pipeline, by the action that they are ready for."""
    jobs = await project.jobs(await _pipeline(project, branch))
    for action, (status, *_) in ACTIONS.items():
        await bring(project.forge, jobs[action]["id"], status)
        await give_log(project.forge, jobs[action]["id"])
    await project.forge.execute(ARCHIVE, project_id=project.id, job_id=jobs["keep"]["id"])
    return {action: jobs[action]["id"] for action in ACTIONS}


async def _pipeline(project: CiProject, branch: str) -> dict[str, Any]:
    """Where nobody may push, nobody may start one: there it is started a moment before."""
    if LEVELS[branch] == Role.NO_ACCESS:
        await _protect(project, branch, Role.MAINTAINER)
    pipeline = await project.pipeline(CONFIG, branch=branch, by=project.forge.root)
    if LEVELS[branch] == Role.NO_ACCESS:
        await _protect(project, branch, Role.NO_ACCESS)
    return pipeline


async def _protect(project: CiProject, branch: str, level: Role) -> None:
    rule = f"{project.url}/protected_branches/{branch}"
    await project.forge.root.patch(rule, {"push_access_level": int(level)}, expect=200)
