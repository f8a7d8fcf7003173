"""Start a forgelet, create an entity of each kind in it, and run schemathesis with its description."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import click

from common.config_errors import Command, ConfigError
from forgelet.testing import starting
from forgelet.testing.api import Api
from forgelet.testing.server import Controls, Forgelet
from scripts.harness.contents import archive, commit_values, multipart, user_values
from scripts.harness.processes import python_beside

_CONFIG = """\
build:
  script: [make]
  artifacts:
    paths: [out.txt]
test:
  script: [make test]
deploy:
  script: [make deploy]
  when: manual
"""
_PAST = {"name": "Fuzz", "expires_at": "2099-01-01"}


@attrs.frozen
class World:
    """The values that requests use. `values` are for path parameters, by a piece of the path: each is the value of the
    piece's last parameter, and the longest matching piece counts. `fields` are values of fields in bodies and queries,
    and `tokens` the credentials by kind."""

    values: dict[str, object]
    fields: dict[str, object]
    tokens: dict[str, str]


def make_world(api: Api) -> World:
    """Create an entity of each kind as root. Raise `ApiError` if a request fails."""
    values: dict[str, object] = {}
    _people(api, values)
    _code(api, values)
    project = f"projects/{values['projects/{id}']}"
    _settings(api, project, values)
    _review(api, project, values)
    runner, running, manual, trigger = _jobs(api, project, values)
    _listed(api, project, values)
    values["jobs/{id}"] = running["id"]
    values |= {
        "jobs/{job_id}/play": manual,
        "jobs/{job_id}/cancel": running["id"],
        "artifacts/{path}": "out.txt",
        "raw/{path}": "out.txt",
        "downloads/{path}": "out",
        "namespaces/{path}": "fuzz-group",
    }
    tokens = {
        "private_token": api.token,
        "bearer": api.token,
        "job_token": running["token"],
        "runner_token": runner,
        "trigger": trigger,
    }
    fields = {
        "ref": "main",
        "branch": "main",
        "from": "main",
        "to": "greeting",
        "job": "build",
        "sha": values["{sha}"],
        "source_branch": "greeting",
        "target_branch": "main",
        "user_id": values["users/{id}"],
        "external_status_check_id": values["{check_id}"],
        "pipeline_id": values["{pipeline_id}"],
        "runner_id": values["{runner_id}"],
    }
    return World(values, fields, tokens)


def _people(api: Api, values: dict[str, object]) -> None:
    user = api.post("users", user_values("ada"))["id"]
    values["users/{id}"] = values["{user_id}"] = user
    token = api.post(f"users/{user}/personal_access_tokens", _PAST | {"scopes": ["api"]})
    values["personal_access_tokens/{id}"] = token["id"]
    email = api.post(f"users/{user}/emails", {"email": "other@people.example", "skip_confirmation": True})
    values["{email_id}"] = email["id"]
    root = api.post("user/emails", {"email": "root2@people.example"})
    values["user/emails/{email_id}"] = root["id"]
    group = api.post("groups", {"name": "Fuzz", "path": "fuzz-group"})["id"]
    values["groups/{id}"] = values["namespaces/{id}"] = group
    values["{target_group_id}"] = api.post("groups", {"name": "Other", "path": "other"})["id"]
    api.post("groups", {"name": "Below", "path": "below", "parent_id": group})
    api.post(f"groups/{group}/members", {"user_id": user, "access_level": 30})
    api.post(f"groups/{group}/invitations", {"email": "grace@people.example", "access_level": 30})
    values["{email}"] = "grace@people.example"
    api.post(f"groups/{group}/variables", {"key": "KEY", "value": "value"})
    values["groups/{id}/access_tokens/{token_id}"] = api.post(
        f"groups/{group}/access_tokens", _PAST | {"scopes": ["api"]}
    )["id"]
    role = {"name": "Auditor", "base_access_level": 10}
    values["member_roles/{id}"] = api.post("member_roles", role)["id"]


def _code(api: Api, values: dict[str, object]) -> None:
    group = values["groups/{id}"]
    project = api.post("projects", {"name": "App", "namespace_id": group})["id"]
    values["projects/{id}"] = project
    values["{target_project_id}"] = api.post("projects", {"name": "Other"})["id"]
    files = {"README.md": "# App\n", ".gitlab-ci.yml": _CONFIG}
    api.post(f"projects/{project}/repository/commits", commit_values("main", files))
    change = commit_values("greeting", {"README.md": "# Hello\n"}, action="update", start_branch="main")
    values["{sha}"] = api.post(f"projects/{project}/repository/commits", change)["id"]
    values["files/{path}"] = "README.md"
    values["branches/{name}"] = "greeting"
    values["{ref}"] = values["protected_branches/{name}"] = "main"
    values["{format}"] = "tar.gz"


def _settings(api: Api, project: str, values: dict[str, object]) -> None:
    api.post(f"{project}/members", {"user_id": values["users/{id}"], "access_level": 40})
    api.post(f"{project}/invitations", {"email": "grace@people.example", "access_level": 30})
    api.post(f"{project}/variables", {"key": "KEY", "value": "value"})
    api.post("admin/ci/variables", {"key": "KEY", "value": "value"})
    values["{key}"] = "KEY"
    values["projects/{id}/access_tokens/{token_id}"] = api.post(
        f"{project}/access_tokens", _PAST | {"scopes": ["api"]}
    )["id"]
    api.post(f"{project}/repository/tags", {"tag_name": "v1.0", "ref": "main"})
    api.post(f"{project}/protected_tags", {"name": "v*"})
    values["protected_tags/{name}"] = "v*"
    values["tags/{name}"] = values["{tag_name}"] = "v1.0"
    api.post(f"{project}/releases", {"tag_name": "v1.0", "description": "First"})
    link = {"name": "out", "url": "https://files.example/out", "direct_asset_path": "/out"}
    values["{link_id}"] = api.post(f"{project}/releases/v1.0/assets/links", link)["id"]
    values["{suffix_path}"] = "downloads/out"
    mirror = {"url": "https://user:password@mirror.example/app.git", "enabled": False}
    values["{mirror_id}"] = api.post(f"{project}/remote_mirrors", mirror)["id"]
    values["{agent_id}"] = api.post(f"{project}/cluster_agents", {"name": "agent"})["id"]
    scope = f"{project}/job_token_scope"
    api.post(f"{scope}/allowlist", {"target_project_id": values["{target_project_id}"]})
    api.post(f"{scope}/groups_allowlist", {"target_group_id": values["{target_group_id}"]})
    schedule = {"description": "Nightly", "ref": "main", "cron": "0 3 * * *"}
    schedule_id = api.post(f"{project}/pipeline_schedules", schedule)["id"]
    values["{pipeline_schedule_id}"] = schedule_id
    api.post(f"{project}/pipeline_schedules/{schedule_id}/variables", {"key": "KEY", "value": "value"})


def _review(api: Api, project: str, values: dict[str, object]) -> None:
    check = {"name": "Licences", "external_url": "https://checks.example/licences"}
    values["{check_id}"] = values["{external_status_check_id}"] = api.post(
        f"{project}/external_status_checks", check
    )["id"]
    body = {"source_branch": "greeting", "target_branch": "main", "title": "Greet"}
    request = api.post(f"{project}/merge_requests", body)["iid"]
    values["{merge_request_iid}"] = request
    path = f"{project}/merge_requests/{request}"
    values["{note_id}"] = api.post(f"{path}/notes", {"body": "A note"})["id"]
    discussion = api.post(f"{path}/discussions", {"body": "A discussion"})
    values["{discussion_id}"] = discussion["id"]
    values["{discussion_id}/notes/{note_id}"] = discussion["notes"][0]["id"]


def _jobs(api: Api, project: str, values: dict[str, object]) -> tuple[str, dict[str, Any], int, str]:
    """Create jobs; return the runner's token, a running job, the id of a manual job, and the trigger's token."""
    trigger = api.post(f"{project}/triggers", {"description": "Fuzz"})
    values["{trigger_id}"] = trigger["id"]
    body = {"runner_type": "project_type", "project_id": values["projects/{id}"]}
    runner = api.post("user/runners", body)
    values["runners/{id}"] = values["{runner_id}"] = runner["id"]
    Controls(api.connections).post("settle")
    pipeline = api.post(f"{project}/pipeline", {"ref": "main"})["id"]
    values["{pipeline_id}"] = pipeline
    jobs = api.get(f"{project}/pipelines/{pipeline}/jobs")
    manual = next(job["id"] for job in jobs if job["status"] == "manual")
    finished = running = api.post("jobs/request", {"token": runner["token"], "system_id": "s_1"})
    while finished["job_info"]["name"] != "build" or running["id"] == finished["id"]:
        if finished["job_info"]["name"] != "build":
            finished = running
        running = api.post("jobs/request", {"token": runner["token"], "system_id": "s_1"})
    _upload(api, finished)
    api.put(f"jobs/{finished['id']}", {"token": finished["token"], "state": "success"})
    values["{job_id}"] = finished["id"]
    return runner["token"], running, manual, trigger["token"]


def _upload(api: Api, job: dict[str, Any]) -> None:
    """Upload the artifacts of the job."""
    body, content_type = multipart(archive({"out.txt": "made\n"}))
    path = f"jobs/{job['id']}/artifacts?artifact_type=archive&artifact_format=zip"
    answer = Api(api.connections).ask("POST", path, body, JOB_TOKEN=job["token"], Content_Type=content_type)
    assert answer.status == 201, answer.content


def _listed(api: Api, project: str, values: dict[str, object]) -> None:
    """Store the ids of what the service itself has created."""
    Controls(api.connections).post("settle")
    group = f"groups/{values['groups/{id}']}"
    values["audit_events/{id}"] = api.get("audit_events")[0]["id"]
    values["groups/{id}/audit_events/{audit_event_id}"] = api.get(f"{group}/audit_events")[0]["id"]
    values["projects/{id}/audit_events/{audit_event_id}"] = api.get(f"{project}/audit_events")[0]["id"]
    path = f"{project}/merge_requests/{values['{merge_request_iid}']}"
    values["{version_id}"] = api.get(f"{path}/versions")[0]["id"]
    check = f"{project}/external_status_checks/{values['{check_id}']}"
    values["{delivery_id}"] = next((delivery["id"] for delivery in api.get(f"{check}/deliveries")), 1)


_CHECKOUT = Path(__file__).resolve().parents[2]
#: Maximum of seconds that a run may take.
_MAX_SECONDS = 3 * 3600


@click.command(cls=Command)
@click.argument("operations", nargs=-1)
@click.option(
    "--cases",
    default=5000,
    show_default=True,
    type=click.IntRange(min=1),
    help="Approximate number of cases.",
)
@click.option(
    "--borders", is_flag=True, help="Also test the ends of each parameter's range: some 20,000 more cases."
)
@click.option(
    "--seed",
    default=1,
    show_default=True,
    type=int,
    help="Seed of the cases; another seed gives other cases.",
)
def fuzz(operations: tuple[str, ...], cases: int, borders: bool, seed: int) -> None:
    """Send requests to OPERATIONS (their ids in the description, such as list_projects; all operations without any)
    that the description allows or forbids.

    The exit status is 1 if an answer contradicts the description, or if the service has logged an error.
    """
    python = os.environ.get("FORGELET_OPENAPI_PYTHON") or python_beside("openapi")
    if not os.access(python, os.X_OK):
        raise ConfigError(
            "FORGELET_OPENAPI_PYTHON has to name a Python with schemathesis: scripts/fuzz/run sees to it."
        )
    with tempfile.TemporaryDirectory(prefix="forgelet-fuzz-") as name:
        folder = Path(name)
        with starting.running("--no-edge", "--data-dir", str(folder / "data")) as service:
            command = _command(python, service, operations, cases, borders=borders, seed=seed)
            found_some = _ask(command, service, folder)
        errors = list(_errors(folder / "data" / "logs" / "api.log"))
        counts = json.loads((folder / "counts.json").read_text())
    for error in errors:
        click.echo(f"In the log: {error}")
    click.echo(
        f"{counts['cases']} cases of {counts['operations']} operations; {len(errors)} errors in the log."
    )
    sys.exit(found_some or bool(errors))


def _command(
    python: str, service: Forgelet, operations: tuple[str, ...], cases: int, *, borders: bool, seed: int
) -> list[str]:
    shared = -(-cases // (len(operations) or len(_described(service))))
    command = [python, "-P", "-m", "schemathesis.cli", "run", f"{service.url}/api/v4/openapi.json"]
    command += ["--checks", "all", "--continue-on-failure", "--no-color", "--warnings", "off"]
    phases = "coverage,fuzzing" if borders else "fuzzing"
    command += ["--phases", phases, "-n", str(shared), "--seed", str(seed)]
    # Each run is repeatable: failures of earlier runs are not tried first. No text contains NUL.
    command += ["--generation-database", "none", "--generation-allow-x00", "false"]
    command += ["--suppress-health-check", "all"]
    return command + [word for operation in operations for word in ("--include-operation-id", operation)]


def _described(service: Forgelet) -> list[str]:
    """Return the ids of all operations."""
    paths = service.api.get("openapi.json")["paths"]
    return [operation["operationId"] for item in paths.values() for operation in item.values()]


def _ask(command: list[str], service: Forgelet, folder: Path) -> bool:
    """Run schemathesis; return whether it has found a failure."""
    world = attrs.asdict(make_world(service.api))
    snapshot = service.snapshot()
    service.close()  # these connections are not used while schemathesis runs
    (folder / "world.json").write_text(json.dumps(world | {"url": service.url, "snapshot": snapshot}))
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(_CHECKOUT),
        "SCHEMATHESIS_HOOKS": "scripts.fuzz.hooks",
        "FORGELET_FUZZ_WORLD": str(folder / "world.json"),
        "FORGELET_FUZZ_COUNTS": str(folder / "counts.json"),
    }
    result = subprocess.run(command, cwd=folder, env=environment, timeout=_MAX_SECONDS, check=False)
    return result.returncode != 0


def _errors(log: Path) -> Iterator[str]:
    """Yield the lines of the log that are errors or have a traceback."""
    for line in log.read_text(errors="replace").splitlines():
        entry = json.loads(line) if line.startswith("{") else {"event": line}
        if entry.get("level") in (None, "error", "critical") or "exception" in entry:
            yield line


fuzz(prog_name="scripts/fuzz/run")
