"""What has happened in the project `demo/app`: pipelines with their jobs, a merge request that two people talk about,
status checks with the service that they ask, a mirror, a release and invitations.

This is made while the service can be used already, and a runner plays the jobs of the group as long as it runs.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from forgelet.local import demo_data, demo_receiver
from forgelet.local.data_directory import DataDirectory
from forgelet.local.demo_data import (
    BRANCH,
    DEVELOPER,
    GROUP,
    MAINTAINER,
    OWNER,
    REPORTER,
    Project,
    encoded,
)
from forgelet.local.processes import CannotStart
from forgelet.testing.api import Api, ApiError

APP = Project(
    "app", "public", {"erin": MAINTAINER, "bob": DEVELOPER}, "A project with all that there is to see"
)
COPY = Project("app-copy", "private", {}, "A copy of demo/app, which a push mirror keeps")
REVIEWER = "erin"
_PATH = f"projects/{encoded(APP.full_path)}"
#: By branch: the file that it changes, its new text, and why.
CHANGES = {
    "more-workers": ("config/production.toml", "[service]\nworkers = 8\n", "Use twice as many workers"),
    "faster-start": (
        "src/greeting.js",
        "export function greeting(name) {\n  return `Hello, ${name}!\\n`;\n}\n",
        "Leave out what takes time",
    ),
}
_MERGE_REQUEST = {
    "source_branch": "more-workers",
    "target_branch": BRANCH,
    "title": "Use twice as many workers",
    "description": "Half of the machine idles while requests wait.\n\n- [x] measured: 4 workers answer 900 requests/s\n"
    "- [ ] measured again with 8\n",
    "labels": "performance",
}
#: What is said about the merge request: who begins a thread, who answers, and whether it is resolved.
_THREADS = (
    ("Do we have the memory for eight of them?", "Each takes 60 MB, and 4 GB are free.", True),
    (
        "The licence check fails. Is that because of this change?",
        "No, there is no file `LICENSE` yet. I add one before we merge.",
        False,
    ),
)
_MADE_FOR = "demo-story-made-for"
#: Under which host and port of the checks' receiver are remembered, and the setting that lists whom it may call.
_RECEIVER, _ALLOWED = "demo-receiver", "outbound_local_requests_whitelist"
_RUNNER_TOKEN = "demo-runner-token"
#: How long the end of the service waits for a request that is under way.
_SECONDS = 2.0


@contextlib.contextmanager
def told(administrator: Api, data: DataDirectory, tell: Callable[[str], None]) -> Iterator[None]:
    """Make what is missing, and play jobs, beside the block. What cannot be made does not end the service."""
    over = threading.Event()

    def run() -> None:
        try:
            _tell_story(administrator, data, over)
        except (ApiError, CannotStart, OSError) as problem:
            if not over.is_set():
                tell(f"Some of the demo data cannot be made: {problem}")

    thread = threading.Thread(target=run, name="demo data", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_SECONDS)


def _tell_story(administrator: Api, data: DataDirectory, over: threading.Event) -> None:
    owner = _api_of(OWNER, administrator, data)
    before = data.recall(_RECEIVER)
    port = int(before.rpartition(":")[2]) if before else 0
    with _jobs_played(administrator, data), demo_receiver.receiving(owner, port) as port:
        host = f"{demo_receiver.HOST}:{port}"
        if before not in (None, host):
            _move_checks(administrator, owner, str(before), host)
        demo_data.once(administrator, data, _MADE_FOR, lambda: make(administrator, data, host))
        data.remember(_RECEIVER, host)
        over.wait()


def _api_of(username: str, administrator: Api, data: DataDirectory) -> Api:
    return administrator.with_token(str(data.read_secret(demo_data.token_name(username))))


@contextlib.contextmanager
def _jobs_played(administrator: Api, data: DataDirectory) -> Iterator[None]:
    """Run a runner of the group, which executes nothing, during the block; none if the group is gone."""
    from forgelet.local.runner import BuiltInRunner
    from forgelet.local.runner_rules import read_rules

    group = administrator.find(f"groups/{GROUP}")
    if group is None:
        yield
        return
    runner = BuiltInRunner(
        administrator,
        read_rules(demo_data.FILES / "rules.yml"),
        kind={
            "runner_type": "group_type",
            "group_id": group["id"],
            "description": "Runner of the demo, which executes nothing",
        },
        recall=lambda: data.read_secret(_RUNNER_TOKEN),
        remember=lambda token: data.write_secret(_RUNNER_TOKEN, token),
    )
    with runner.working():
        yield


def make(administrator: Api, data: DataDirectory, receiver: str) -> None:
    """`receiver` is host and port of what the checks ask. Raise `ApiError` and `CannotStart`."""
    owner, reviewer = (_api_of(username, administrator, data) for username in (OWNER, REVIEWER))
    group = owner.get(f"groups/{GROUP}")
    ids = {username: int(owner.get("users", username=username)[0]["id"]) for username in APP.members}
    for project in (APP, COPY):
        demo_data.make_project(owner, project, group["id"], ids)
    demo_data.push_folder("app", owner.base_url, APP.full_path, BRANCH, OWNER, owner.token)
    for branch, change in CHANGES.items():
        _change(owner, branch, *change)
    _once(owner, f"{_PATH}/releases", "tag_name", "v1.0", {"ref": BRANCH, "description": "The first one."})
    merge_request = _once(
        owner,
        f"{_PATH}/merge_requests",
        "source_branch",
        _MERGE_REQUEST["source_branch"],
        {**_MERGE_REQUEST, "reviewer_ids": [ids[REVIEWER]]},
    )
    _talk(owner, reviewer, f"{_PATH}/merge_requests/{merge_request['iid']}")
    _allow(administrator, receiver)
    for name in demo_receiver.CHECKS:
        url = f"http://{receiver}/{name.lower().replace(' ', '-')}"
        _once(owner, f"{_PATH}/external_status_checks", "name", name, {"external_url": url})
    _mirror(owner)
    for path, email, access_level in (
        (_PATH, "frank@example.org", REPORTER),
        (f"groups/{GROUP}", "grace@example.org", DEVELOPER),
    ):
        invitation = {"email": email, "access_level": access_level}
        _once(owner, f"{path}/invitations", "invite_email", email, invitation)


def _once(api: Api, path: str, key: str, value: str, body: Mapping[str, Any]) -> Any:
    """Return the entry of the list at `path` whose `key` is `value`, which is made of `body` where it is missing."""
    for entry in api.get(path):
        if entry.get(key) == value:
            return entry
    return api.post(path, {key: value, **body})


def _change(owner: Api, branch: str, file: str, text: str, why: str) -> None:
    """A branch with one more commit; a push like any other, it has a pipeline."""
    path = f"{_PATH}/repository"
    if owner.find(f"{path}/branches/{encoded(branch)}") is None:
        body = {"branch": branch, "start_branch": BRANCH, "content": text, "commit_message": why}
        owner.put(f"{path}/files/{encoded(file)}", body)


def _talk(owner: Api, reviewer: Api, merge_request: str) -> None:
    """The threads, and an approval."""
    for question, answer, is_resolved in _THREADS:
        begun = next(
            (
                each
                for each in owner.get(f"{merge_request}/discussions")
                if each["notes"][0]["body"] == question
            ),
            None,
        ) or reviewer.post(f"{merge_request}/discussions", {"body": question})
        thread = f"{merge_request}/discussions/{begun['id']}"
        if len(begun["notes"]) == 1:
            owner.post(f"{thread}/notes", {"body": answer})
        if is_resolved:
            reviewer.put(thread, {"resolved": True})
    if not reviewer.get(f"{merge_request}/approvals")["approved_by"]:
        reviewer.post(f"{merge_request}/approve", {})


def _allow(administrator: Api, receiver: str, instead_of: str | None = None) -> None:
    """Let the service call the receiver on this machine, which its policy forbids by itself."""
    allowed = administrator.get("application/settings")[_ALLOWED]
    others = [entry for entry in allowed if entry not in (receiver, instead_of)]
    administrator.put("application/settings", {_ALLOWED: [*others, receiver]})


def _move_checks(administrator: Api, owner: Api, before: str, receiver: str) -> None:
    """Have the checks ask the receiver at the port that it has today."""
    _allow(administrator, receiver, instead_of=before)
    path = f"{_PATH}/external_status_checks"
    for check in owner.find(path) or ():
        if f"//{before}/" in check["external_url"]:
            url = check["external_url"].replace(before, receiver)
            owner.put(f"{path}/{check['id']}", {"external_url": url})


def _mirror(owner: Api) -> None:
    """To a project of this service, at its own address, which it may always call."""
    path = f"{_PATH}/remote_mirrors"
    if not owner.get(path):
        address = owner.get(f"projects/{encoded(COPY.full_path)}")["http_url_to_repo"]
        url = address.replace("://", f"://{OWNER}:{owner.token}@", 1)
        owner.post(path, {"url": url, "enabled": True})
    for mirror in owner.get(path):
        if mirror["update_status"] == "none":
            owner.post(f"{path}/{mirror['id']}/sync", {})
