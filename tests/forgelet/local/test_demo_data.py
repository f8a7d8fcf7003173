"""Demo data: complete after any interruption, created once, and pushed from any kind of checkout."""

import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from forgelet.local import demo_data
from forgelet.local.data_directory import DataDirectory
from forgelet.local.demo_data import encoded
from forgelet.local.processes import CannotStart
from forgelet.testing.api import ApiError


class CutShortError(Exception):
    """Stands for Ctrl-C in the middle of a request."""


class Service:
    """The API's data, as far as demo data needs it; it fails at the request with the number `fail_at`."""

    def __init__(self) -> None:
        self.start_again()

    def start_again(self) -> None:
        self.resources: dict[str, Any] = {"application/settings": {ALLOWED: ["10.0.0.7"]}}
        self.tokens = {"root-token": {"id": 1, "created_at": "2026-01-01"}}
        self.requests = 0
        self.fail_at: int | None = None

    def count(self) -> None:
        self.requests += 1
        if self.requests == self.fail_at:
            raise CutShortError

    def made(self) -> dict[str, Any]:
        return {path: body for path, body in self.resources.items() if "personal_access_tokens" not in path}


ALLOWED = "outbound_local_requests_whitelist"
RECEIVER = "127.0.0.1:9"
#: Keys of a list's entries that differ from those of the request that creates them.
RENAMED = {"email": "invite_email"}
#: Additional values of a resource, by its kind.
FURTHER: dict[str, dict[str, Any]] = {
    "projects": {"http_url_to_repo": "http://127.0.0.1:8080/demo/app-copy.git"},
    "merge_requests": {"iid": 1},
    "remote_mirrors": {"update_status": "none"},
}
#: Keys whose value names a resource in its address; the first existing one counts.
NAMING = ("username", "user_id", "path", "name", "tag_name", "source_branch", "email", "invite_email")


class FakeApi:
    service: Service

    def __init__(self, base_url: str, token: str) -> None:
        self.base_url = base_url
        self.token = token

    def with_token(self, token: str) -> "FakeApi":
        return FakeApi(self.base_url, token)

    def get(self, path: str, **query: str) -> Any:
        self.service.count()
        if path == "user":
            if self.token not in self.service.tokens:
                raise ApiError("GET", "user", 401, None)
            return self.service.tokens[self.token]
        if path == "users":
            user = self.service.resources.get(f"users/{query['username']}")
            return [user] if user else []
        if path.endswith("/approvals"):
            return {"approved_by": self._entries(path.removesuffix("als") + "e")}
        return self.service.resources.get(path) or self._entries(path)

    def _entries(self, path: str) -> list[Any]:
        names = {place: place.removeprefix(f"{path}/") for place in self.service.resources}
        return [
            self.service.resources[place]
            for place, name in names.items()
            if name != place and "/" not in name
        ]

    def find(self, path: str) -> Any:
        self.service.count()
        return self.service.resources.get(path) or self._entries(path) or None

    def post(self, path: str, body: dict[str, Any]) -> Any:
        self.service.count()
        resources, kind, number = (
            self.service.resources,
            path.rpartition("/")[2],
            len(self.service.resources) + 10,
        )
        if kind == "notes":
            resources[path.removesuffix("/notes")]["notes"].append(body)
            return body
        if kind == "sync":
            resources[path.removesuffix("/sync")]["update_status"] = "finished"
            return None
        naming = () if kind == "external_status_checks" else NAMING
        key = str(next((body[name] for name in naming if name in body), number))
        location = f"{path}/{encoded(f'demo/{key}' if path == 'projects' else key)}"
        if kind == "personal_access_tokens":
            location += str(number)
            user_id = int(path.split("/")[1])
            self.service.tokens[f"token-{number}"] = {"id": user_id, "created_at": "2026-01-02"}
        assert location not in resources, "made twice"
        made = {RENAMED.get(name, name): value for name, value in body.items()}
        resources[location] = {
            **made,
            "id": number,
            "token": f"token-{number}",
            "notes": [body],
            **FURTHER.get(kind, {}),
        }
        return resources[location]

    def put(self, path: str, body: dict[str, Any]) -> Any:
        """Handle a commit that begins a branch, or a change of an existing resource."""
        self.service.count()
        repository, is_file, _ = path.partition("/files/")
        if is_file:
            self.service.resources[f"{repository}/branches/{body['branch']}"] = body
        else:
            self.service.resources[path] |= body


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    service = Service()
    monkeypatch.setattr(FakeApi, "service", service, raising=False)
    monkeypatch.setattr(demo_data, "push_project", lambda *_arguments: service.count())
    monkeypatch.setattr(demo_data, "push_folder", lambda *_arguments: service.count())
    return service


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    return DataDirectory(tmp_path)


def ensure(data: DataDirectory) -> None:
    """Create all demo data, one step after the other."""
    administrator: Any = FakeApi("http://127.0.0.1:8080", "root-token")
    demo_data.ensure(administrator, data, Path("/"), lambda _text: None)
    demo_data.once(administrator, data, "story", lambda: demo_data.make(administrator, data, RECEIVER))


def test_every_request_may_be_the_last_of_a_run_and_the_next_completes_the_data(
    service: Service, tmp_path: Path
) -> None:
    ensure(whole := DataDirectory(tmp_path))
    complete, requests = service.made(), service.requests
    assert requests > 80
    assert service.resources["application/settings"] == {ALLOWED: ["10.0.0.7", RECEIVER]}
    shape = {path.rsplit("/", 1)[0] for path in complete}
    for fail_at in range(1, requests + 1):
        service.start_again()
        service.fail_at = fail_at
        data = DataDirectory(tmp_path / str(fail_at))
        data.path.mkdir()
        with pytest.raises(CutShortError):
            ensure(data)
        ensure(data)
        assert len(service.made()) == len(complete)
        assert {path.rsplit("/", 1)[0] for path in service.made()} == shape
        for username in demo_data.USERS:
            token = data.read_secret(demo_data.token_name(username))
            assert service.tokens[str(token)]["id"] == service.resources[f"users/{username}"]["id"]
    assert whole.read_secret("git-credentials")


def test_what_was_deleted_is_not_made_again_but_a_new_database_gets_everything(
    service: Service, data: DataDirectory
) -> None:
    ensure(data)
    before = service.made()
    del service.resources["projects/demo%2Fsecret"]
    ensure(data)
    assert "projects/demo%2Fsecret" not in service.resources

    service.start_again()
    service.tokens["root-token"]["created_at"] = "2026-02-02"
    ensure(data)
    assert service.made().keys() == before.keys()


def test_git_finds_a_credential_for_each_user_at_the_servers_address(
    service: Service, data: DataDirectory
) -> None:
    ensure(data)
    lines = str(data.read_secret("git-credentials")).splitlines()
    alice = data.read_secret("alice-token")
    assert f"http://alice:{alice}@127.0.0.1:8080" in lines
    assert len(lines) == len(demo_data.USERS)


def test_a_refusal_of_the_service_is_one_sentence(service: Service, data: DataDirectory) -> None:
    del service.tokens["root-token"]
    with pytest.raises(CannotStart, match=r"^The demo data cannot be made: GET user answered 401: None; .*$"):
        ensure(data)


class Owner:
    """The part of the API that the receiver of the checks uses; `LICENSE` is in the commit `with`."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, dict[str, Any]]] = []

    def find(self, path: str) -> Any:
        assert path.startswith("projects/7/repository/files/LICENSE?ref=")
        return {} if path.endswith("=with") else None

    def post(self, path: str, body: dict[str, Any]) -> None:
        self.posted.append((path, body))


def sent(name: str, sha: str) -> bytes:
    about = {"iid": 3, "last_commit": {"id": sha}}
    check = {"id": 5, "name": name}
    payload = {"project": {"id": 7}, "object_attributes": about, "external_approval_rule": check}
    return json.dumps(payload).encode()


def deliver(port: int, body: bytes) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/x", data=body)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_the_receiver_of_the_checks_says_which_commits_pass() -> None:
    owner: Any = Owner()
    with demo_data.receiving(owner, 0) as port, demo_data.receiving(owner, port) as other:
        assert port != other, "the port is taken: another one"
        statuses = [
            deliver(port, sent(name, sha))
            for name, sha in (
                ("Security scan", "without"),
                ("Licence check", "without"),
                ("Licence check", "with"),
                ("Of somebody else", "with"),
            )
        ]
        assert [*statuses, *(deliver(port, body) for body in (b"", b"[]", b"{"))] == [200] * 3 + [400] * 4
    assert owner.posted == [
        (
            "projects/7/merge_requests/3/status_check_responses",
            {"external_status_check_id": 5, "sha": sha, "status": status},
        )
        for sha, status in (("without", "passed"), ("without", "failed"), ("with", "passed"))
    ]


def test_checks_follow_the_receiver_to_another_port(service: Service, data: DataDirectory) -> None:
    ensure(data)
    administrator: Any = FakeApi("http://127.0.0.1:8080", "root-token")
    demo_data._move_checks(administrator, administrator, RECEIVER, "127.0.0.1:10")
    urls = [made["external_url"] for made in service.resources.values() if "external_url" in made]
    assert urls == ["http://127.0.0.1:10/security-scan", "http://127.0.0.1:10/licence-check"]
    assert service.resources["application/settings"] == {ALLOWED: ["10.0.0.7", "127.0.0.1:10"]}


def git(where: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(where), "-c", "user.name=bob", "-c", "user.email=bob@example.org", *arguments],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """The folder of the bare repository `demo/app.git`."""
    git(tmp_path, "init", "--quiet", "--bare", "demo/app.git")
    return tmp_path


def push(server: Path, checkout: Path) -> list[str]:
    """Push as `up` does; return the names of the resulting refs."""
    demo_data.push_project(checkout, server.as_uri(), "demo/app", "main", "alice", "a-token")
    refs = git(server / "demo/app.git", "for-each-ref", "--format=%(refname)")
    return refs.splitlines()


def test_the_history_of_a_checkout_is_pushed_with_its_tags_but_not_its_other_branches(
    server: Path, tmp_path: Path
) -> None:
    checkout = tmp_path / "check out"
    git(tmp_path, "init", "--quiet", "--initial-branch=trunk", str(checkout))
    git(checkout, "commit", "--quiet", "--allow-empty", "-m", "one")
    git(checkout, "tag", "v1")
    git(checkout, "branch", "private")
    assert push(server, checkout) == ["refs/heads/main", "refs/tags/v1"]
    assert git(server / "demo/app.git", "rev-parse", "main") == git(checkout, "rev-parse", "HEAD")

    git(checkout, "commit", "--quiet", "--allow-empty", "--amend", "-m", "another")
    assert push(server, checkout) == ["refs/heads/main", "refs/tags/v1"], "what is there already stays"


def test_a_folder_without_a_repository_gets_the_same_small_history_each_time(
    server: Path, tmp_path: Path
) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    assert push(server, nothing) == ["refs/heads/main"]
    first = git(server / "demo/app.git", "rev-parse", "main")
    push(server, nothing)
    assert git(server / "demo/app.git", "rev-parse", "main") == first
    assert "README.md" in git(server / "demo/app.git", "ls-tree", "--name-only", "main")


def test_a_shallow_checkout_is_not_pushed_since_servers_refuse_it(server: Path, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    git(tmp_path, "init", "--quiet", str(origin))
    for message in ("one", "two"):
        git(origin, "commit", "--quiet", "--allow-empty", "-m", message)
    git(tmp_path, "clone", "--quiet", "--depth=1", origin.as_uri(), "shallow")
    push(server, tmp_path / "shallow")
    assert "Start" in git(server / "demo/app.git", "log", "--format=%s", "main")


def test_a_push_that_fails_is_one_sentence_without_the_token(server: Path, tmp_path: Path) -> None:
    (server / "demo/app.git/HEAD").unlink()
    with pytest.raises(CannotStart, match=r"^git push of the demo data failed: .*$") as caught:
        push(server, tmp_path / "none")
    assert "a-token" not in str(caught.value)
