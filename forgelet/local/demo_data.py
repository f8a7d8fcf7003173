"""Demo users, a group and its projects, made through the API and `git push`. `demo_story.py` has what happens there.

Each step makes only what is missing, so an interrupted run can be continued. The projects contain this checkout's own
history, or files of the folder `demo`.
"""

import base64
import os
import shutil
import subprocess
import tempfile
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from forgelet.local.data_directory import DataDirectory
from forgelet.local.processes import CannotStart, reason_in
from forgelet.testing.api import Api, ApiError

#: A fixed author and date give the same commits each time, so that pushing again is never refused.
_AUTHOR = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in {
        "NAME": "Alice Archer",
        "EMAIL": "alice@example.org",
        "DATE": "2026-01-05T09:00:00Z",
    }.items()
}
#: What is pushed, in a folder for each project.
FILES = Path(__file__).with_name("demo")


def push_project(
    checkout: Path | None, base_url: str, path: str, branch: str, username: str, token: str
) -> None:
    """Push the history of `checkout` with its tags if it is a complete git repository, otherwise a small one."""
    remote = _Remote(f"{base_url}/{path}.git", username, token)
    if checkout and _is_whole_repository(checkout):
        remote.push(checkout, f"HEAD:refs/heads/{branch}", "refs/tags/*:refs/tags/*")
    else:
        _push_files("small", remote, branch)


def push_folder(folder: str, base_url: str, path: str, branch: str, username: str, token: str) -> None:
    """Push the files of a folder in `demo`."""
    _push_files(folder, _Remote(f"{base_url}/{path}.git", username, token), branch)


class _Remote:
    """A repository over HTTP and the user who pushes to it. git gets the token through its environment only."""

    def __init__(self, url: str, username: str, token: str) -> None:
        self._url = url
        basic = base64.b64encode(f"{username}:{token}".encode()).decode()
        self._environment = {
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_0": f"http.{url}.extraHeader",
            "GIT_CONFIG_VALUE_0": f"Authorization: Basic {basic}",
            "GIT_CONFIG_KEY_1": "http.proxy",
            "GIT_CONFIG_VALUE_1": "",
        }

    def push(self, repository: Path, *refspecs: str) -> None:
        """Push, without hooks of the repository. Leave refs alone that another push has created since."""
        done = _git(repository, "push", "--no-verify", "--quiet", self._url, *refspecs, **self._environment)
        if done.returncode != 0 and "[rejected]" not in done.stderr:
            reason = reason_in(done.stderr) or "no reason given"
            raise CannotStart(f"git push of the demo data failed: {reason}")


def _push_files(folder: str, remote: _Remote, branch: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        repository = shutil.copytree(FILES / folder, Path(name) / folder)
        for arguments in (
            ("init", "--quiet", f"--initial-branch={branch}"),
            ("add", "--all"),
            ("-c", "commit.gpgSign=false", "commit", "--quiet", "--no-verify", "--message=Start"),
        ):
            done = _git(repository, *arguments, **_AUTHOR)
            if done.returncode != 0:
                raise CannotStart(f"git {arguments[0]} of the demo data failed: {reason_in(done.stderr)}")
        remote.push(repository, f"HEAD:refs/heads/{branch}")


def _is_whole_repository(checkout: Path) -> bool:
    """Return whether `checkout` itself, not a folder above it, is a git work tree with commits and full history."""
    top = _git(checkout, "rev-parse", "--show-toplevel", "--is-shallow-repository", "HEAD")
    answers = top.stdout.splitlines()
    return top.returncode == 0 and Path(answers[0]).resolve() == checkout.resolve() and answers[1] == "false"


def _git(repository: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        ["git", "-C", str(repository), *arguments],
        env={**inherited, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


GUEST, REPORTER, DEVELOPER, MAINTAINER = 10, 20, 30, 40
GROUP = "demo"
OWNER = "alice"
BRANCH = "main"
TOKEN_SCOPES = ["api", "read_repository", "write_repository"]
USERS = {
    "alice": "Alice Archer",
    "erin": "Erin Evans",
    "bob": "Bob Baker",
    "carol": "Carol Cook",
    "dave": "Dave Dean",
}
RELEASES = "release/*"
_DONE_FOR = "demo-made-for"


class Project(NamedTuple):
    path: str
    visibility: str
    members: dict[str, int]
    description: str

    @property
    def full_path(self) -> str:
        return f"{GROUP}/{self.path}"


_TEAM = {"erin": MAINTAINER, "bob": DEVELOPER, "carol": REPORTER}
PUBLIC = Project("forgelet", "public", {**_TEAM, "dave": GUEST}, "A public repository to clone and push to")
PRIVATE = Project("secret", "private", _TEAM, "A private repository, for its members only")


def ensure(
    administrator: Api, data: DataDirectory, checkout: Path | None, tell: Callable[[str], None]
) -> None:
    """Make the demo data once for each database."""

    def make() -> None:
        tell("Making demo data ...")
        _make(administrator, data, checkout)

    try:
        once(administrator, data, _DONE_FOR, make)
    except (ApiError, OSError) as problem:
        raise CannotStart(f"The demo data cannot be made: {problem}; --no-demo leaves it out") from None
    data.write_secret("git-credentials", _git_credentials(administrator.base_url, data))


def once(administrator: Api, data: DataDirectory, name: str, make: Callable[[], None]) -> None:
    """Call `make` unless it has been called for this database. What people delete later is not made again."""
    instance = str(administrator.get("user")["created_at"])
    if data.recall(name) != instance:
        make()
        data.remember(name, instance)


def token_name(username: str) -> str:
    """Return the name of the secret that holds a demo user's token."""
    return f"{username}-token"


def _make(administrator: Api, data: DataDirectory, checkout: Path | None) -> None:
    ids = {username: _user(administrator, username, name) for username, name in USERS.items()}
    for username, user_id in ids.items():
        _token(administrator, data, username, user_id)
    owner = administrator.with_token(str(data.read_secret(token_name(OWNER))))
    group = owner.find(f"groups/{GROUP}") or owner.post(
        "groups", {"name": "Demo", "path": GROUP, "visibility": "public"}
    )
    for project in (PUBLIC, PRIVATE):
        make_project(owner, project, group["id"], ids)
    push_project(checkout, owner.base_url, PUBLIC.full_path, BRANCH, OWNER, owner.token)
    push_folder("secret", owner.base_url, PRIVATE.full_path, BRANCH, OWNER, owner.token)
    for project in (PUBLIC, PRIVATE):
        _protect_releases(owner, project)


def _user(administrator: Api, username: str, name: str) -> int:
    users = administrator.get("users", username=username)
    user = (
        users[0]
        if users
        else administrator.post(
            "users",
            {
                "username": username,
                "name": name,
                "email": f"{username}@example.org",
                "force_random_password": True,
                "skip_confirmation": True,
            },
        )
    )
    return int(user["id"])


def _token(administrator: Api, data: DataDirectory, username: str, user_id: int) -> None:
    """Store a working token of the user as a secret. Replace one that belongs to another database."""
    kept = data.read_secret(token_name(username))
    if kept is not None:
        try:
            if administrator.with_token(kept).get("user")["id"] == user_id:
                return
        except ApiError as problem:
            if problem.status != 401:
                raise
    made = administrator.post(
        f"users/{user_id}/personal_access_tokens", {"name": "demo", "scopes": TOKEN_SCOPES}
    )
    data.write_secret(token_name(username), made["token"])


def make_project(owner: Api, project: Project, group_id: int, user_ids: Mapping[str, int]) -> None:
    """The project in the group, with its members."""
    path = f"projects/{encoded(project.full_path)}"
    if owner.find(path) is None:
        owner.post(
            "projects",
            {
                "name": project.path,
                "path": project.path,
                "namespace_id": group_id,
                "visibility": project.visibility,
                "description": project.description,
            },
        )
    for username, access_level in project.members.items():
        if owner.find(f"{path}/members/{user_ids[username]}") is None:
            owner.post(f"{path}/members", {"user_id": user_ids[username], "access_level": access_level})


def _protect_releases(owner: Api, project: Project) -> None:
    path = f"projects/{encoded(project.full_path)}/protected_branches"
    if owner.find(f"{path}/{encoded(RELEASES)}") is None:
        owner.post(path, {"name": RELEASES, "push_access_level": MAINTAINER, "merge_access_level": DEVELOPER})


def encoded(path: str) -> str:
    """Return a full path as the API takes it in place of a number: `demo%2Fapp` for `demo/app`."""
    return urllib.parse.quote(path, safe="")


def _git_credentials(base_url: str, data: DataDirectory) -> str:
    """Return the lines of a `git credential-store` file, so that pasted git commands contain no token."""
    scheme, _, address = base_url.partition("://")
    tokens = {username: data.read_secret(token_name(username)) for username in USERS}
    return "\n".join(
        f"{scheme}://{username}:{token}@{address}" for username, token in tokens.items() if token
    )
