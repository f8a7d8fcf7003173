"""Pipelines from pushes and from the API, and the refs whose rights apply to them."""

import asyncio
import datetime
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.ci.config.pipeline import NO_JOBS
from api_server.ci.pipelines import queries, repository
from api_server.ci.pipelines.handlers import routes
from api_server.ci.pipelines.tasks import PushOptions, push_options
from api_server.code import refs
from api_server.git.received_push import Push, RefUpdate
from api_server.git.ref_names import NO_COMMIT
from api_server.git.repositories import REPOSITORIES
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.support.ci import MANUAL_JOB, ONE_JOB, CiProject, ci_project, give_log
from tests.support.forge import Client, Forge
from tests.support.git_client import Git, git_url
from tests.support.merge_requests import head_of
from tests.support.waiting import until, until_somebody_waits

SHOWING_RULES = """
on push: {script: echo, rules: [{if: $CI_PIPELINE_SOURCE == "push"}]}
on api: {script: echo, rules: [{if: $CI_PIPELINE_SOURCE == "api"}]}
for red: {script: echo, rules: [{if: $COLOR == "red"}]}
always: {script: echo}
"""


async def pushed(project, **filters) -> list[dict]:
    query = "&".join(f"{key}={value}" for key, value in ({"source": "push"} | filters).items())
    return list((await project.api.get(f"{project.url}/pipelines?{query}")).body)


async def test_a_push_makes_a_pipeline_of_the_pushed_commit_by_its_pusher(forge, tmp_path):
    project = await ci_project(forge)
    url = f"{forge.base}/{project.path}.git".replace("://", f"://any:{project.developer.token}@")

    def push() -> None:
        def git(*arguments: str) -> None:
            command = ["git", "-c", "user.name=alice", "-c", "user.email=alice@example.org", *arguments]
            subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

        git("clone", "-q", url, ".")
        git("checkout", "-q", "-b", "feature/one")
        (tmp_path / ".gitlab-ci.yml").write_text(SHOWING_RULES)
        git("add", ".")
        git("commit", "-q", "-m", "Add CI")
        git("tag", "v1")
        git("push", "-q", "origin", "feature/one", "v1")

    await asyncio.to_thread(push)

    async def both():
        return len(found := await pushed(project)) == 2 and found

    found = await until(both)
    assert {(one["ref"], one["status"]) for one in found} == {("feature/one", "pending"), ("v1", "pending")}
    assert {one["sha"] for one in found} == {
        (await project.api.get(f"{project.url}/repository/branches/feature%2Fone")).body["commit"]["id"]
    }
    by_ref = {one["ref"]: one for one in found}
    assert set(await project.statuses(by_ref["v1"])) == {"on push", "always"}
    shown = (await project.api.get(f"{project.url}/pipelines/{by_ref['v1']['id']}")).body
    assert (shown["tag"], shown["user"]["id"]) == (True, project.developer.id)


async def test_a_commit_through_the_api_makes_a_pipeline_unless_it_says_ci_skip(forge):
    project = await ci_project(forge)
    await project.commit(ONE_JOB, message="Build")
    await project.commit(ONE_JOB + "\n", message="Do not build [skip ci]")

    async def both():
        return len(found := await pushed(project, ref="topic")) == 2 and found

    found = await until(both)
    assert sorted(one["status"] for one in found) == ["pending", "skipped"]


async def test_a_pushed_file_that_cannot_be_used_makes_a_failed_pipeline_that_says_why(forge):
    project = await ci_project(forge)
    await project.commit("build:\n  skript: echo\n", message="Typo")

    (found,) = await until(lambda: pushed(project, ref="topic", status="failed"))
    shown = (await project.api.get(f"{project.url}/pipelines/{found['id']}")).body
    assert "jobs build config should implement a script: or a trigger: keyword" in shown["yaml_errors"]
    assert (await pushed(project, yaml_errors="true"))[0]["id"] == found["id"]
    assert (await project.api.get(f"{project.url}/pipelines/{found['id']}/jobs")).body == []
    for action in ("retry", "cancel"):
        answer = await project.api.post(f"{project.url}/pipelines/{found['id']}/{action}")
        assert answer.body["status"] == "failed"


async def test_a_pushed_file_that_is_too_large_makes_a_failed_pipeline_too(forge, monkeypatch):
    monkeypatch.setattr(repository, "MAX_BYTES", 100)
    project = await ci_project(forge)
    text = ONE_JOB + "#" * 100
    await project.commit(text, message="Much")

    (found,) = await until(lambda: pushed(project, ref="topic", status="failed"))
    shown = (await project.api.get(f"{project.url}/pipelines/{found['id']}")).body
    said = f"The YAML file is too big: {len(text)} bytes of at most 100"
    assert shown["yaml_errors"] == said
    linted = (await project.api.get(f"{project.url}/ci/lint?content_ref=topic")).body
    assert (linted["valid"], linted["errors"]) == (False, [said])
    refused = await project.api.post(f"{project.url}/pipeline", {"ref": "topic"})
    assert (refused.status, refused.body) == (400, {"message": {"base": [said]}})
    including = {"content": "include: .gitlab-ci.yml", "ref": "topic"}
    linted = (await project.api.post(f"{project.url}/ci/lint", including)).body
    assert linted["errors"] == [f"Local file `.gitlab-ci.yml`: {said}"]


async def test_caches_that_are_named_for_files_of_any_size_change_with_them(forge, monkeypatch):
    monkeypatch.setattr(repository, "MAX_BYTES", 100)
    project = await ci_project(forge)
    text = "a: {script: b, cache: [{key: {files: [d/lock]}, paths: [c]}, {key: {files: [d]}, paths: [e]}]}\n"
    keys = []
    for content in (None, "1" + "#" * 100, "2" + "#" * 100):
        if content is not None:
            await project.commit(content, path="d/lock")
        job = await project.job(text)
        plan = await forge.database.value("SELECT plan FROM jobs WHERE id = %(id)s", id=job["id"])
        keys.append([cache["key"] for cache in json.loads(plan)["cache"]])
    assert keys[0] == ["0-default", "1-default"]
    assert [len(set(each)) for each in zip(*keys, strict=True)] == [3, 3]


async def test_a_pushed_pipeline_is_made_once_however_often_the_work_is_done(project):
    from api_server.ci.pipelines.creation import PipelineRequest, pipeline_maker

    pipeline = await project.pipeline()
    wanted = PipelineRequest(
        project_id=project.id, ref="topic", sha=pipeline["sha"], source="api", user_id=None, origin="once"
    )
    made = [await pipeline_maker(project.forge.server.app[SERVICES]).make(wanted) for _ in range(2)]
    assert made[0] == made[1]


async def test_a_created_pipeline_has_every_key(project):
    pipeline = await project.pipeline(MANUAL_JOB)
    assert pipeline == {
        "id": pipeline["id"],
        "iid": pipeline["iid"],
        "project_id": project.id,
        "sha": pipeline["sha"],
        "ref": "topic",
        "status": "manual",
        "source": "api",
        "created_at": pipeline["created_at"],
        "updated_at": pipeline["updated_at"],
        "web_url": f"{project.forge.base}/{project.path}/-/pipelines/{pipeline['id']}",
        "name": None,
        "before_sha": "0" * 40,
        "tag": False,
        "yaml_errors": None,
        "user": pipeline["user"],
        "started_at": None,
        "finished_at": None,
        "committed_at": pipeline["committed_at"],
        "duration": None,
        "queued_duration": None,
        "coverage": None,
    }
    assert pipeline["user"]["id"] == project.developer.id


async def test_variables_of_a_pipeline_decide_rules_and_can_be_read_back(project):
    variables = [{"key": "COLOR", "value": "red"}, {"key": "F", "value": "x", "variable_type": "file"}]
    pipeline = await project.pipeline(SHOWING_RULES, variables=variables)
    assert set(await project.statuses(pipeline)) == {"on api", "for red", "always"}
    answer = await project.api.get(f"{project.url}/pipelines/{pipeline['id']}/variables")
    assert answer.body == [
        {"variable_type": "env_var", "key": "COLOR", "value": "red", "raw": False},
        {"variable_type": "file", "key": "F", "value": "x", "raw": False},
    ]
    stored = await project.forge.database.rows(
        "SELECT value FROM pipeline_variables WHERE pipeline_id = %(id)s", id=pipeline["id"]
    )
    assert all(b"red" not in row.value for row in stored)


async def test_pipelines_that_cannot_be_made(forge):
    project = await ci_project(forge)

    async def refusal(ref: str, **values: Any) -> list[str]:
        answer = await project.api.post(f"{project.url}/pipeline", {"ref": ref} | values)
        assert answer.status == 400
        return list(answer.body["message"]["base"])

    assert await refusal("nowhere") == ["Reference not found"]
    await project.commit("a", path="file", branch="topic")
    assert await refusal("topic") == ["Missing CI config file"]
    await project.commit("build:\n  script: echo\n  rules: [{if: $NEVER}]\n")
    assert await refusal("topic") == [NO_JOBS]
    for key in ("A=1 B", "A$(id)", "é"):  # runners write keys unchanged into shells
        text = "Variables key can contain only letters, digits and '_'."
        assert await refusal("topic", variables=[{"key": key, "value": "x"}]) == [text]
    await project.commit("build:\n  script: echo\n  needs: [gone]\n")
    assert await refusal("topic") == ["build job: undefined need: gone"]
    missing = await project.api.post(f"{project.url}/pipeline", {})
    assert (missing.status, missing.body) == (400, {"error": "ref is missing"})
    assert await pushed(project, source="api") == []


async def test_the_commit_of_a_pipeline_outlives_its_branch_and_that_of_a_lint_need_not(forge):

    project = await ci_project(forge)
    repository = forge.repository(project.id)
    await project.commit(ONE_JOB)
    assert (await project.api.get(f"{project.url}/ci/lint?content_ref=main")).status == 200
    pipeline = await project.pipeline(ONE_JOB + "#\n")
    kept = [name for name in repository.references if name.startswith("refs/keep-around/")]
    main = (await project.api.get(f"{project.url}/repository/branches/main")).body["commit"]["id"]
    assert f"refs/keep-around/{pipeline['sha']}" in kept
    assert f"refs/keep-around/{main}" not in kept


async def test_the_configuration_is_where_the_project_says(forge):
    project = await ci_project(forge, ci_config_path="ci/main.yml")
    await project.commit(ONE_JOB, path="ci/main.yml")
    await project.api.post(f"{project.url}/pipeline", {"ref": "topic"}, expect=201)
    text = "cannot include leading slash or directory traversal."
    for path in ("/ci/main.yml", "../main.yml"):
        answers = [
            await forge.root.put(project.url, {"ci_config_path": path}),
            await forge.root.post("/projects", {"name": "other", "ci_config_path": path}),
        ]
        for refused in answers:
            assert (refused.status, refused.body) == (400, {"message": {"ci_config_path": [text]}})


async def test_pipelines_are_filtered_and_ordered(forge):
    project = await ci_project(forge)
    first = await project.pipeline(MANUAL_JOB)
    for branch in ("topic", "other"):
        await project.commit(ONE_JOB, branch=branch)
        project.texts[branch] = ONE_JOB

    async def pushes_are_settled() -> bool:
        return len(await pushed(project)) == 3

    await until(pushes_are_settled)
    second = await project.pipeline(ONE_JOB)
    third = await project.pipeline(ONE_JOB, branch="other")

    async def ids(query: str) -> list[int]:
        answer = await project.api.get(f"{project.url}/pipelines?source=api&{query}", expect=200)
        return [one["id"] for one in answer.body]

    assert await ids("") == [third["id"], second["id"], first["id"]]
    assert await ids("sort=asc") == [first["id"], second["id"], third["id"]]
    assert await ids("status=manual") == [first["id"]]
    assert await ids("scope=pending&ref=topic") == [second["id"]]
    assert await ids("scope=branches") == [third["id"], second["id"]]
    assert await ids("scope=tags") == []
    assert await ids(f"sha={first['sha']}") == [first["id"]]
    assert await ids(f"username={project.developer.username}&order_by=ref&sort=asc") == [
        third["id"], first["id"], second["id"]
    ]  # fmt: skip
    assert await ids("username=nobody") == []
    assert await ids("updated_after=2999-01-01T00:00:00Z") == []
    assert await ids("created_before=2999-01-01T00:00:00Z&per_page=1") == [third["id"]]
    assert await ids("pagination=keyset&per_page=2") == [third["id"], second["id"]]
    bad = await project.api.get(f"{project.url}/pipelines?scope=all")
    assert (bad.status, bad.body) == (400, {"error": "scope does not have a valid value"})


async def test_latest(forge):
    project = await ci_project(forge)
    missing = await project.api.get(f"{project.url}/pipelines/latest?ref=topic")
    assert (missing.status, missing.body) == (404, {"message": "404 Not found"})
    await project.pipeline()
    newest = await project.pipeline()
    assert (await project.api.get(f"{project.url}/pipelines/latest?ref=topic")).body["id"] == newest["id"]


async def test_deleting_a_pipeline_takes_its_jobs_along_and_is_recorded(forge):
    project = await ci_project(forge)
    pipeline = await project.pipeline()
    (job,) = (await project.jobs(pipeline)).values()
    await give_log(forge, job["id"])
    where = f"{project.url}/pipelines/{pipeline['id']}"
    assert (await forge.root.delete(where)).status == 204
    assert (await forge.root.get(where)).status == 404
    assert (await forge.root.get(f"{project.url}/jobs/{job['id']}")).status == 404
    assert (await forge.root.delete(where)).body == {"message": "404 Not found"}
    recorded = await forge.database.value(
        "SELECT count(*) FROM audit_events WHERE event_type = 'destroy_pipeline' AND target_id = %(id)s",
        id=pipeline["id"],
    )
    assert recorded == 1


async def test_a_pipeline_is_deleted_once(forge):
    """The second request gets 404, and nothing is recorded of it."""
    project = await ci_project(forge)
    pipeline = await project.pipeline()
    async with forge.database.transaction() as transaction:
        await queries.lock_pipeline(transaction, pipeline["id"])
        second = asyncio.create_task(forge.root.delete(f"{project.url}/pipelines/{pipeline['id']}"))
        await until_somebody_waits(forge.database)
        await queries.delete_pipeline(transaction, pipeline["id"])
    answer = await second
    assert (answer.status, answer.body) == (404, {"message": "404 Not found"})


@pytest.mark.parametrize("route", routes.routes, ids=lambda route: f"{route.method} {route.path}")
async def test_where_ci_is_disabled_nobody_sees_or_does_anything(forge, route):
    project = await forge.project(builds_access_level="disabled")
    path = route.path.format(id=project["id"], pipeline_id=1)
    answer = await forge.root.request(route.method, path, json={"ref": "main", "content": "text"})
    assert (answer.status, answer.body) == (403, {"message": "403 Forbidden"})


async def test_deleting_a_project_with_pipelines(forge):
    project = await ci_project(forge)
    await project.pipeline("a:\n  trigger: nowhere/at-all\nb:\n  script: echo\n")
    assert (await forge.root.delete(project.url)).status == 202


FILE = ".gitlab-ci.yml"
TEXT = "build:\n  script: echo\n  rules: [{if: '$FLAVOR != \"none\"'}]\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], PushOptions()),
        (["ci.skip"], PushOptions(skip=True)),
        (["ci.skip=true"], PushOptions(skip=True)),
        (["ci.skipped", "ci.variables=A=b", "merge_request.create"], PushOptions()),
        (["ci.variable=A=b=c", "ci.variable=EMPTY="], PushOptions(variables={"A": "b=c", "EMPTY": ""})),
        (["ci.variable=A=1", "ci.variable=A=2"], PushOptions(variables={"A": "2"})),
        (["ci.input=a b=c=d", "ci.input=e="], PushOptions(inputs={"a b": "c=d", "e": ""})),
        (["ci.input=a", "ci.input==b", "ci.inputs=a=b"], PushOptions()),
        (["ci.variable=A", "ci.variable==b", "ci.variable=a b=c", "ci.variable=A=\0"], PushOptions()),
    ],
)
def test_what_options_mean(options: list[str], expected: PushOptions) -> None:
    assert push_options(options) == expected


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z0-9_]{1,20}", fullmatch=True), st.text().filter(lambda v: "\0" not in v)
    )
)
def test_every_variable_arrives_as_it_was_written(variables: dict[str, str]) -> None:
    assert (
        push_options(f"ci.variable={key}={value}" for key, value in variables.items()).variables == variables
    )


async def push(project: CiProject, folder: Path, *options: str, branch: str = "topic") -> str:
    git = Git(folder)
    await git.init()
    sha = await git.commit_files({FILE: TEXT})
    url = git_url(project.forge, project.path, project.developer)
    arguments = [argument for option in options for argument in ("-o", option)]
    await git("push", "--quiet", "--force", *arguments, url, f"HEAD:refs/heads/{branch}")
    return sha


async def pipeline_of(project: CiProject, sha: str) -> dict[str, Any]:
    (found,) = await project.api.until(f"{project.url}/pipelines?sha={sha}")
    return dict(found)


async def test_ci_skip_makes_a_skipped_pipeline(forge: Forge, tmp_path: Path) -> None:
    project = await ci_project(forge)
    pipeline = await pipeline_of(project, await push(project, tmp_path / "work", "ci.skip"))
    assert pipeline["status"] == "skipped"
    assert await project.jobs(pipeline) == {}


async def test_ci_variables_are_the_pipelines(forge: Forge, tmp_path: Path) -> None:
    """They are always stored encrypted, and rules can use them."""
    project = await ci_project(forge)
    sha = await push(project, tmp_path / "work", "ci.variable=FLAVOR=a b=c", "ci.variable=OTHER=x")
    pipeline = await pipeline_of(project, sha)
    variables = (await project.api.get(f"{project.url}/pipelines/{pipeline['id']}/variables")).body
    assert [(one["key"], one["value"]) for one in variables] == [("FLAVOR", "a b=c"), ("OTHER", "x")]
    queued = await forge.database.value(
        "SELECT args::text FROM procrastinate_jobs WHERE args ->> 'sha' = %(sha)s", sha=sha
    )
    assert "FLAVOR" not in (queued or "")


async def test_a_push_that_was_left_unsettled_keeps_its_options(forge: Forge) -> None:
    """The options are stored encrypted until then."""
    project = await ci_project(forge)
    await project.commit(TEXT, message="Run")
    sha = await head_of(project.api, {"id": project.id}, "topic")
    app = forge.server.app
    app[SERVICES][REPOSITORIES].open(project.id).references.create("refs/tags/v1", sha)
    pushed = Push(
        id=f"push-{sha}",
        updates=(RefUpdate(NO_COMMIT, sha, "refs/tags/v1"),),
        options=("ci.variable=FLAVOR=sweet",),
    )
    await refs.propose(app[SERVICES], project.id, project.developer.id, pushed)
    stored = await forge.database.value("SELECT options FROM pushes WHERE id = %(id)s", id=pushed.id)
    assert b"sweet" not in bytes(stored)
    await refs.settle_leftovers(app[SERVICES], datetime.datetime.now(datetime.UTC))

    (pipeline,) = await project.api.until(f"{project.url}/pipelines?ref=v1")
    variables = (await project.api.get(f"{project.url}/pipelines/{pipeline['id']}/variables")).body
    assert [(one["key"], one["value"]) for one in variables] == [("FLAVOR", "sweet")]


DENIED = {"message": {"base": ["You do not have sufficient permission to run a pipeline on 'main'."]}}
#: `guarded` runs only if the pipeline gets the protected variable, and so shows whether it does.
GUARDED = "open: {script: echo}\nguarded: {script: echo, rules: [{if: $SECRET}]}\n"


@pytest.fixture
async def there(forge: Forge) -> CiProject:
    """A project with a variable for protected refs, a tag with the name of a protected branch, and a tag with the name
    of an unprotected one."""
    project = await ci_project(forge)
    await project.commit(GUARDED, branch="main")
    await project.commit(GUARDED)
    variable = {"key": "SECRET", "value": "swordfish", "protected": True}
    assert (await forge.root.post(f"{project.url}/variables", variable)).status == 201
    assert (await forge.root.post(f"{project.url}/protected_branches", {"name": "v*"})).status == 201
    repository = forge.repository(project.id)
    for tag in ("v1", "topic"):
        repository.references.create(
            f"refs/tags/{tag}", repository.lookup_reference("refs/heads/main").target
        )
    return project


async def _triggered(forge: Forge, there: CiProject, branch: str, role: Role) -> tuple[str | None, Any]:
    """Return the reason why the bridge of a person with that role in the target failed, or None, and the pipeline that
    it started."""
    here = await ci_project(forge)
    await forge.member("projects", there.id, here.developer, role)
    pipeline = await here.pipeline(f"call:\n  trigger: {{project: {there.path}, branch: {branch}}}\n")

    async def is_done() -> bool:
        return (await here.statuses(pipeline))["call"] in ("success", "failed")

    await until(is_done)
    (row,) = await forge.database.rows(
        "SELECT failure_reason FROM jobs WHERE pipeline_id = %(id)s", id=pipeline["id"]
    )
    return row.failure_reason, (await here.bridges(pipeline))["call"]["downstream_pipeline"]


async def _shown(forge: Forge, there: CiProject, pipeline_id: int) -> tuple[str, bool, set[str]]:
    """Return the pipeline's ref, whether it is a tag, and the names of its jobs."""
    shown = (await forge.root.get(f"{there.url}/pipelines/{pipeline_id}")).body
    return shown["ref"], shown["tag"], set(await there.jobs(shown))


@pytest.mark.parametrize("branch", ["main", "refs/heads/main", "HEAD"])
async def test_a_trigger_is_measured_by_what_its_branch_means(
    forge: Forge, there: CiProject, branch: str
) -> None:
    assert await _triggered(forge, there, branch, Role.DEVELOPER) == ("insufficient_bridge_permissions", None)
    assert (await forge.root.get(f"{there.url}/pipelines?source=pipeline")).body == []
    reason, started = await _triggered(forge, there, branch, Role.MAINTAINER)
    assert reason is None
    assert await _shown(forge, there, started["id"]) == ("main", False, {"open", "guarded"})


async def test_a_trigger_on_a_tag_is_not_measured_by_branches(forge: Forge, there: CiProject) -> None:
    for tag in ("v1", "refs/tags/topic"):
        reason, started = await _triggered(forge, there, tag, Role.DEVELOPER)
        assert reason is None
        assert await _shown(forge, there, started["id"]) == (tag.removeprefix("refs/tags/"), True, {"open"})
        assert await _triggered(forge, there, tag, Role.REPORTER) == ("insufficient_bridge_permissions", None)


async def test_a_trigger_does_not_guess(forge: Forge, there: CiProject) -> None:
    failed = ("downstream_pipeline_creation_failed", None)
    assert await _triggered(forge, there, "topic", Role.MAINTAINER) == failed


async def _run(client: Client, there: CiProject, ref: str) -> tuple[int, Any]:
    answer = await client.post(f"{there.url}/pipeline", {"ref": ref})
    return answer.status, answer.body


@pytest.mark.parametrize("ref", ["main", "refs/heads/main", "HEAD"])
async def test_a_pipeline_is_run_on_what_its_ref_means(forge: Forge, there: CiProject, ref: str) -> None:
    assert await _run(there.api, there, ref) == (400, DENIED)
    assert (await forge.root.get(f"{there.url}/pipelines?source=api")).body == []
    status, made = await _run(forge.root, there, ref)
    assert status == 201, made
    assert await _shown(forge, there, made["id"]) == ("main", False, {"open", "guarded"})


async def test_a_pipeline_is_not_run_on_what_may_be_either(forge: Forge, there: CiProject) -> None:
    assert await _run(there.api, there, "topic") == (400, {"message": {"base": ["Ref is ambiguous"]}})
    for ref, tag in (("refs/heads/topic", False), ("refs/tags/topic", True)):
        status, made = await _run(there.api, there, ref)
        assert status == 201, made
        assert await _shown(forge, there, made["id"]) == ("topic", tag, {"open"})
        latest = await there.api.get(f"{there.url}/pipelines/latest?ref={ref}")
        assert (latest.status, latest.body["id"]) == (200, made["id"])
    latest = await there.api.get(f"{there.url}/pipelines/latest?ref=topic")
    assert (latest.status, latest.body) == (
        400,
        {
            "message": "400 Bad request - Ref is ambiguous. 'topic' is both a branch and a tag: "
            "say refs/heads/topic or refs/tags/topic."
        },
    )


async def test_a_file_is_tried_out_as_if_it_ran_elsewhere(forge: Forge) -> None:
    """The file of an unprotected branch never gets the protected values of the branch on which it is tried out."""
    project = await ci_project(forge)
    rule = "build: {script: echo, rules: [{if: $CI_COMMIT_BRANCH == 'topic'}]}\n"
    await project.commit(rule)
    await project.commit(rule, branch="main")

    async def jobs(client: Client, query: str) -> tuple[bool, list[str], list[str]]:
        url = f"{project.url}/ci/lint?dry_run=true&include_jobs=true&{query}"
        body = (await client.get(url)).body
        return body["valid"], body["errors"], [job["name"] for job in body.get("jobs", [])]

    nothing = (False, [NO_JOBS], [])
    assert await jobs(project.api, "content_ref=topic&dry_run_ref=topic") == (True, [], ["build"])
    assert await jobs(project.api, "content_ref=topic") == nothing
    assert await jobs(project.api, "dry_run_ref=topic") == (True, [], ["build"])
    assert await jobs(project.api, "dry_run_ref=nowhere") == (False, ["Reference not found"], [])
    variable = {"key": "SECRET", "value": "swordfish", "protected": True}
    await forge.root.post(f"{project.url}/variables", variable)
    await project.commit(ONE_JOB + "spy: {script: echo, rules: [{if: $SECRET == 'swordfish'}]}\n")
    assert await jobs(project.api, "content_ref=topic&dry_run_ref=main") == (True, [], ["build"])
