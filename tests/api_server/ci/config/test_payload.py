"""The description of a job that a runner gets, and the jobs that it needs: of the same pipeline, of others, of a
matrix."""

import json
import time

import pytest

from api_server.ci.config.plan import CrossDependency, IdToken, Retry, from_json, to_json
from api_server.ci.config.variables import Variable
from api_server.ci.runners import job_response
from tests.support.tables import tables_of

from .planning import FULL, errors, job, jobs

TABLES = tables_of(__file__)


def test_a_job_with_every_keyword_survives_storage_as_json():
    found = job(FULL)
    assert from_json(json.loads(json.dumps(to_json(found)))) == found
    assert found.timeout == 7200
    assert found.retry == Retry(max=2, when=("script_failure",), exit_codes=(137,))
    assert (found.environment.auto_stop_in, found.manual_confirmation) == ("1 week", "Really?")
    assert found.id_tokens == {
        "VAULT": IdToken(aud=("https://$HOST",)),
        "CLOUD": IdToken(aud=("one", "two"), listed=True),
    }
    assert (found.coverage, found.allow_failure_exit_codes) == ("(?i)TOTAL.*?(\\d+)%", (3, 4))


STEPS = [
    {
        "name": "script",
        "script": ["setup", "make\nmake check\n"],
        "timeout": 7200,
        "when": "on_success",
        "allow_failure": False,
    },
    {
        "name": "release",
        "script": [
            'release-cli create --description "The \\"first\\" one" --tag-name "$CI_COMMIT_TAG"'
            ' --released-at "2026-01-02T03:04:05Z" --milestone "m1"'
            ' --assets-link "{\\"name\\":\\"a\\",\\"url\\":\\"https://example.org/a\\",\\"link_type\\":\\"package\\"}"'
        ],
        "timeout": 7200,
        "when": "on_success",
        "allow_failure": False,
    },
    {
        "name": "after_script",
        "script": ["clean"],
        "timeout": 7200,
        "when": "always",
        "allow_failure": True,
    },
]
IMAGE = {
    "name": "python:3.11",
    "entrypoint": [""],
    "ports": [],
    "executor_opts": {"docker": {"user": "app"}},
    "pull_policy": ["if-not-present"],
}
SERVICES = [
    {
        "name": "postgres:15",
        "entrypoint": None,
        "ports": [],
        "executor_opts": {},
        "pull_policy": None,
        "alias": None,
        "command": None,
        "variables": [],
    },
    {
        "name": "redis",
        "entrypoint": None,
        "ports": [],
        "executor_opts": {},
        "pull_policy": None,
        "alias": "cache",
        "command": ["redis-server"],
        "variables": [
            {"key": "X", "value": "1", "public": True, "masked": False, "file": False, "raw": False}
        ],
    },
]
ARTIFACTS = [
    {
        "name": "$CI_JOB_NAME",
        "untracked": False,
        "paths": ["out/"],
        "when": "always",
        "expire_in": "1 week",
        "artifact_type": "archive",
        "artifact_format": "zip",
        "exclude": ["out/tmp"],
    },
    {
        "name": "junit.xml",
        "paths": ["r.xml"],
        "when": "always",
        "expire_in": "1 week",
        "artifact_type": "junit",
        "artifact_format": "gzip",
    },
    {
        "name": "cobertura-coverage.xml",
        "paths": ["c.xml"],
        "when": "always",
        "expire_in": "1 week",
        "artifact_type": "cobertura",
        "artifact_format": "gzip",
    },
]
CACHE = [
    {
        "key": "pip-protected",
        "untracked": False,
        "unprotect": False,
        "paths": [".pip"],
        "policy": "pull",
        "when": "on_success",
        "fallback_keys": [],
    },
    {
        "key": "default",
        "untracked": False,
        "unprotect": True,
        "paths": ["x"],
        "policy": "pull-push",
        "when": "on_success",
        "fallback_keys": [],
    },
]


def test_the_payload_of_a_job_with_every_keyword():
    assert job_response.plan_shape(job(FULL), timeout=7200, protected=True) == {
        "steps": STEPS,
        "hooks": [{"name": "pre_get_sources_script", "script": ["echo before"]}],
        "image": IMAGE,
        "services": SERVICES,
        "artifacts": ARTIFACTS,
        "cache": CACHE,
    }


def test_a_plain_job_has_null_where_there_is_nothing():
    found = job_response.plan_shape(job("a: {script: x}"), timeout=60, protected=False)
    assert {key: found[key] for key in ("hooks", "image", "services", "artifacts", "cache")} == {
        "hooks": [],
        "image": None,
        "services": [],
        "artifacts": None,
        "cache": [],
    }


def test_artifacts_kept_for_ever_say_never():
    found = job("a: {script: x, artifacts: {paths: [a], expire_in: never}}")
    assert found.artifacts.expire_in == 0
    assert job_response.artifact_shapes(found.artifacts)[0]["expire_in"] == "never"


def test_variables_are_layered_and_expanded_for_the_runner():
    found = job_response.variable_shapes(
        job(FULL),
        predefined=[Variable("CI", "true"), Variable("NAME", "predefined")],
        extra=[Variable("NAME", "given"), Variable("SECRET", "s", public=False, masked=True)],
    )
    assert {one["key"]: one["value"] for one in found} == {
        "CI": "true",
        "NAME": "given",
        "GREETING": "hello given",
        "SECRET": "s",
    }
    assert found[-1] == {
        "key": "SECRET",
        "value": "s",
        "public": False,
        "masked": True,
        "file": False,
        "raw": False,
    }


def test_a_dependency_has_what_a_runner_downloads_with():
    assert job_response.dependency_shape(1, "build", "token", "artifacts.zip", 10) == {
        "id": 1,
        "name": "build",
        "token": "token",
        "artifacts_file": {"filename": "artifacts.zip", "size": 10},
    }


PROJECT = "project: a/b, ref: main, job: c"


@pytest.mark.parametrize(
    ("needs", "complaints"),
    [
        *TABLES["what_needs_may_not_be"],
        (
            "[{job: c, parallel: {rows: [{A: b}]}}]",
            [
                "jobs:test:needs:need:parallel config contains unknown keys: rows",
                "jobs:test:needs:need:parallel config missing required keys: matrix",
            ],
        ),
        (
            "[{project: a/b}]",
            [
                "jobs:test:needs:need ref should be a string",
                "jobs:test:needs:need ref can't be blank",
                "jobs:test:needs:need job should be a string",
                "jobs:test:needs:need job can't be blank",
            ],
        ),
        (f"[{{{PROJECT}, optional: true}}]", ["jobs:test:needs:need config contains unknown keys: optional"]),
        (
            f"[{', '.join(['{' + PROJECT + '}'] * 6)}]",
            ["jobs:test:needs config must be less than or equal to 5"],
        ),
        (
            f"[{', '.join(['{pipeline: $ID, job: c}'] * 6)}]",
            ["jobs:test:needs config must be less than or equal to 5"],
        ),
        (
            "[{artifacts: true}]",
            [
                "jobs:test:needs:need config contains unknown keys: artifacts",
                "jobs:test:needs:need pipeline should be a string",
                "jobs:test:needs:need pipeline can't be blank",
            ],
        ),
    ],
)
def test_what_needs_may_not_be(needs, complaints):
    assert list(errors(f"test: {{script: x, needs: {needs}}}")) == complaints


@pytest.mark.parametrize(
    ("job", "complaint"),
    TABLES["which_jobs_may_have_which_needs"],
)
def test_which_jobs_may_have_which_needs(job, complaint):
    assert errors(f"test: {job}") == (complaint,)


def test_five_of_each_kind_are_not_too_many():
    needs = ["{" + PROJECT + "}"] * 5 + ["{pipeline: $ID, job: c}"] * 5
    assert len(job(f"test: {{script: x, needs: [{', '.join(needs)}]}}").cross_dependencies) == 10


def test_artifacts_of_other_pipelines_are_wanted_as_they_are_written():
    text = """
    build: {stage: build, script: x}
    test:
      script: x
      variables: {WHERE: topic}
      needs:
      - build
      - {project: $CI_PROJECT_PATH, ref: $WHERE, job: $NAME, artifacts: true}
      - {project: a/b, ref: main, job: other, artifacts: false}
      - [{pipeline: $PARENT, job: made}]
    """
    found = jobs(text)["test"]
    assert found.cross_dependencies == (
        CrossDependency(project="$CI_PROJECT_PATH", ref="$WHERE", job="$NAME"),
        CrossDependency(pipeline="$PARENT", job="made"),
    )
    assert ([need.job for need in found.needs], found.dependencies) == (["build"], ("build",))
    assert from_json(to_json(found)) == found


def test_a_job_that_needs_other_pipelines_only_waits_for_nobody_and_gets_nothing_of_its_own():
    text = f"build: {{stage: build, script: x}}\ntest: {{script: x, needs: {{{PROJECT}}}}}"
    found = jobs(text)["test"]
    assert (found.needs, found.dependencies, len(found.cross_dependencies)) == ((), (), 1)


def test_a_rule_changes_what_a_job_waits_for_and_not_what_it_gets_of_other_pipelines():
    text = f"""
    build: {{stage: build, script: x}}
    test: {{script: x, needs: [{{{PROJECT}}}], rules: [{{if: $CI_COMMIT_BRANCH, needs: [build]}}]}}
    """
    found = jobs(text)["test"]
    assert ([need.job for need in found.needs], len(found.cross_dependencies)) == (["build"], 1)


def test_a_bridge_mirrors_a_pipeline_when_its_stage_has_its_turn():
    text = """
    default: {tags: [x], interruptible: true}
    build: {stage: build, script: x}
    status: {stage: test, needs: [build, {pipeline: $CI_PROJECT_PATH}]}
    """
    found = jobs(text)["status"]
    assert (found.kind, found.upstream, found.needs, found.trigger) == ("bridge", "group/app", None, None)
    assert (found.interruptible, found.tags) == (True, ())


MATRIX = "{matrix: [{OS: [linux, mac], ARCH: [amd64, arm64]}]}"


def test_expressions_take_the_values_of_the_jobs_own_row():
    text = f"""
    build: {{stage: build, script: x, parallel: {MATRIX}}}
    test:
      script: x
      parallel: {MATRIX}
      needs: [{{job: build, parallel: {{matrix: [{{OS: ['$[[ matrix.OS ]]'], ARCH: '$[[matrix.ARCH]]'}}]}}}}]
    some:
      script: x
      parallel: {{matrix: [{{OS: [linux, mac]}}]}}
      needs: [{{job: build, parallel: {{matrix: [{{OS: '$[[ matrix.OS ]]', ARCH: [arm64, amd64]}}]}}}}]
    named: {{script: x, parallel: {{matrix: [{{JOB: [build]}}]}}, needs: ['$[[ matrix.JOB ]]: [mac, arm64]']}}
    """
    assert {name: [need.job for need in one.needs] for name, one in jobs(text).items() if one.needs} == {
        "test: [linux, amd64]": ["build: [linux, amd64]"],
        "test: [linux, arm64]": ["build: [linux, arm64]"],
        "test: [mac, amd64]": ["build: [mac, amd64]"],
        "test: [mac, arm64]": ["build: [mac, arm64]"],
        "some: [linux]": ["build: [linux, arm64]", "build: [linux, amd64]"],
        "some: [mac]": ["build: [mac, arm64]", "build: [mac, amd64]"],
        "named: [build]": ["build: [mac, arm64]"],
    }


def test_expressions_reach_needs_of_other_projects_and_those_of_rules():
    text = """
    build: {stage: build, script: x, parallel: {matrix: [{OS: [linux]}]}}
    test:
      script: x
      parallel: {matrix: [{OS: [linux]}]}
      needs: [{project: a/b, ref: main, job: 'build-$[[ matrix.OS ]]-$ARCH'}]
      rules: [{if: $CI_COMMIT_BRANCH, needs: [{job: build, parallel: {matrix: [{OS: ['$[[ matrix.OS ]]']}]}}]}]
    """
    found = jobs(text)["test: [linux]"]
    assert found.cross_dependencies == (CrossDependency(project="a/b", ref="main", job="build-linux-$ARCH"),)
    assert [need.job for need in found.needs] == ["build: [linux]"]
    assert errors(text.replace("matrix.OS ]]']", "matrix.NONE ]]']")) == (
        "test job: 'NONE' does not exist in matrix configuration",
    )


@pytest.mark.parametrize(
    ("row", "complaints"),
    [
        (
            "{OS: ['$[[ matrix.OS ]]'], B: ['$[[ matrix.NONE ]]'], C: '$[[ matrix.NEITHER ]]'}",
            [
                "test job: 'NONE' does not exist in matrix configuration",
                "test job: 'NEITHER' does not exist in matrix configuration",
            ],
        ),
        (
            "{OS: ['$[[ matrix.ARCH ]]', mac]}",
            [
                "test: [linux, amd64] job: undefined need: build: [amd64]",
                "test: [linux, arm64] job: undefined need: build: [arm64]",
            ],
        ),
        # text that is not an expression of a matrix stays
        ("{OS: '$[[ inputs.OS ]]'}", ["undefined need: build: [$[[ inputs.OS ]]]"]),
    ],
)
def test_expressions_that_lead_nowhere(row, complaints):
    text = f"""
    build: {{stage: build, script: x, parallel: {{matrix: [{{OS: [linux, mac]}}]}}}}
    test:
      script: x
      parallel: {{matrix: [{{OS: linux, ARCH: [amd64, arm64]}}]}}
      needs: [{{job: build, parallel: {{matrix: [{row}]}}}}]
    """
    if complaints[0].startswith("undefined"):
        complaints = [f"test: [linux, {arch}] job: {complaints[0]}" for arch in ("amd64", "arm64")]
    assert list(errors(text)) == complaints


def test_a_job_without_a_matrix_has_no_expressions():
    build = "build: {stage: build, script: x, parallel: {matrix: [{OS: [linux]}]}}\n"
    need = "{job: build, parallel: {matrix: [{OS: '$[[ matrix.OS ]]'}]}}"
    refused = ("test job: 'OS' does not exist in matrix configuration",)
    assert errors(build + f"test: {{script: x, needs: [{need}]}}") == refused
    assert errors(build + f"test: {{script: x, variables: {{OS: linux}}, needs: [{need}]}}") == refused


def test_expressions_of_many_jobs_are_paid_for_and_take_no_long_time():
    begun = time.process_time()
    names = ", ".join(f"'$[[ matrix.A ]]{n}'" for n in range(50))
    rows = ", ".join(f"r{n}" for n in range(200))
    many = "\n".join(
        f"j{n}: {{script: x, parallel: {{matrix: [{{A: [{rows}]}}]}}, needs: [{names}]}}" for n in range(200)
    )
    assert errors(many) == ("The parsed YAML is too big",)
    long = "$[[ matrix.A ]]" * 10_000
    (said,) = errors(f"a: {{script: x, parallel: {{matrix: [{{A: [{'x' * 250}]}}]}}, needs: ['{long}']}}")
    assert said.startswith(f"a: [{'x' * 250}] job: undefined need: $[[ matrix.A ]]$[[")
    assert time.process_time() - begun < 10
