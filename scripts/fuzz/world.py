"""What there is in the service that is asked: one of each kind, so that requests get as far as the handlers."""

import http.client
import io
import urllib.parse
import zipfile
from typing import Any

import attrs

from forgelet.local.api_client import Api

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
_BOUNDARY = "between-the-parts"
_PAST = {"name": "Fuzz", "expires_at": "2099-01-01"}


@attrs.frozen
class World:
    """`values` are what stands in paths: by a piece of the path, the value of the last parameter in it; the longest
    piece counts. `fields` are what bodies and queries may name, and `tokens` the credentials by their kind."""

    values: dict[str, object]
    fields: dict[str, object]
    tokens: dict[str, str]


def make(url: str, root_token: str) -> World:
    """Makes it. Raises `ApiError`."""
    api = Api(url, root_token)
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
        "private_token": root_token,
        "bearer": root_token,
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
    who = {"name": "Ada", "username": "ada", "email": "ada@people.example"}
    user = api.post("users", who | {"force_random_password": True, "skip_confirmation": True})["id"]
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
    actions = [{"action": "create", "file_path": name, "content": text} for name, text in files.items()]
    start = {"branch": "main", "commit_message": "Begin", "actions": actions}
    api.post(f"projects/{project}/repository/commits", start)
    change = {"branch": "greeting", "start_branch": "main", "commit_message": "Greet"}
    actions = [{"action": "update", "file_path": "README.md", "content": "# Hello\n"}]
    made = api.post(f"projects/{project}/repository/commits", change | {"actions": actions})
    values["{sha}"] = made["id"]
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
    made = api.post(f"{project}/pipeline_schedules", schedule)["id"]
    values["{pipeline_schedule_id}"] = made
    api.post(f"{project}/pipeline_schedules/{made}/variables", {"key": "KEY", "value": "value"})


def _review(api: Api, project: str, values: dict[str, object]) -> None:
    check = {"name": "Licences", "external_url": "https://checks.example/licences"}
    values["{check_id}"] = values["{external_status_check_id}"] = api.post(
        f"{project}/external_status_checks", check
    )["id"]
    wanted = {"source_branch": "greeting", "target_branch": "main", "title": "Greet"}
    request = api.post(f"{project}/merge_requests", wanted)["iid"]
    values["{merge_request_iid}"] = request
    one = f"{project}/merge_requests/{request}"
    values["{note_id}"] = api.post(f"{one}/notes", {"body": "A note"})["id"]
    discussion = api.post(f"{one}/discussions", {"body": "A discussion"})
    values["{discussion_id}"] = discussion["id"]
    values["{discussion_id}/notes/{note_id}"] = discussion["notes"][0]["id"]


def _jobs(api: Api, project: str, values: dict[str, object]) -> tuple[str, dict[str, Any], int, str]:
    """The runner's token, the job that runs, the number of the one that waits for somebody, the trigger's token."""
    trigger = api.post(f"{project}/triggers", {"description": "Fuzz"})
    values["{trigger_id}"] = trigger["id"]
    wanted = {"runner_type": "project_type", "project_id": values["projects/{id}"]}
    runner = api.post("user/runners", wanted)
    values["runners/{id}"] = values["{runner_id}"] = runner["id"]
    api.steer("settle", {})
    pipeline = api.post(f"{project}/pipeline", {"ref": "main"})["id"]
    values["{pipeline_id}"] = pipeline
    jobs = api.get(f"{project}/pipelines/{pipeline}/jobs")
    manual = next(job["id"] for job in jobs if job["status"] == "manual")
    done = running = api.post("jobs/request", {"token": runner["token"], "system_id": "s_1"})
    while done["job_info"]["name"] != "build" or running["id"] == done["id"]:
        if done["job_info"]["name"] != "build":
            done = running
        running = api.post("jobs/request", {"token": runner["token"], "system_id": "s_1"})
    _upload(api.base_url, done)
    api.put(f"jobs/{done['id']}", {"token": done["token"], "state": "success"})
    values["{job_id}"] = done["id"]
    return runner["token"], running, manual, trigger["token"]


def _upload(url: str, job: dict[str, Any]) -> None:
    """The artifacts of the job."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("out.txt", "made\n")
    head = 'Content-Disposition: form-data; name="file"; filename="artifacts.zip"'
    body = f"--{_BOUNDARY}\r\n{head}\r\nContent-Type: application/zip\r\n\r\n".encode()
    body += packed.getvalue() + f"\r\n--{_BOUNDARY}--\r\n".encode()
    headers = {"JOB-TOKEN": job["token"], "Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=30)
    path = f"/api/v4/jobs/{job['id']}/artifacts?artifact_type=archive&artifact_format=zip"
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    if answer.status != 201:
        raise RuntimeError(f"artifacts: {answer.status} {answer.read()!r}")
    connection.close()


def _listed(api: Api, project: str, values: dict[str, object]) -> None:
    """What is made by the service itself."""
    api.steer("settle", {})
    group = f"groups/{values['groups/{id}']}"
    values["audit_events/{id}"] = api.get("audit_events")[0]["id"]
    values["groups/{id}/audit_events/{audit_event_id}"] = api.get(f"{group}/audit_events")[0]["id"]
    values["projects/{id}/audit_events/{audit_event_id}"] = api.get(f"{project}/audit_events")[0]["id"]
    one = f"{project}/merge_requests/{values['{merge_request_iid}']}"
    values["{version_id}"] = api.get(f"{one}/versions")[0]["id"]
    check = f"{project}/external_status_checks/{values['{check_id}']}"
    values["{delivery_id}"] = next((found["id"] for found in api.get(f"{check}/deliveries")), 1)
