"""Examples of requests and answers for the API's description, recorded from a running service, with another address
and without secrets."""

import json
import re
import sys
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from forgelet.testing import starting
from forgelet.testing.api import Api
from scripts.harness.contents import commit_values

#: The address of the service in examples.
ADDRESS = "https://forgelet.example.org"
_SECRET = re.compile(r"\b(flpat|fljob|flso|flptt|glrt)-[\w-]{6,}")


class Recorder:
    """A client that records examples. Credentials are headers, with `_` for `-` in their names. `examples` has for
    each operation the JSON that was sent (null without a body), the status, and the JSON of the answer."""

    def __init__(self, api: Api) -> None:
        """Read the operations from the description; `api` is anonymous."""
        self._api = api
        self._url = api.base_url
        self.examples: dict[str, dict[str, Any]] = {}
        described = self._ask("GET", "/openapi.json", {}, None)[1]
        self._operations = {
            (method.upper(), path): operation["operationId"]
            for path, item in described["paths"].items()
            for method, operation in item.items()
        }

    def ask(
        self,
        token: Mapping[str, str],
        method: str,
        path: str,
        body: Any = None,
        *,
        keep: bool = True,
        query: Mapping[str, str] | None = None,
        **values: Any,
    ) -> Any:
        """Return the answer to `method` of `path`, with `values` for the parameters in it. With `keep`, it becomes the
        operation's example. Exit if the request does not succeed."""
        path_with_values = re.sub(r"{(\w+)}", lambda name: quote(str(values[name[1]]), safe=""), path)
        address = path_with_values + (f"?{urlencode(query)}" if query else "")
        status, answer = self._ask(method, address, token, body)
        if keep:
            example = {"status": status, "request": self._shown(body), "response": self._shown(answer)}
            self.examples[self._operations[method, path]] = example
        return answer

    def _ask(self, method: str, address: str, headers: Mapping[str, str], body: Any) -> tuple[int, Any]:
        if isinstance(body, str):
            headers, body = {"Content_Type": "text/plain", **headers}, body.encode()
        answer = self._api.ask(method, address, body, **headers)
        content = answer.content.decode() if isinstance(answer.content, bytes) else answer.content
        if not 200 <= answer.status < 300:
            raise SystemExit(f"{method} {address}: {answer.status} {content}")
        return answer.status, content

    def _shown(self, value: Any) -> Any:
        text = json.dumps(value).replace(self._url, ADDRESS)
        host = urlsplit(self._url).hostname or ""
        text = text.replace(f'"{host}"', '"192.0.2.1"').replace(host, ADDRESS.removeprefix("https://"))
        return json.loads(_SECRET.sub(r"\1-0123456789abcdefghij", text))


Token = dict[str, str]
PROJECT = "/projects/{id}"
CONFIG = """\
build:
  script: [make]
test:
  script: [make test]
deploy:
  script: [make deploy]
  when: manual
packages:
  trigger: {include: packages.yml}
"""
PACKAGES = "pack: {script: [make package]}\n"


def play(service: Recorder, root_token: str) -> None:
    root = {"PRIVATE_TOKEN": root_token}
    ada, group, project = _people(service, root)
    _jobs(service, ada, project)
    _checks(service, ada, project)
    _mirrors(service, ada, project)
    for kind, entity_id in (("groups", group), ("projects", project)):
        _invitations(service, ada, kind, entity_id)
    _audit(service, root, ada, group, project)


def _people(service: Recorder, root: Token) -> tuple[Token, int, int]:
    ask = service.ask
    account = {
        "name": "Ada Example",
        "username": "ada-example",
        "email": "ada@people.example",
        "force_random_password": True,
        "skip_confirmation": True,
    }
    user = ask(root, "POST", "/users", account)
    body = {"name": "examples", "scopes": ["api"]}
    token = ask(root, "POST", "/users/{user_id}/personal_access_tokens", body, user_id=user["id"])
    ada = {"PRIVATE_TOKEN": token["token"]}
    ask(ada, "GET", "/user")
    ask(ada, "GET", "/version")
    group = ask(ada, "POST", "/groups", {"name": "Example Group", "path": "example-group"})
    project = ask(ada, "POST", "/projects", {"name": "Example App", "namespace_id": group["id"]})
    ask(ada, "GET", PROJECT, id=project["id"])
    ask(ada, "GET", "/projects", query={"owned": "true"})
    return ada, group["id"], project["id"]


def _jobs(service: Recorder, ada: Token, project: int) -> None:
    ask = service.ask
    files = {".gitlab-ci.yml": CONFIG, "packages.yml": PACKAGES, "README.md": "# Example App\n"}
    start = commit_values("main", files, message="Begin")
    ask(ada, "POST", f"{PROJECT}/repository/commits", start, id=project)
    agent = {"name": "example-agent"}
    ask(ada, "POST", f"{PROJECT}/cluster_agents", agent, id=project)
    pipeline = _pipeline(service, ada, project)
    pipeline_ids: dict[str, Any] = {"id": project, "pipeline_id": pipeline}
    ask(ada, "GET", f"{PROJECT}/pipelines/{{pipeline_id}}", **pipeline_ids)
    ask(ada, "GET", f"{PROJECT}/jobs", id=project, query={"per_page": "2"})
    jobs = ask(ada, "GET", f"{PROJECT}/pipelines/{{pipeline_id}}/jobs", **pipeline_ids)
    ask(ada, "GET", f"{PROJECT}/pipelines/{{pipeline_id}}/bridges", **pipeline_ids)
    finished = _run(service, ada, project)
    manual = next(job["id"] for job in jobs if job["status"] == "manual")
    job_path = f"{PROJECT}/jobs/{{job_id}}"
    ask(ada, "GET", job_path, id=project, job_id=finished)
    ask(ada, "GET", f"{job_path}/trace", id=project, job_id=finished)
    ask(ada, "POST", f"{job_path}/erase", id=project, job_id=finished)
    again = ask(ada, "POST", f"{job_path}/retry", id=project, job_id=finished)
    ask(ada, "POST", f"{job_path}/cancel", id=project, job_id=again["id"])
    variables = {"job_variables_attributes": [{"key": "TARGET", "value": "staging"}]}
    ask(ada, "POST", f"{job_path}/play", variables, id=project, job_id=manual)


def _pipeline(service: Recorder, ada: Token, project: int) -> int:
    """Return the id of the project's first pipeline once its child pipeline exists too."""
    for _ in range(600):
        pipelines = service.ask(ada, "GET", f"{PROJECT}/pipelines", id=project)
        if pipelines:
            first = min(pipelines, key=lambda pipeline: int(pipeline["id"]))["id"]
            path = f"{PROJECT}/pipelines/{{pipeline_id}}/bridges"
            bridges = service.ask(ada, "GET", path, id=project, pipeline_id=first)
            if bridges and bridges[0]["downstream_pipeline"]:
                return int(first)
        time.sleep(0.1)
    raise SystemExit("The pipeline was not created.")


def _run(service: Recorder, ada: Token, project: int) -> int:
    """Run a job as a runner does; return its id."""
    ask = service.ask
    runner = {"runner_type": "project_type", "project_id": project, "description": "example-runner"}
    runner_entity = ask(ada, "POST", "/user/runners", runner)
    job = ask({}, "POST", "/jobs/request", {"token": runner_entity["token"]}, keep=False)
    job_headers = {"JOB_TOKEN": job["token"]}
    ask(job_headers, "GET", "/job")
    ask(job_headers, "GET", "/job/allowed_agents")
    log = "$ make\ncc -o app app.c\n"
    begins = job_headers | {"Content_Range": f"0-{len(log) - 1}"}
    ask(begins, "PATCH", "/jobs/{id}/trace", log, id=job["id"], keep=False)
    ask({}, "PUT", "/jobs/{id}", {"token": job["token"], "state": "success"}, id=job["id"], keep=False)
    return int(job["id"])


def _checks(service: Recorder, ada: Token, project: int) -> None:
    ask = service.ask
    url = "https://checks.example/licences"
    check = {"name": "Licences", "external_url": url}
    created = ask(ada, "POST", f"{PROJECT}/external_status_checks", check, id=project)
    ask(ada, "GET", f"{PROJECT}/external_status_checks", id=project)
    file = {"README.md": "# Hello\n"}
    change = commit_values("greeting", file, action="update", message="Greet", start_branch="main")
    ask(ada, "POST", f"{PROJECT}/repository/commits", change, id=project)
    body = {"source_branch": "greeting", "target_branch": "main", "title": "Greet"}
    merge_request = ask(ada, "POST", f"{PROJECT}/merge_requests", body, id=project)
    request = f"{PROJECT}/merge_requests/{{merge_request_iid}}"
    request_ids: dict[str, Any] = {"id": project, "merge_request_iid": merge_request["iid"]}
    result = {"sha": merge_request["sha"], "external_status_check_id": created["id"], "status": "failed"}
    ask(ada, "POST", f"{request}/status_check_responses", result, **request_ids)
    ask(ada, "GET", f"{request}/status_checks", **request_ids)
    retry = f"{request}/status_checks/{{external_status_check_id}}/retry"
    ask(ada, "POST", retry, external_status_check_id=created["id"], **request_ids)
    check_path = f"{PROJECT}/external_status_checks/{{check_id}}"
    ask(ada, "PUT", check_path, {"name": "Licences of all files"}, id=project, check_id=created["id"])
    ask(ada, "DELETE", check_path, id=project, check_id=created["id"])


def _mirrors(service: Recorder, ada: Token, project: int) -> None:
    ask = service.ask
    mirrors, mirror_path = f"{PROJECT}/remote_mirrors", f"{PROJECT}/remote_mirrors/{{mirror_id}}"
    body = {"url": "https://example-user:example-password@mirror.example/app.git", "enabled": True}
    created = ask(ada, "POST", mirrors, body, id=project)
    mirror_ids: dict[str, Any] = {"id": project, "mirror_id": created["id"]}
    ask(ada, "GET", mirrors, id=project)
    ask(ada, "GET", mirror_path, **mirror_ids)
    ask(ada, "PUT", mirror_path, {"only_protected_branches": True}, **mirror_ids)
    ask(ada, "POST", f"{mirror_path}/sync", **mirror_ids)
    ask(ada, "DELETE", mirror_path, **mirror_ids)


def _invitations(service: Recorder, ada: Token, kind: str, entity_id: int) -> None:
    ask = service.ask
    list_path, item_path = f"/{kind}/{{id}}/invitations", f"/{kind}/{{id}}/invitations/{{email}}"
    email = "grace@people.example"
    ask(ada, "POST", list_path, {"email": email, "access_level": 30}, id=entity_id)
    ask(ada, "GET", list_path, id=entity_id)
    ask(ada, "PUT", item_path, {"access_level": 40}, id=entity_id, email=email)
    ask(ada, "DELETE", item_path, id=entity_id, email=email)


def _audit(service: Recorder, root: Token, ada: Token, group: int, project: int) -> None:
    ask, two_rows = service.ask, {"per_page": "2"}
    events = ask(root, "GET", "/audit_events", query=two_rows)
    ask(root, "GET", "/audit_events/{id}", id=events[0]["id"])
    for kind, entity_id in (("groups", group), ("projects", project)):
        path = f"/{kind}/{{id}}/audit_events"
        page = ask(ada, "GET", path, id=entity_id, query=two_rows)
        ask(ada, "GET", f"{path}/{{audit_event_id}}", id=entity_id, audit_event_id=page[0]["id"])


def main() -> None:
    try:
        with starting.running("--no-edge") as forgelet:
            recorder = Recorder(forgelet.api_of(None))
            play(recorder, forgelet.root_token)
    except starting.CannotStart as problem:
        sys.exit(str(problem))
    json.dump(recorder.examples, sys.stdout, indent=1, ensure_ascii=False, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
