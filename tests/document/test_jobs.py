"""Area 1: the fields of jobs, and their lists."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from .pipelines import Ci
from .statements import says, section

TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}(Z|[+-]\d\d:\d\d)")
JOB = section("### Job", "Resources and their fields")
ROWS = re.findall(r"^\| \w+ \| .*\|$", JOB, re.MULTILINE)[1:]
FIELDS = dict(re.findall(r"^\| (\w+) \| ([^|]+) \|", "\n".join(ROWS), re.MULTILINE))
#: Fields that only some jobs or responses have in the document.
SOMETIMES = {"failure_reason", "artifacts_expire_at", "artifacts_file", "download_url", "tag_list"}
#: Fields that are null without a value, as decision D4 says: no artifacts, no time in a queue.
NULL_FOR_NOTHING = {"artifacts_expire_at", "queued_duration"}


def _time(value: Any) -> bool:
    return isinstance(value, str) and TIMESTAMP.fullmatch(value) is not None


def _of(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds)


NULL = type(None)
KINDS: dict[str, Callable[[Any], bool]] = {
    "integer": _of(int),
    "string": _of(str),
    "string (URL)": lambda value: str(value).startswith("http"),
    "boolean": _of(bool),
    "number": _of(int, float),
    "number or null": _of(int, float, NULL),
    "null": _of(NULL),
    "timestamp": _time,
    "timestamp or null": lambda value: value is None or _time(value),
    "array of string": lambda value: all(isinstance(one, str) for one in value),
    "array of Artifact": _of(list),
    "object {filename: string, size: integer}": lambda value: set(value) == {"filename", "size"},
    "object {ci_job_token_scope_enabled: boolean}": lambda value: (
        [*map(type, value.values())] == [bool] and set(value) == {"ci_job_token_scope_enabled"}
    ),
    "Commit object": _of(dict),
    "Pipeline reference": _of(dict),
    "Runner object or null": _of(dict, NULL),
    "Runner manager object or null": _of(dict, NULL),
    "User object or null": _of(dict, NULL),
}


def names_in(sentence: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", sentence))


def _wrong(job: dict[str, Any]) -> list[str]:
    """Return the missing fields of a job, and those with another type than in the document."""
    given = {name: kind for name, kind in FIELDS.items() if name in job}
    missing = set(FIELDS) - set(given) - SOMETIMES
    return sorted(missing) + [
        name
        for name, kind in given.items()
        if not KINDS[kind.strip()](job[name]) and not (job[name] is None and name in NULL_FOR_NOTHING)
    ]


@says(
    "job",
    "Returned by all job endpoints. Types as observed in responses; `null` is possible where marked.",
    *ROWS,
    "| 6 | GET `/projects/:id/jobs/:job_id` | `id`, `job_id` integer required | Job |",
)
@pytest.mark.parametrize("name", ["finished", "failed", "running", "manual"])
async def test_what_a_job_shows(ci: Ci, name: str) -> None:
    job = await ci.show(name)
    assert _wrong(job) == [], job
    assert (job["name"], job["stage"], job["ref"], job["tag"], job["archived"]) == (
        name,
        "test",
        "topic",
        False,
        False,
    )
    assert ("failure_reason" in job, "artifacts_file" in job) == (name == "failed", name == "finished")
    assert (job["started_at"] is None) == (name == "manual")
    assert (job["finished_at"] is None) == (name in ("manual", "running"))
    assert job.get("failure_reason", "script_failure") == "script_failure"


ARTIFACT = (
    "Artifact entry: `file_type` string (seen: `archive`, `metadata`, `trace`, `junit`), `size` integer (bytes),"
    " `filename` string, `file_format` string (seen: `zip`, `gzip`, `raw`)."
)
COMMIT = (
    "Commit object: `id` string (commit SHA), `short_id` string, `title` string, `message` string, `author_name`"
    " string, `author_email` string, `created_at` timestamp with offset."
)
PIPELINE = (
    "Pipeline reference: `id` integer, `project_id` integer, `ref` string, `sha` string, `status` string."
)
RUNNER = (
    "Runner object: `id` integer, `description` string, `ip_address` string or null, `active` boolean, `paused`"
    " boolean, `is_shared` boolean, `runner_type` string, `name` string or null, `online` boolean, `status` string."
)
MANAGER = (
    "Runner manager object: `id` integer, `system_id` string, `version` string, `revision` string, `platform` string,"
    " `architecture` string, `created_at` timestamp, `contacted_at` timestamp, `ip_address` string, `status` string"
    " (the field `status` is absent in one pipeline-jobs example)."
)
USER = (
    "User object: `id` integer, `name`, `username`, `state` (string, seen `active`), `avatar_url`, `web_url`,"
    " `created_at` timestamp, `bio`, `location`, `public_email`, `skype`, `linkedin`, `twitter`, `website_url`,"
    " `organization` (strings or null)."
)


@says("job", ARTIFACT, COMMIT, PIPELINE, RUNNER, MANAGER, USER)
async def test_what_is_in_a_job(ci: Ci) -> None:
    job = await ci.show("finished")
    seen = {artifact["file_type"]: artifact for artifact in job["artifacts"]}
    assert set(seen) == {"archive", "metadata", "trace", "junit"}
    assert all(set(one) == {"file_type", "size", "filename", "file_format"} for one in seen.values())
    assert seen["archive"]["file_format"] == "zip"
    for name, sentence in (
        ("commit", COMMIT),
        ("pipeline", PIPELINE),
        ("runner", RUNNER),
        ("runner_manager", MANAGER),
        ("user", USER),
    ):
        assert names_in(sentence) - {"active"} <= set(job[name]) | {"active"}, name
    assert job["commit"]["id"].startswith(job["commit"]["short_id"])
    assert _time(job["commit"]["created_at"])
    assert (job["pipeline"]["id"], job["pipeline"]["project_id"]) == (ci.pipeline["id"], ci.project.id)
    assert (job["runner"]["id"], job["runner"]["runner_type"]) == (ci.runner.id, "project_type")
    assert (job["runner_manager"]["system_id"], job["runner_manager"]["platform"]) == ("s_test", "linux")
    assert (job["user"]["id"], job["user"]["state"]) == (ci.developer.id, "active")


@says(
    "bridge",
    "Same fields as Job except: no `runner`, `runner_manager`, `artifacts`, `tag_list`, `failure_reason`.",
    "Differences: `pipeline` additionally carries `created_at`, `updated_at` (timestamps) and `web_url`; an extra field"
    " `downstream_pipeline` is an object with `id` integer, `sha`, `ref`, `status` strings, `created_at`, `updated_at`"
    " timestamps, `web_url` string.",
    "| 3 | GET `/projects/:id/pipelines/:pipeline_id/bridges` | `id` required; `pipeline_id` integer required; `scope`"
    " as above | array of Trigger job |",
)
async def test_trigger_jobs(ci: Ci) -> None:
    (bridge,) = (await ci.get(f"/pipelines/{ci.pipeline['id']}/bridges")).body
    without = {"runner", "runner_manager", "artifacts", "tag_list", "failure_reason"}
    expected = set(FIELDS) - without - SOMETIMES | {"downstream_pipeline"}
    assert expected - {"archived", "erased_at"} <= set(bridge)
    assert not without & set(bridge)
    assert {"created_at", "updated_at", "web_url"} <= set(bridge["pipeline"])
    downstream = bridge["downstream_pipeline"]
    assert {"id", "sha", "ref", "status", "created_at", "updated_at", "web_url"} <= set(downstream)
    assert all(_time(downstream[name]) for name in ("created_at", "updated_at"))
    for scope, found in (("created", 0), (bridge["status"], 1)):
        scoped = await ci.get(f"/pipelines/{ci.pipeline['id']}/bridges?scope[]={scope}")
        assert len(scoped.body) == found


@says(
    "endpoint 1",
    "| 1 | GET `/projects/:id/jobs` | `id` integer/string required; `scope` string or array of strings, optional,"
    " values as Job status list; all jobs when omitted | array of Job, sorted by job ID descending; 20 per page; offset"
    " and keyset pagination |",
    "Values accepted by the `scope` filter and seen as status: `created`, `pending`, `running`, `failed`, `success`,"
    " `canceled`, `skipped`, `waiting_for_resource`, `manual`.",
)
async def test_the_jobs_of_a_project(ci: Ci) -> None:
    assert (await ci.get("/jobs")).headers["X-Per-Page"] == "20"
    ids = [job["id"] for job in (await ci.get("/jobs?per_page=100")).body]
    assert ids == sorted(ids, reverse=True)
    assert {ci.jobs[name] for name in ("finished", "failed", "running", "manual")} <= set(ids)
    by_path = await ci.project.api.get(f"{ci.path}/jobs?per_page=100")
    assert [job["id"] for job in by_path.body] == ids
    for scope in [
        "created",
        "pending",
        "running",
        "failed",
        "success",
        "canceled",
        "skipped",
        "waiting_for_resource",
        "manual",
    ]:
        one = await ci.get(f"/jobs?scope={scope}")
        assert {job["status"] for job in one.body} <= {scope}
    two = await ci.get("/jobs?scope[]=failed&scope[]=manual")
    assert {job["status"] for job in two.body} == {"failed", "manual"}
    refused = await ci.project.api.get(f"{ci.url}/jobs?scope=good")
    assert (refused.status, refused.body) == (400, {"error": "scope does not have a valid value"})
    page = await ci.get("/jobs?pagination=keyset&per_page=2")
    following = (await ci.project.api.get(page.headers["Link"].partition(">")[0][1:])).body
    assert [job["id"] for job in [*page.body, *following]] == ids[:4]


@says(
    "endpoint 2",
    "| 2 | GET `/projects/:id/pipelines/:pipeline_id/jobs` | `id` required; `pipeline_id` integer required;"
    " `include_retried` boolean optional, default false; `scope` as above | array of Job; 20 per page |",
)
async def test_the_jobs_of_a_pipeline(ci: Ci) -> None:
    path = await ci.another("failed")
    pipeline = (await ci.project.api.get(path)).body["pipeline"]["id"]
    retried = await ci.project.api.post(f"{path}/retry")
    listed, every = [
        await ci.get(f"/pipelines/{pipeline}/jobs{query}") for query in ("", "?include_retried=true")
    ]
    assert listed.headers["X-Per-Page"] == "20"
    assert [job["id"] for job in listed.body] == [retried.body["id"]]
    assert len(every.body) == 2
    failed = await ci.get(f"/pipelines/{pipeline}/jobs?include_retried=true&scope=failed")
    assert [job["status"] for job in failed.body] == ["failed"]
