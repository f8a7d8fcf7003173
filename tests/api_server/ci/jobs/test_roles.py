"""Rights on jobs: roles by endpoints, and jobs of protected branches (decision D1)."""

from typing import Any

import pytest

from api_server.ci.jobs import artifact_handlers, handlers
from api_server.web.routes import Role
from tests.support.ci import MANUAL_JOB, CiProject, bring, ci_project, give_log
from tests.support.deviations import Deviations
from tests.support.forge import Client, Forge, Person
from tests.support.route_table import name_of, path_of, required

FORBIDDEN = {"message": "403 Forbidden"}
HIDDEN = {"message": "404 Project Not Found"}
#: Routes about jobs in a project.
OF_PROJECTS = [
    route
    for routes in (handlers.routes, artifact_handlers.routes, handlers.routes)
    for route in routes.routes
    if route.access.kind == "project"
]
ROLES = ("stranger", "guest", "reporter", "developer", "maintainer", "owner")

#: Method and path -> the lowest role in a private project whose jobs are not public.
LEAST_ROLE = {
    "GET jobs": "reporter",
    "GET pipelines": "reporter",
    "GET pipelines/latest?ref=topic": "reporter",
    "GET pipelines/{pipeline}": "reporter",
    "GET pipelines/{pipeline}/jobs": "reporter",
    "GET pipelines/{pipeline}/bridges": "reporter",
    "GET pipelines/{pipeline}/variables": "maintainer",
    "GET jobs/{job}": "reporter",
    "GET ci/lint": "reporter",
    "GET cluster_agents": "developer",
    "POST jobs/{job}/play": "developer",
    "POST jobs/{job}/cancel": "developer",
    "POST jobs/{job}/retry": "developer",
    "POST jobs/{job}/erase": "developer",
    "POST pipeline?ref=topic": "developer",
    "POST pipelines/{pipeline}/cancel": "developer",
    "POST pipelines/{pipeline}/retry": "developer",
    "POST ci/lint?content=a": "developer",
    "POST cluster_agents?name=agent-{role}": "maintainer",
    "DELETE cluster_agents/0": "maintainer",
    "DELETE pipelines/{pipeline}": "owner",
}


@pytest.fixture(scope="session")
async def closed(forge):
    project = await ci_project(forge, public_jobs=False)
    return project, await forge.people(project.id)


@pytest.mark.parametrize("endpoint", LEAST_ROLE)
async def test_least_role(closed, endpoint):
    """Lower roles get 403; this role and higher ones never get 403 or 404 because of their role; users without a role
    get 404, and callers without a token 401."""
    project, people = closed
    method, _, path = endpoint.partition(" ")
    pipeline = await project.pipeline(MANUAL_JOB)
    for role in ROLES:
        if method != "GET":
            pipeline = await project.pipeline(MANUAL_JOB)
        (job,) = (await project.jobs(pipeline)).values()
        if path.endswith(("retry", "erase")):
            await bring(project.forge, job["id"], "failed")
            await give_log(project.forge, job["id"])
            await project.forge.execute(
                "UPDATE jobs SET user_id = %(user_id)s WHERE id = %(id)s",
                user_id=people[role].id,
                id=job["id"],
            )
        url = f"{project.url}/{path.format(pipeline=pipeline['id'], job=job['id'], role=role)}"
        assert (await project.forge.anonymous.request(method, url)).status == 401
        answer = await people[role].api.request(method, url)
        if role == "stranger":
            assert (answer.status, answer.body) == (404, HIDDEN)
        elif ROLES.index(role) < ROLES.index(LEAST_ROLE[endpoint]):
            assert (answer.status, answer.body) == (403, FORBIDDEN), role
        else:
            assert answer.status in (200, 201, 204) or answer.body == {"message": "404 Not found"}, (
                role,
                answer,
            )


async def test_guests_and_signed_in_readers_see_jobs_of_projects_that_show_them(forge):
    """Endpoint 1: with public pipelines (the default)."""
    private, public = await ci_project(forge), await ci_project(forge, visibility="public")
    guest, stranger = await forge.user("guest"), await forge.user("stranger")
    await forge.member("projects", private.id, guest, Role.GUEST)
    assert (await guest.api.get(f"{private.url}/jobs")).status == 200
    assert (await stranger.api.get(f"{private.url}/jobs")).body == HIDDEN
    assert (await stranger.api.get(f"{public.url}/jobs")).status == 200
    assert (await forge.anonymous.get(f"{public.url}/jobs")).status == 401
    assert (await stranger.api.post(f"{public.url}/jobs/1/cancel")).body == FORBIDDEN


async def test_where_ci_is_disabled_nobody_sees_or_does_anything(disabled):
    """4.6."""
    project, job = disabled
    deviations = Deviations()
    for route in OF_PROJECTS:
        path = path_of(route, {"id": project.id, "job_id": job["id"], "pipeline_id": job["pipeline"]["id"]})
        with deviations.of(name_of(route)):
            answer = await project.forge.root.request(route.method, path, json=required(route))
            assert (answer.status, answer.body) == (403, FORBIDDEN)
    assert not deviations, deviations.report


@pytest.fixture(scope="session")
async def disabled(forge):
    project = await ci_project(forge)
    job = await project.job()
    await forge.root.put(project.url, {"builds_access_level": "disabled"})
    return project, job


async def test_in_an_archived_project_jobs_are_read_only(forge):
    project = await ci_project(forge)
    job = await project.job()
    assert (await forge.root.post(f"{project.url}/archive")).status == 201
    assert (await project.api.get(f"{project.url}/jobs/{job['id']}")).status == 200
    for path in ("play", "cancel", "retry", "erase"):
        answer = await forge.root.post(f"{project.url}/jobs/{job['id']}/{path}")
        assert (answer.status, answer.body) == (403, FORBIDDEN)


async def test_on_a_protected_ref_who_may_not_push_or_merge_may_not_change_jobs(forge):
    """Endpoints 8 to 11 and decision D1."""
    project = await ci_project(forge)
    pipeline = await project.pipeline(MANUAL_JOB, branch="main", by=forge.root)
    (job,) = (await project.jobs(pipeline)).values()
    for path in ("play", "cancel", "retry", "erase"):
        answer = await project.api.post(f"{project.url}/jobs/{job['id']}/{path}")
        assert (answer.status, answer.body) == (403, FORBIDDEN)
    for path in ("cancel", "retry"):
        assert (await project.api.post(f"{project.url}/pipelines/{pipeline['id']}/{path}")).status == 403
    refused = await project.api.post(f"{project.url}/pipeline", {"ref": "main"})
    text = "You do not have sufficient permission to run a pipeline on 'main'."
    assert (refused.status, refused.body) == (400, {"message": {"base": [text]}})
    assert (await forge.root.post(f"{project.url}/jobs/{job['id']}/play")).status == 200


async def test_developers_erase_only_jobs_of_their_own(forge):
    """Endpoint 10."""
    project = await ci_project(forge)
    other = await forge.new_member(project.id, Role.DEVELOPER, "other")
    job = await project.job_in("success")
    await give_log(forge, job["id"])
    answer = await other.api.post(f"{project.url}/jobs/{job['id']}/erase")
    assert (answer.status, answer.body) == (403, FORBIDDEN)
    assert (await project.api.post(f"{project.url}/jobs/{job['id']}/erase")).status == 201


async def test_the_role_is_asked_before_the_job_is_looked_for(closed):
    """Decision D1: the role is checked first (403), then the record (404)."""
    project, people = closed
    assert (await people["reporter"].api.post(f"{project.url}/jobs/0/cancel")).body == FORBIDDEN
    assert (await people["developer"].api.post(f"{project.url}/jobs/0/cancel")).body == {
        "message": "404 Not found"
    }


async def test_reading_needs_read_api_and_writing_needs_api(forge):
    """3.2 and 3.3."""
    project = await ci_project(forge)
    job = await project.job()
    reader = Client(forge.session, forge.base, await forge.token(project.developer.id, ("read_api",)))
    nothing = Client(forge.session, forge.base, await forge.token(project.developer.id, ("read_user",)))
    assert (await reader.get(f"{project.url}/jobs/{job['id']}")).status == 200
    for client, method, path, scope in (
        (reader, "POST", "/cancel", "api"), (nothing, "GET", "", "api read_api")
    ):  # fmt: skip
        answer = await client.request(method, f"{project.url}/jobs/{job['id']}{path}")
        assert (answer.status, answer.body["error"], answer.body["scope"]) == (
            403,
            "insufficient_scope",
            scope,
        )


#: Action -> the status of the job before it, the request, and the status of a successful answer.
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
#: Branch -> who may push to it, and who may merge into it.
LEVELS = {
    "open": None,
    "developers": (Role.DEVELOPER, Role.MAINTAINER),
    "merged": (Role.NO_ACCESS, Role.DEVELOPER),
    "maintainers": (Role.MAINTAINER, Role.MAINTAINER),
    "nobody": (Role.NO_ACCESS, Role.NO_ACCESS),
}

RUN = {"cancel", "retry", "play", "keep"}
ALL, NONE = set(ACTIONS), set[str]()
#: Branch and role -> the allowed actions on jobs of others, and on the person's own jobs.
MAY = {
    ("open", "reporter"): (NONE, NONE),
    ("open", "developer"): (RUN, RUN | {"erase"}),
    ("open", "maintainer"): (ALL, ALL),
    ("open", "owner"): (ALL, ALL),
    ("developers", "reporter"): (NONE, NONE),
    ("developers", "developer"): (RUN, RUN),
    ("developers", "maintainer"): (ALL, ALL),
    ("developers", "owner"): (ALL, ALL),
    ("merged", "reporter"): (NONE, NONE),
    ("merged", "developer"): (RUN, RUN),
    ("merged", "maintainer"): (ALL, ALL),
    ("merged", "owner"): (ALL, ALL),
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
    for branch, levels in LEVELS.items():
        await made.commit(CONFIG, branch=branch)
        made.texts[branch] = CONFIG
        if levels is not None:
            rule = {"name": branch} | _rule(levels)
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
    """Return the ids of jobs of a new pipeline, by the action for which they are prepared."""
    jobs = await project.jobs(await _pipeline(project, branch))
    for action, (status, *_) in ACTIONS.items():
        await bring(project.forge, jobs[action]["id"], status)
        await give_log(project.forge, jobs[action]["id"])
    await project.forge.execute(ARCHIVE, project_id=project.id, job_id=jobs["keep"]["id"])
    return {action: jobs[action]["id"] for action in ACTIONS}


async def _pipeline(project: CiProject, branch: str) -> dict[str, Any]:
    """Start a pipeline. On a branch to which nobody may push or merge, pipelines cannot be started, so the branch is
    protected after it."""
    if branch == "nobody":
        await _protect(project, branch, LEVELS["maintainers"])
    pipeline = await project.pipeline(CONFIG, branch=branch, by=project.forge.root)
    if branch == "nobody":
        await _protect(project, branch, LEVELS["nobody"])
    return pipeline


async def _protect(project: CiProject, branch: str, levels: tuple[Role, Role]) -> None:
    url = f"{project.url}/protected_branches/{branch}"
    await project.forge.root.patch(url, _rule(levels), expect=200)


def _rule(levels: tuple[Role, Role]) -> dict[str, int]:
    return dict(zip(("push_access_level", "merge_access_level"), map(int, levels), strict=True))
