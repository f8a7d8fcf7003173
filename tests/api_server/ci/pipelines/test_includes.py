"""Configurations that include other files, compare commits or have inputs, and dry runs of configurations."""

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from api_server.ci.config.context import RemoteFile
from api_server.ci.config.pipeline import NO_JOBS
from api_server.ci.config.yaml_text import MAX_BYTES
from api_server.ci.pipelines import planning
from api_server.ci.pipelines.planning import RemoteFiles
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from common.concurrency import ConcurrencyLimiter
from tests.support.ci import ONE_JOB, CiProject, ci_project
from tests.support.forge import Client, Forge, SharedForges
from tests.support.git_client import Git, git_url
from tests.support.waiting import until

SHARED = "shared:\n  script: echo\n"


async def verdict(project: CiProject, text: str, by: Client | None = None) -> dict[str, Any]:
    body = {"content": text, "include_jobs": True}
    answer = await (by or project.api).post(f"{project.url}/ci/lint", body, expect=200)
    return dict(answer.body)


async def test_files_of_another_project_are_read_with_the_rights_of_who_makes_the_pipeline(
    forge: Forge,
) -> None:
    library, project = await ci_project(forge), await ci_project(forge)
    await library.commit(SHARED, path="ci/shared.yml", branch="main")
    await library.commit("include: ci/shared.yml\nold:\n  script: echo\n", path="all.yml", branch="v1")
    text = f"include: {{project: {library.path}, file: %s}}\n"
    refused = (
        f"Project `{library.path}` not found or access denied! "
        "Make sure any includes in the pipeline configuration are correctly defined."
    )
    assert (await verdict(project, text % "ci/shared.yml"))["errors"] == [refused]
    await forge.member("projects", library.id, project.developer, Role.GUEST)
    assert (await verdict(project, text % "ci/shared.yml"))["errors"] == [refused], "guests read no files"
    member = f"{library.url}/members/{project.developer.id}"
    assert (await forge.root.put(member, {"access_level": Role.REPORTER})).status == 200
    seen = await verdict(project, text % "all.yml, ref: v1")
    assert {job["name"] for job in seen["jobs"]} == {"shared", "old"}
    first, second = seen["includes"]
    assert (first["type"], first["location"], first["extra"]) == (
        "file",
        "all.yml",
        {"project": library.path, "ref": "v1"},
    )
    assert (first["context_project"], second["type"], second["context_project"]) == (
        project.path,
        "local",
        library.path,
    )
    pipeline = await project.pipeline(text % "ci/shared.yml")
    assert set(await project.jobs(pipeline)) == {"shared"}
    for missing, said in {
        "no.yml": "file `no.yml` does not exist!",
        "all.yml, ref: gone": "reference `gone` does not exist!",
    }.items():
        errors = (await verdict(project, text % missing))["errors"]
        assert errors == [f"Project `{library.path}` {said}"]


@attrs.define
class Site:
    """A web server whose pages a test writes."""

    url: str = ""
    pages: dict[str, Callable[[web.Request], Any]] = attrs.field(factory=dict)
    asked: list[str] = attrs.field(factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path_qs)
        answered = self.pages[request.path](request)
        return web.Response(body=answered) if isinstance(answered, bytes) else await answered


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    app = web.Application()
    app.router.add_get("/{path:.*}", made.answer)
    async with TestServer(app) as server:
        made.url = str(server.make_url("")).rstrip("/")
        yield made


@pytest.fixture(scope="module")
async def calling(shared_forge: SharedForges) -> CiProject:
    """A project of a server that may call local addresses."""
    return await ci_project(await shared_forge(allow_local_requests=True))


async def test_files_of_the_web_are_fetched_once_each_and_as_often_as_they_name_others(
    calling: CiProject, site: Site
) -> None:
    site.pages = {
        "/a.yml": lambda _: f"include: {site.url}/deep.yml\na: {{script: x}}".encode(),
        "/b.yml": lambda _: b"b: {script: x}",
        "/deep.yml": lambda _: b"deep: {script: x}",
        "/moved.yml": moved,
    }
    text = f"include: [{site.url}/a.yml, {site.url}/b.yml, {site.url}/a.yml, {site.url}/moved.yml]\n"
    pipeline = await calling.pipeline(text)
    assert set(await calling.jobs(pipeline)) == {"a", "b", "deep"}
    assert sorted(site.asked) == ["/a.yml", "/b.yml", "/b.yml", "/deep.yml", "/moved.yml"]
    shown = (await verdict(calling, f"include: {site.url}/b.yml"))["includes"]
    assert [(one["type"], one["location"], one["raw"], one["blob"]) for one in shown] == [
        ("remote", f"{site.url}/b.yml", f"{site.url}/b.yml", None)
    ]


async def test_a_url_and_a_redirect_of_it_are_asked_for_as_they_are_written(
    calling: CiProject, site: Site
) -> None:
    async def signed(_: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "/%7Esigned.yml?sig=a%2Fb%3D"})

    site.pages = {"/~e.yml": signed, "/~signed.yml": lambda _: b"b: {script: x}"}
    said = await verdict(calling, f"include: '{site.url}/%7Ee.yml?sp=%2Frun&sig=a%2Bb%3D'")
    assert (said["valid"], said["errors"]) == (True, [])
    assert site.asked == ["/%7Ee.yml?sp=%2Frun&sig=a%2Bb%3D", "/%7Esigned.yml?sig=a%2Fb%3D"]
    assert said["includes"][0]["location"] == f"{site.url}/%7Ee.yml"


async def moved(_: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/b.yml")


async def gone(_: web.Request) -> web.StreamResponse:
    raise web.HTTPNotFound


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        while True:
            await response.write(b"#" * 65_536)
    return response


async def silent(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def round_and_round(request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound(request.path)


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (gone, "could not be fetched because of HTTP code `404` error!"),
        (endless, f"is too big: more than {MAX_BYTES} bytes!"),
        (round_and_round, "could not be fetched because of HTTP error!"),
        (lambda _: b" ", "is empty!"),
    ],
)
async def test_a_file_of_the_web_that_does_not_come_is_named_without_its_secrets(
    calling: CiProject, site: Site, page: Any, problem: str
) -> None:
    site.pages = {"/ci.yml": page}
    url = f"{site.url}/ci.yml".replace("://", "://me:hidden@")
    said = await verdict(calling, f"include: '{url}?token=hidden&x=.yml'")
    assert (said["valid"], said["errors"]) == (False, [f"Remote file `{site.url}/ci.yml` {problem}"])


async def test_a_server_that_does_not_answer_is_waited_for_so_long(calling: CiProject, site: Site) -> None:
    site.pages = {"/ci.yml": silent}
    url = f"{site.url}/ci.yml"
    fetched = await RemoteFiles(calling.forge.server.app[SERVICES], file_seconds=0.05).fetch([url], 1)
    assert fetched == {url: RemoteFile(problem="could not be fetched because of a timeout error!")}


async def test_a_project_whose_files_do_not_come_leaves_others_their_turn(
    calling: CiProject, site: Site
) -> None:
    site.pages = {"/0.yml": silent, "/1.yml": silent, "/b.yml": lambda _: b"b: {script: x}"}
    files = RemoteFiles(calling.forge.server.app[SERVICES], limiter=ConcurrencyLimiter(2, 1, timeout=5))
    stuck = asyncio.create_task(files.fetch([f"{site.url}/{n}.yml" for n in range(2)], 1))
    await until(lambda: site.asked)
    url = f"{site.url}/b.yml"
    assert await files.fetch([url], 2) == {url: RemoteFile(content=b"b: {script: x}")}
    stuck.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stuck


async def test_all_files_together_are_bounded_before_they_are_kept(calling: CiProject, site: Site) -> None:
    site.pages = {f"/{n}.yml": lambda _: b".a: {}\n" + b"#" * 1_000_000 for n in range(5)}
    text = f"include: [{', '.join(f'{site.url}/{n}.yml' for n in range(5))}]"
    (error,) = (await verdict(calling, text))["errors"]
    assert error.endswith(f"is too much: all are more than {4 * 1024 * 1024} bytes!")


async def test_the_bytes_are_those_that_the_file_names(calling: CiProject, site: Site) -> None:
    content = b"a: {script: x}"
    site.pages = {"/ci.yml": lambda _: content}
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    text = f"include: {{remote: '{site.url}/ci.yml', integrity: 'sha256-{digest}'}}"
    assert (await verdict(calling, text))["valid"]
    content += b" "
    assert (await verdict(calling, text))["errors"] == [
        f"Remote file `{site.url}/ci.yml` is not the one that include:integrity names!"
    ]


async def test_masked_variables_reach_the_url_and_nobody_else(calling: CiProject, site: Site) -> None:
    site.pages = {"/ci.yml": lambda _: b"x: ["}
    variable = {"key": "TOKEN", "value": "hidden-value", "masked": True}
    await calling.forge.root.post(f"{calling.url}/variables", variable, expect=201)
    said = await verdict(calling, f"include: '{site.url}/ci.yml?token=$TOKEN&x=.yml'")
    assert site.asked == ["/ci.yml?token=hidden-value&x=.yml"]
    assert (said["valid"], "hidden-value" in str(said)) == (False, False)


async def test_addresses_that_the_instance_does_not_call_are_not_called(forge: Forge, site: Site) -> None:
    project = await ci_project(forge)
    said = await verdict(project, f"include: {site.url}/ci.yml")
    assert said["errors"] == [
        f"Remote file `{site.url}/ci.yml` could not be fetched because it is blocked: "
        "Requests to loopback addresses are not allowed!"
    ]
    assert site.asked == []
    scheme = await verdict(project, "include: ftp://example.org/ci.yml")
    assert "Only allowed schemes are http, https" in scheme["errors"][0]


async def test_changes_are_those_since_the_history_left_a_branch(forge: Forge) -> None:
    project = await ci_project(forge)
    await project.commit("mine", path="docs/mine.md", branch="topic")
    await project.commit("theirs", path="src/theirs.md", branch="main")
    await project.commit("later", path="later.md", branch="topic")
    text = "".join(
        f"{name}: {{script: x, rules: [{{changes: {{paths: ['{path}'], compare_to: {base}}}}}]}}\n"
        for name, path, base in (
            ("docs", "docs/*", "main"),
            ("src", "src/*", "refs/heads/main"),
            ("all", "**", "topic"),
        )
    )
    pipeline = await project.pipeline(text)
    assert set(await project.jobs(pipeline)) == {"docs"}
    await project.api.post(f"{project.url}/pipeline", {"ref": "topic"}, expect=201)
    await project.commit(text.replace("compare_to: main", "compare_to: gone"))
    refused = await project.api.post(f"{project.url}/pipeline", {"ref": "topic"})
    assert refused.body == {"message": {"base": ["rules:changes:compare_to is not a valid ref"]}}


async def test_lint_says_what_is_wrong_and_what_a_text_would_give(forge):
    project = await ci_project(forge)
    await project.commit("inner:\n  script: echo\n", path="more.yml", branch="main")
    bad = await project.api.post(f"{project.url}/ci/lint", {"content": "build: {skript: a}"})
    assert (bad.status, bad.body["valid"]) == (200, False)
    assert bad.body["errors"] == ["jobs build config should implement a script: or a trigger: keyword"]
    good = await project.api.post(
        f"{project.url}/ci/lint",
        {"content": "include: more.yml\nbuild: {script: make}", "include_jobs": True},
    )
    assert (good.body["valid"], good.body["errors"], good.body["warnings"]) == (True, [], [])
    (included,) = good.body["includes"]
    sha = included["context_sha"]
    at = f"{forge.settings.base_url}/{project.path}/-"
    assert included == {
        "type": "local",
        "location": "more.yml",
        "blob": f"{at}/blob/{sha}/more.yml",
        "raw": f"{at}/raw/{sha}/more.yml",
        "extra": {},
        "context_project": project.path,
        "context_sha": sha,
    }
    twice = {"content": "build: {script: a, script: make}", "include_jobs": True}
    warned = (await project.api.post(f"{project.url}/ci/lint", twice)).body
    assert (warned["valid"], warned["jobs"][0]["script"]) == (True, ["make"])
    assert warned["warnings"] == ["The key script is given twice, again at line 1: the last one counts"]
    assert "script: make" in good.body["merged_yaml"]
    assert {job["name"]: job["script"] for job in good.body["jobs"]} == {"inner": ["echo"], "build": ["make"]}
    filtered = {"content": "build: {script: make, rules: [{if: $NEVER}]}"}
    assert (await project.api.post(f"{project.url}/ci/lint", filtered)).body["valid"] is True
    dry = await project.api.post(f"{project.url}/ci/lint", filtered | {"dry_run": True})
    assert (dry.body["valid"], dry.body["errors"]) == (False, [NO_JOBS])
    text = "a: {stage: build, script: x, rules: [{if: $NEVER}]}\nb: {script: x, when: manual, needs: [a]}"
    static = (await project.api.post(f"{project.url}/ci/lint", {"content": text, "include_jobs": True})).body
    assert (static["valid"], static["errors"]) == (True, [])
    assert [(job["name"], job["when"], job["allow_failure"], job["needs"]) for job in static["jobs"]] == [
        ("a", "on_success", False, None),
        ("b", "manual", True, [{"name": "a"}]),
    ]
    dry = await project.api.post(f"{project.url}/ci/lint", {"content": text, "dry_run": True})
    assert [error.partition(". ")[0] for error in dry.body["errors"]] == [
        "'b' job needs 'a' job, but 'a' does not exist in the pipeline"
    ]


async def test_expressions_of_a_file_take_a_bounded_time(forge, monkeypatch):
    project = await ci_project(forge)

    async def errors(expressions):
        content = "a: {script: b, only: [" + ", ".join(f"'{text}'" for text in expressions) + "]}"
        answer = await project.api.post(f"{project.url}/ci/lint", {"content": content}, expect=200)
        return answer.body["errors"]

    ref = "jobs:a:only config should be an array of strings or regular expressions using re2 syntax"
    assert await errors([f"/^v{number}/" for number in range(900)]) == []
    assert await errors([rf"/\pL{{400}}{number}/" for number in range(10)]) == [ref]
    assert await errors([f"/^w{number}/" for number in range(1001)]) == [
        "There are more than 1000 different regular expressions and path patterns"
    ]
    monkeypatch.setattr(planning, "EXPRESSION_SECONDS", 0.001)
    assert await errors([rf"/\pL{{2}}{number}/" for number in range(100)]) == [
        "Regular expressions and path patterns take too long; try simpler ones, or later"
    ]


async def test_a_text_without_a_commit_uses_its_own_projects_allowance(forge, monkeypatch):
    monkeypatch.setattr(planning, "EXPRESSION_SECONDS_A_MINUTE", 0.001)
    user = await forge.user("alice", admin=True)

    async def errors(project, expressions):
        content = "a: {script: b, only: [" + ", ".join(f"'{text}'" for text in expressions) + "]}"
        return (await user.api.post(f"/projects/{project['id']}/ci/lint", {"content": content})).body[
            "errors"
        ]

    first, other = await forge.project(), await forge.project()
    assert await errors(first, [rf"/\pL{{3}}{number}/" for number in range(100)]) != []
    assert await errors(first, ["/^never seen/"]) != []
    assert await errors(other, ["/^not seen/"]) == []


async def test_lint_of_the_projects_own_file(forge):
    project = await ci_project(forge)
    nothing = await project.api.get(f"{project.url}/ci/lint")
    assert (nothing.body["valid"], nothing.body["errors"]) == (False, ["Missing CI config file"])
    await project.commit(ONE_JOB, branch="topic")
    assert (await project.api.get(f"{project.url}/ci/lint?content_ref=topic")).body["valid"] is True


async def test_each_user_tries_files_out_so_often_in_a_minute(forge: Forge):
    with forge.changed_settings(lint_rate_limit=2):
        project = await forge.project()
        url = f"/projects/{project['id']}/ci/lint"
        developer = await forge.new_member(project["id"], Role.DEVELOPER)
        answers = [
            await developer.api.post(url, {"content": "a: {script: b}"}),
            await developer.api.get(url),
            await developer.api.post(url, {"content": "a: {script: b}"}),
            await developer.api.get(url),
        ]
        assert [answer.status for answer in answers] == [200, 200, 429, 429]
        text = "This endpoint has been requested too many times. Try again later."
        assert answers[2].body == {"message": {"error": text}}
        assert 0 < int(answers[2].headers["Retry-After"]) <= 60
        other = await forge.user("other", admin=True)
        assert (await other.api.post(url, {"content": "a: {script: b}"})).status == 200


TEXT = """
spec:
  inputs:
    strategy: {options: [canary, blue-green], default: canary}
    replicas: {type: number, default: 1}
    dry: {type: boolean, default: false}
    steps: {type: array, default: [make]}
---
"$[[ inputs.strategy ]] $[[ inputs.replicas ]] $[[ inputs.dry ]]": {script: "$[[ inputs.steps ]]"}
"""
VALUES = {"strategy": "blue-green", "replicas": 3, "dry": True, "steps": ["a", "b"]}
JOB = "blue-green 3 true"


async def scripts_of(project: CiProject, pipeline_id: int) -> dict[str, Any]:
    rows = await project.forge.database.rows(
        "SELECT name, plan -> 'script' AS script FROM jobs WHERE pipeline_id = %(id)s", id=pipeline_id
    )
    return {row.name: orjson.loads(row.script) for row in rows}


async def test_a_pipeline_is_made_with_inputs_whatever_it_may_be_given_as_variables(forge: Forge) -> None:
    project = await ci_project(forge)
    await forge.root.put(project.url, {"ci_pipeline_variables_minimum_override_role": "no_one_allowed"})
    pipeline = await project.pipeline(TEXT, inputs=VALUES)
    assert await scripts_of(project, pipeline["id"]) == {JOB: ["a", "b"]}
    (job,) = (await project.jobs(pipeline)).values()
    await project.api.post(f"{project.url}/jobs/{job['id']}/cancel", expect=201)
    await project.api.post(f"{project.url}/pipelines/{pipeline['id']}/retry", expect=201)
    assert set(await scripts_of(project, pipeline["id"])) == {JOB}
    form = {"ref": "topic", "inputs[replicas]": "2", "inputs[dry]": "true", "inputs[steps]": '["c"]'}
    sent = await project.api.post(f"{project.url}/pipeline", data=form)
    assert await scripts_of(project, sent.body["id"]) == {"canary 2 true": ["c"]}


@pytest.mark.parametrize(
    ("inputs", "body"),
    [
        ({"strategy": "manual"}, "`strategy` input: `manual` cannot be used because "
         "it is not in the list of allowed options"),
        ({"replicas": "x", "dry": 1}, "`replicas` input: provided value is not a number, "
         "`dry` input: provided value is not a boolean"),
        ({"other": "x"}, "unknown input arguments: other"),
        ({str(number): 1 for number in range(21)}, "A pipeline can take up to 20 inputs"),
        ({"strategy": "\0"}, "Inputs cannot have a NUL character"),
    ],
)  # fmt: skip
async def test_inputs_that_do_not_fit_are_refused(
    project: CiProject, inputs: dict[str, Any], body: str
) -> None:
    if project.texts.get("topic") != TEXT:
        await project.pipeline(TEXT)
    answer = await project.api.post(f"{project.url}/pipeline", {"ref": "topic", "inputs": inputs})
    assert (answer.status, answer.body) == (400, {"message": {"base": [body]}})


async def test_a_trigger_takes_inputs(forge: Forge) -> None:
    project = await ci_project(forge)
    await project.commit(TEXT)
    trigger = await forge.root.post(f"{project.url}/triggers", {"description": "x"}, expect=201)
    sent = {"token": trigger.body["token"], "ref": "topic", "inputs": VALUES}
    fired = await forge.anonymous.post(f"{project.url}/trigger/pipeline", sent)
    assert await scripts_of(project, fired.body["id"]) == {JOB: ["a", "b"]}
    refused = await forge.anonymous.post(f"{project.url}/trigger/pipeline", sent | {"inputs": {"x": 1}})
    assert (refused.status, refused.body) == (
        400,
        {"message": {"base": ["unknown input arguments: x"]}},
    )


async def test_bridges_pass_inputs_on(forge: Forge) -> None:
    project, other = await ci_project(forge), await ci_project(forge)
    await forge.root.post(
        f"{other.url}/members", {"user_id": project.developer.id, "access_level": 30}, expect=201
    )
    await other.commit(TEXT)
    await project.commit(TEXT, path="child.yml")
    pipeline = await project.pipeline(
        "child: {trigger: {include: [{local: child.yml, inputs: {strategy: blue-green, replicas: 3}}]}}\n"
        f"other: {{trigger: {{project: {other.path}, branch: topic, inputs: {{dry: true, steps: ['é 😀']}}}}}}\n"
        f"wrong: {{trigger: {{project: {other.path}, branch: topic, inputs: {{nothing: 1}}}}}}\n"
    )

    async def are_started() -> bool:
        bridges = await project.bridges(pipeline)
        return all(bridge["status"] in ("success", "failed") for bridge in bridges.values())

    await until(are_started)
    bridges = await project.bridges(pipeline)
    assert {name: bridge["status"] for name, bridge in bridges.items()} == {
        "child": "success",
        "other": "success",
        "wrong": "failed",
    }
    made = {name: bridges[name]["downstream_pipeline"]["id"] for name in ("child", "other")}
    assert await scripts_of(project, made["child"]) == {"blue-green 3 false": ["make"]}
    assert await scripts_of(other, made["other"]) == {"canary 1 true": ["é 😀"]}
    refused = bridges["wrong"]["downstream_pipeline"]
    shown = (await other.api.get(f"{other.url}/pipelines/{refused['id']}")).body
    assert (shown["status"], shown["source"], shown["yaml_errors"]) == (
        "failed",
        "pipeline",
        "unknown input arguments: nothing",
    )


async def test_a_push_has_inputs_as_options(forge: Forge, tmp_path: Path) -> None:
    project = await ci_project(forge)
    git = Git(tmp_path / "work")
    await git.init()
    sha = await git.commit_files({".gitlab-ci.yml": TEXT})
    options = ["strategy=blue-green", "replicas=3", "dry=true", 'steps=["a", "b"]']
    arguments = [argument for option in options for argument in ("-o", f"ci.input={option}")]
    await git("push", "-q", *arguments, git_url(forge, project.path, project.developer), "HEAD:refs/heads/a")
    (pipeline,) = await project.api.until(f"{project.url}/pipelines?sha={sha}")
    assert await scripts_of(project, pipeline["id"]) == {JOB: ["a", "b"]}
    await git(
        "push",
        "-q",
        "-o",
        "ci.input=x=1",
        git_url(forge, project.path, project.developer),
        "HEAD:refs/heads/b",
    )
    (failed,) = await project.api.until(f"{project.url}/pipelines?ref=b")
    shown = (await project.api.get(f"{project.url}/pipelines/{failed['id']}")).body
    assert (shown["status"], shown["yaml_errors"]) == ("failed", "unknown input arguments: x")


async def test_the_lint_route_knows_no_inputs(project: CiProject) -> None:
    text = "spec: {inputs: {a: , b: {default: x}}}\n---\nj: {script: '$[[ inputs.a ]]'}"
    answer = await project.api.post(f"{project.url}/ci/lint", {"content": text})
    assert (answer.body["valid"], answer.body["errors"]) == (
        False,
        ["`a` input: required value has not been provided"],
    )
    good = await project.api.post(
        f"{project.url}/ci/lint", {"content": text.replace("a: ,", "a: {default: ':y'},")}
    )
    assert (good.body["valid"], good.body["merged_yaml"]) == (True, "j:\n  script: ':y'\n")
