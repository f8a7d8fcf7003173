"""The built-in runner: rule files, played jobs, and their results."""

import asyncio
import gzip
import io
import json
import re
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import gitlab
import pytest

from api_server.testing import OWN_AGENT
from api_server.testing.failures import _FIELDS, ordered
from api_server.testing.journal import MAX_BODY_BYTES, MAX_BYTES, MAX_REQUESTS
from common.config_errors import ConfigError
from forgelet.local.runner import (
    FIELDS,
    MAX_JOBS,
    PREFIX,
    BuiltInRunner,
    Played,
    Rule,
    Rules,
    Upload,
    played,
    read_rules,
    uploads,
)
from forgelet.testing.api import Api, Connections
from tests.support.checkout import CHECKOUT
from tests.support.ci import CiProject, ci_project
from tests.support.clock import MovedClock, forge_with_clock
from tests.support.forge import Forge
from tests.support.waiting import until

RULES = Rules(
    (
        Rule({"name": "flaky *"}, {"result": "failed", "exit_code": 42}),
        Rule({"name": "sleep"}, {"duration": 600.0}),
    )
)


@attrs.frozen
class Scene:
    forge: Forge
    clock: MovedClock
    #: The runner's token, as `up` stores it.
    kept: dict[str, str]

    async def ended(self, project: CiProject, text: str, **values: Any) -> tuple[str, dict[str, Any]]:
        """Return the status of a finished pipeline, and its jobs."""
        pipeline = await project.pipeline(text, **values)
        await self.reaches(project, pipeline, "success", "failed", "canceled", "manual")
        return await project.status(pipeline), await project.jobs(pipeline)

    async def reaches(self, project: CiProject, pipeline: dict[str, Any], *statuses: str) -> None:
        async def there() -> bool:
            return await project.status(pipeline) in statuses

        await until(there)


@pytest.fixture(scope="module")
async def scene(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    kept: dict[str, str] = {}
    folder = tmp_path_factory.mktemp("built_in")
    # A runner that was removed waits until the end of its poll.
    polls = {"runner_poll_timeout": 2}
    async with forge_with_clock(new_database(), folder, testing=True, **polls) as (forge, clock):
        runner = BuiltInRunner(
            Api(Connections(forge.base, user_agent=OWN_AGENT), str(forge.root.token)),
            RULES,
            kind={"runner_type": "instance_type", "description": "Built-in runner", "tag_list": ["*"]},
            recall=lambda: kept.get("token"),
            remember=lambda token: kept.update(token=token),
        )
        working = runner.working()
        await asyncio.to_thread(working.__enter__)
        yield Scene(forge, clock, kept)
        await asyncio.to_thread(working.__exit__, None, None, None)


@pytest.fixture(scope="module")
async def project(scene: Scene) -> CiProject:
    return await ci_project(scene.forge)


async def test_stages_needs_tags_and_what_may_fail(scene: Scene, project: CiProject) -> None:
    text = """
stages: [build, test, deploy]
build 1/2: {stage: build, script: make, tags: [docker, windows]}
build 2/2: {stage: build, script: make}
flaky test: {stage: test, script: make test, allow_failure: {exit_codes: 42}}
lint: {stage: test, needs: [build 1/2], script: lint}
deploy: {stage: deploy, needs: [lint], script: [./deploy, echo done]}
ask: {stage: deploy, when: manual, script: ask}
"""
    status, jobs = await scene.ended(project, text)
    assert status == "success"
    assert {name: job["status"] for name, job in jobs.items()} == {
        "build 1/2": "success", "build 2/2": "success", "flaky test": "failed", "lint": "success",
        "deploy": "success", "ask": "manual",
    }  # fmt: skip
    log = await project.api.get(f"{project.url}/jobs/{jobs['deploy']['id']}/trace")
    assert log.body == (
        "Played by the built-in runner; no command is executed.\n$ ./deploy\n$ echo done\nJob succeeded\n"
    )
    assert jobs["deploy"]["runner"]["description"] == "Built-in runner"
    log = await project.api.get(f"{project.url}/jobs/{jobs['flaky test']['id']}/trace")
    assert log.body.endswith("ERROR: Job failed: exit code 42\n")
    await project.api.post(f"{project.url}/jobs/{jobs['ask']['id']}/play")

    async def played() -> bool:
        return bool((await project.jobs({"id": jobs["ask"]["pipeline"]["id"]}))["ask"]["status"] == "success")

    await until(played)


async def test_variables_say_how_a_job_ends(scene: Scene, project: CiProject) -> None:
    text = """
first: {stage: build, script: a, variables: {FORGELET_RESULT: runner_system_failure}}
second: {stage: build, script: b, allow_failure: true, variables: {FORGELET_LOG: "no more\\n", FORGELET_RESULT: failed}}
third: {stage: build, script: c, allow_failure: true, variables: {FORGELET_DURATION: tomorrow}}
never: {stage: test, script: d}
"""
    status, jobs = await scene.ended(project, text)
    assert status == "failed"
    assert {name: (job["status"], job.get("failure_reason")) for name, job in jobs.items()} == {
        "first": ("failed", "runner_system_failure"),
        "second": ("failed", "script_failure"),
        "third": ("failed", "runner_system_failure"),
        "never": ("skipped", None),
    }
    logs = {
        name: (await project.api.get(f"{project.url}/jobs/{job['id']}/trace")).body
        for name, job in jobs.items()
    }
    assert logs["second"] == "no more\n"
    assert logs["third"].startswith("ERROR: Job failed: FORGELET_DURATION has to be a number of seconds")
    given = [{"key": "FORGELET_RESULT", "value": "success"}]
    status, _ = await scene.ended(project, text, variables=given)
    assert status == "success"


async def test_python_gitlab_downloads_what_a_job_has_left(scene: Scene, project: CiProject) -> None:
    text = """
build:
  script: make
  variables:
    FORGELET_ARTIFACTS: '{"dist/app.js": "let it = 1", "junit.xml": "<testsuite><testcase/></testsuite>"}'
  artifacts: {paths: [dist], expire_in: 1 week, reports: {junit: junit.xml}}
bare: {script: make, variables: {FORGELET_ARTIFACTS: '{"a/b.txt": "c"}'}}
"""
    status, jobs = await scene.ended(project, text)
    assert status == "success"

    def use() -> None:
        with gitlab.Gitlab(scene.forge.base, private_token=project.developer.token) as client:
            found = client.projects.get(project.id)
            build = found.jobs.get(jobs["build"]["id"])
            assert {one["file_type"] for one in build.attributes["artifacts"]} >= {
                "archive",
                "junit",
                "trace",
            }
            assert build.artifacts_expire_at is not None
            with zipfile.ZipFile(io.BytesIO(build.artifacts())) as archive:  # type: ignore[operator]
                assert archive.namelist() == ["dist/app.js"]
            assert build.artifact("dist/app.js") == b"let it = 1"
            assert found.jobs.get(jobs["bare"]["id"]).artifact("a/b.txt") == b"c"
            report = found.pipelines.get(build.pipeline["id"]).test_report.get()
            assert report.total_count == 1

    await asyncio.to_thread(use)


async def test_a_job_lasts_by_the_services_clock(scene: Scene, project: CiProject) -> None:
    text = "sleep: {script: sleep}\nquick: {script: echo}\n"
    pipeline = await project.pipeline(text)

    async def quick_is_done() -> bool:
        jobs = await project.jobs(pipeline)
        return (jobs["sleep"]["status"], jobs["quick"]["status"]) == ("running", "success")

    await until(quick_is_done)
    scene.clock.move(seconds=599)
    assert (await project.jobs(pipeline))["sleep"]["status"] == "running"
    scene.clock.move(seconds=1)
    await scene.reaches(project, pipeline, "success")
    assert (await project.jobs(pipeline))["sleep"]["duration"] == 600
    late = await project.pipeline("sleep: {script: sleep, timeout: 5 minutes}")
    await scene.reaches(project, late, "running")
    scene.clock.move(minutes=5)
    await scene.reaches(project, late, "failed")
    job = (await project.jobs(late))["sleep"]
    assert (job["failure_reason"], job["duration"]) == ("job_execution_timeout", 300)


async def test_a_canceled_job_is_let_go_of_and_the_next_is_played(scene: Scene, project: CiProject) -> None:
    pipeline = await project.pipeline("sleep: {script: sleep}")
    await scene.reaches(project, pipeline, "running")
    canceled = await project.api.post(f"{project.url}/pipelines/{pipeline['id']}/cancel")
    assert canceled.status == 200, canceled
    assert await project.status(pipeline) == "canceled"
    status, _ = await scene.ended(project, "quick: {script: echo}")
    assert status == "success"


async def test_a_runner_that_was_removed_comes_back(scene: Scene, project: CiProject) -> None:
    token = scene.kept["token"]
    (runner,) = (await scene.forge.root.get("/runners/all")).body
    assert (await scene.forge.root.delete(f"/runners/{runner['id']}")).status == 204
    status, _ = await scene.ended(project, "again: {script: echo}")
    assert status == "success"
    assert scene.kept["token"] != token
    listed = (await scene.forge.root.get("/runners/all")).body
    assert [one["tag_list"] for one in [await one_runner(scene, one["id"]) for one in listed]] == [["*"]]


async def one_runner(scene: Scene, runner_id: int) -> dict[str, Any]:
    return dict((await scene.forge.root.get(f"/runners/{runner_id}")).body)


async def test_what_it_asks_is_not_in_the_journal(scene: Scene) -> None:
    for path in ("/api/v4/jobs/request", "/api/v4/jobs/*", "/api/v4/job"):
        seen = await scene.forge.anonymous.get(f"{scene.forge.base}/-/testing/requests?path={path}")
        assert (seen.status, seen.body) == (200, [])


RULE_FILE = """
# the first that fits counts
- project: shop/*
  name: "deploy*"
  ref: main
  result: runner_system_failure
  duration: 90
- stage: test
  result: failed
  exit_code: 3
  log: |
    2 tests failed
  artifacts:
    report.xml: <testsuite/>
- duration: 0.5
"""
JOB = {"CI_PROJECT_PATH": "shop/web/app", "CI_JOB_NAME": "deploy 1/2", "CI_JOB_STAGE": "test"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"CI_COMMIT_REF_NAME": "main"}, Played(result="runner_system_failure", duration=90.0)),
        (
            {"CI_COMMIT_REF_NAME": "other"},
            Played(
                result="failed", exit_code=3, log="2 tests failed\n", artifacts={"report.xml": "<testsuite/>"}
            ),
        ),
        ({"CI_JOB_STAGE": "build"}, Played(duration=0.5)),
        (
            {"CI_JOB_STAGE": "build", "FORGELET_DURATION": "2", "FORGELET_LOG": "x"},
            Played(duration=2.0, log="x"),
        ),
        (
            {"CI_COMMIT_REF_NAME": "main", "FORGELET_RESULT": "success"},
            Played(result="success", duration=90.0),
        ),
        (
            {"CI_JOB_STAGE": "x", "FORGELET_ARTIFACTS": '{"a/b": "c"}', "FORGELET_EXIT_CODE": "7"},
            Played(duration=0.5, artifacts={"a/b": "c"}, exit_code=7),
        ),
    ],
)
def test_the_first_rule_that_fits_counts_and_variables_before_it(
    tmp_path: Path, variables: dict[str, str], expected: Played
) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(RULE_FILE)
    job = JOB | variables
    assert played(job, read_rules(file).values_for(job)) == expected


def test_what_comes_of_a_result() -> None:
    assert (Played().failure_reason, Played().script_exit_code) == (None, None)
    failed = Played(result="failed")
    assert (failed.failure_reason, failed.script_exit_code) == ("script_failure", 1)
    lost = Played(result="stuck_or_timeout_failure", exit_code=3)
    assert (lost.failure_reason, lost.script_exit_code) == ("stuck_or_timeout_failure", None)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("name: x", 1, "the rules have to be a list, each beginning with '- '"),
        ("- name: x\n- just text", 2, "a rule has to be keys and values, such as 'name: deploy'"),
        ("- name: x\n  reslut: failed", 2, "a rule has no 'reslut'; did you mean result?"),
        (
            "- name: x\n  colour: red",
            2,
            "a rule has no 'colour'; did you mean project, name, stage, ref, result",
        ),
        (
            "- name: x\n  result: broken",
            2,
            "result has to be success, failed or a reason to fail: api_failure",
        ),
        ("\n- name: x\n\n  duration: long", 4, "duration has to be a number of seconds from 0 to 604800"),
        ("- exit_code: 256", 1, "exit_code has to be a whole number from 0 to 255"),
        ("- ref: 1.10", 1, "ref has to be a text, in which * stands for anything; put it in quotes"),
        ("- log: [a]", 1, "log has to be a text"),
        ("- artifacts:\n    ../x: y", 2, "artifacts: '../x' is no path of a file in the job's folder"),
        ("- name: x\n  name: y", 2, "name is there twice"),
        ("- name: {", 1, "this is not valid YAML"),
        (
            "- name: !!python/object:os.system x",
            1,
            "this is not valid YAML: could not determine a constructor",
        ),
        ("- name: \0", 0, "this is not valid YAML"),
    ],
)
def test_a_wrong_rule_is_told_in_a_sentence_with_its_line(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(text)
    with pytest.raises(ConfigError) as problem:
        read_rules(file)
    where = f"{file}:{line}: " if line else f"{file}: "
    assert problem.value.message.startswith(where + words)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"The rules of the runner cannot be read: No such file or directory: .*/none"
    ):
        read_rules(tmp_path / "none")
    (tmp_path / "empty.yml").write_text("# nothing yet\n")
    assert read_rules(tmp_path / "empty.yml").rules == ()
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    with pytest.raises(ConfigError, match="are not UTF-8"):
        read_rules(tmp_path / "binary")


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("FORGELET_RESULT", "maybe", "FORGELET_RESULT has to be success, failed or a reason to fail"),
        ("FORGELET_EXIT_CODE", "-1", "FORGELET_EXIT_CODE has to be a whole number from 0 to 255"),
        ("FORGELET_DURATION", "soon", "FORGELET_DURATION has to be a number of seconds"),
        ("FORGELET_DURATION", "nan", "FORGELET_DURATION has to be a number of seconds"),
        ("FORGELET_ARTIFACTS", "[", "FORGELET_ARTIFACTS is not valid JSON"),
        ("FORGELET_ARTIFACTS", '{"a": 1}', "FORGELET_ARTIFACTS has to be texts by their paths"),
    ],
)
def test_a_wrong_variable_is_told(variable: str, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        played({variable: text}, {})


PAGE = (CHECKOUT / "docs/testing.md").read_text()


def shown(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_rules(tmp_path: Path) -> None:
    (example,) = [block for block in shown("yaml") if "exit_code" in block]
    file = tmp_path / "rules.yml"
    file.write_text(example)
    assert len(read_rules(file).rules) == 2
    for name in FIELDS:
        assert f"`{PREFIX}{name.upper()}`, `{name}`" in PAGE
    assert f"up to {MAX_JOBS} side by side" in PAGE


def test_the_failures() -> None:
    (example,) = [json.loads(block) for block in shown("json") if '"cut"' in block]
    assert [ordered(one)["times"] for one in example] == [1, 3, 1, 1]
    for name in _FIELDS:
        assert f"`{name}`" in PAGE


def test_the_bounds_of_the_journal() -> None:
    said = " ".join(PAGE.split())
    assert f"The last {MAX_REQUESTS:,} requests are kept, of {MAX_BYTES >> 20} MiB" in said
    assert f"more than {MAX_BODY_BYTES >> 10} KiB" in said


FILES = {"dist/app.js": "app", "dist/app.map": "map", "report.xml": "<testsuite/>", "notes.txt": "n"}


def of(wanted: list[dict[str, Any]] | None, *, succeeds: bool = True) -> list[Upload]:
    return list(uploads(wanted, FILES, succeeds=succeeds))


def names(upload: Upload) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(upload.content)) as archive:
        return archive.namelist()


def archive(**values: Any) -> dict[str, Any]:
    return {"artifact_type": "archive", "artifact_format": "zip", "when": "on_success"} | values


def test_everything_goes_into_an_archive_where_the_job_names_nothing() -> None:
    (one,) = of(None)
    assert names(one) == list(FILES)
    assert (one.filename, one.fields) == (
        "artifacts.zip",
        {"artifact_type": "archive", "artifact_format": "zip"},
    )
    assert of(None) == [one]  # byte for byte, so that a repeated upload is not a conflict


def test_paths_folders_and_exclusions() -> None:
    (one,) = of([archive(paths=["dist/", "*.xml"], exclude=["**/*.map"], name="app", expire_in="1 day")])
    assert (one.filename, names(one)) == ("app.zip", ["dist/app.js", "report.xml"])
    assert one.fields["expire_in"] == "1 day"
    assert of([archive(paths=["build"])]) == []
    assert names(of([archive(untracked=True)])[0]) == list(FILES)


def test_when() -> None:
    wanted = [
        archive(paths=["dist"]),
        archive(paths=["notes.txt"], when="on_failure"),
        {
            "artifact_type": "junit",
            "artifact_format": "gzip",
            "paths": ["*.xml"],
            "when": "always",
            "name": "j.xml",
        },
    ]
    good, junit = of(wanted)
    assert names(good) == ["dist/app.js", "dist/app.map"]
    assert gzip.decompress(junit.content) == b"<testsuite/>"
    assert (junit.filename, junit.fields["artifact_type"]) == ("j.xml.gz", "junit")
    bad, again = of(wanted, succeeds=False)
    assert names(bad) == ["notes.txt"]
    assert again == junit
