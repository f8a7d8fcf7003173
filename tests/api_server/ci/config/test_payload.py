"""What a runner is told: the shapes of the official runner's job request."""

import json

from api_server.ci.config.plan import IdToken, Retry, from_json, to_json
from api_server.ci.config.variables import Variable
from api_server.ci.runners import job_response

from .planning import FULL, job


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
        given=[Variable("NAME", "given"), Variable("SECRET", "s", public=False, masked=True)],
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
