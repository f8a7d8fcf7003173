"""Demo users, a group and two projects with something of each area, made through the API and `git push`.

Each step makes only what is missing, so an interrupted run can be continued. The projects contain this checkout's own
history, or a small repository that is made on the spot.
"""

import base64
import os
import subprocess
import tempfile
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from forgelet.local.data_directory import DataDirectory
from forgelet.local.processes import CannotStart
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
_SMALL = {
    "README.md": "# Demo\n\nA small repository to try forgelet on.\n",
    "docs/guide.md": "# Guide\n\nClone, commit, push; then fetch the file through the edge.\n",
    "src/hello.py": 'print("hello")\n',
}
_SECRET = {
    ".gitlab-ci.yml": """stages: [build, test, deploy]

build: # nothing waits for a runner until somebody plays this
  stage: build
  when: manual
  allow_failure: false
  script:
    - mkdir out
    - date > out/built
  artifacts:
    paths: [out]

test:
  stage: test
  script: grep workers config/production.toml

deploy:
  stage: deploy
  when: manual
  script: echo deployed
""",
    "README.md": "# Secret\n\nOnly members of this project read this, through the edge too.\n",
    "config/production.toml": "[service]\nworkers = 4\n",
}


def push_project(
    checkout: Path | None, base_url: str, path: str, branch: str, username: str, token: str
) -> None:
    """Push the history of `checkout` with its tags if it is a complete git repository, otherwise a small one."""
    remote = _Remote(f"{base_url}/{path}.git", username, token)
    if checkout and _is_whole_repository(checkout):
        remote.push(checkout, f"HEAD:refs/heads/{branch}", "refs/tags/*:refs/tags/*")
    else:
        _push_files(_SMALL, remote, branch)


def push_secret(base_url: str, path: str, branch: str, username: str, token: str) -> None:
    """Push the small repository of the private project."""
    _push_files(_SECRET, _Remote(f"{base_url}/{path}.git", username, token), branch)


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
            said = done.stderr.strip().splitlines()
            raise CannotStart(f"git push of the demo data failed: {said[-1] if said else 'no reason given'}")


def _push_files(files: dict[str, str], remote: _Remote, branch: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        repository = Path(name)
        for file, text in files.items():
            (repository / file).parent.mkdir(parents=True, exist_ok=True)
            (repository / file).write_text(text)
        for arguments in (
            ("init", "--quiet", f"--initial-branch={branch}"),
            ("add", "--all"),
            ("-c", "commit.gpgSign=false", "commit", "--quiet", "--no-verify", "--message=Start"),
        ):
            done = _git(repository, *arguments, **_AUTHOR)
            if done.returncode != 0:
                raise CannotStart(f"git {arguments[0]} of the demo data failed: {done.stderr.strip()}")
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
CHANGE_BRANCH = "more-workers"
_DONE_FOR = "demo-made-for"


class Project(NamedTuple):
    path: str
    visibility: str
    members: dict[str, int]

    @property
    def full_path(self) -> str:
        return f"{GROUP}/{self.path}"


PUBLIC = Project(
    "forgelet", "public", {"erin": MAINTAINER, "bob": DEVELOPER, "carol": REPORTER, "dave": GUEST}
)
PRIVATE = Project("secret", "private", {"erin": MAINTAINER, "bob": DEVELOPER, "carol": REPORTER})


def ensure(
    administrator: Api, data: DataDirectory, checkout: Path | None, tell: Callable[[str], None]
) -> None:
    """Make the demo data once for each database. What people delete later is not made again."""
    try:
        instance = str(administrator.get("user")["created_at"])
        if data.recall(_DONE_FOR) != instance:
            tell("Making demo data ...")
            _make(administrator, data, checkout)
            data.remember(_DONE_FOR, instance)
    except (ApiError, OSError) as problem:
        raise CannotStart(f"The demo data cannot be made: {problem}; --no-demo leaves it out") from None
    data.write_secret("git-credentials", _git_credentials(administrator.base_url, data))


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
        _project(owner, project, group["id"], ids)
    push_project(checkout, owner.base_url, PUBLIC.full_path, BRANCH, OWNER, owner.token)
    push_secret(owner.base_url, PRIVATE.full_path, BRANCH, OWNER, owner.token)
    for project in (PUBLIC, PRIVATE):
        _protect_releases(owner, project)
    _propose_change(owner, PRIVATE)
    _fill_lists(owner, PRIVATE)


def _user(administrator: Api, username: str, name: str) -> int:
    found = administrator.get("users", username=username)
    user = (
        found[0]
        if found
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


def _project(owner: Api, project: Project, group_id: int, user_ids: dict[str, int]) -> None:
    path = f"projects/{encoded(project.full_path)}"
    if owner.find(path) is None:
        owner.post(
            "projects",
            {
                "name": project.path,
                "path": project.path,
                "namespace_id": group_id,
                "visibility": project.visibility,
            },
        )
    for username, access_level in project.members.items():
        if owner.find(f"{path}/members/{user_ids[username]}") is None:
            owner.post(f"{path}/members", {"user_id": user_ids[username], "access_level": access_level})


def _protect_releases(owner: Api, project: Project) -> None:
    path = f"projects/{encoded(project.full_path)}/protected_branches"
    if owner.find(f"{path}/{encoded(RELEASES)}") is None:
        owner.post(path, {"name": RELEASES, "push_access_level": MAINTAINER, "merge_access_level": DEVELOPER})


def _propose_change(owner: Api, project: Project) -> None:
    """Create a branch with one more commit. The push starts a pipeline."""
    path = f"projects/{encoded(project.full_path)}/repository"
    if owner.find(f"{path}/branches/{CHANGE_BRANCH}") is None:
        owner.put(
            f"{path}/files/{encoded('config/production.toml')}",
            {
                "branch": CHANGE_BRANCH,
                "start_branch": BRANCH,
                "content": "[service]\nworkers = 8\n",
                "commit_message": "Use twice as many workers",
            },
        )


def _fill_lists(owner: Api, project: Project) -> None:
    """Create one merge request, status check and invitation. None of them sends anything over the network."""
    path = f"projects/{encoded(project.full_path)}"
    releases = owner.get(f"{path}/protected_branches/{encoded(RELEASES)}")
    first_entries: dict[str, dict[str, Any]] = {
        "merge_requests": {
            "source_branch": CHANGE_BRANCH,
            "target_branch": BRANCH,
            "title": "Use twice as many workers",
        },
        "external_status_checks": {
            "name": "Policy",
            "external_url": "https://checks.example.org/policy",
            "protected_branch_ids": [releases["id"]],
        },
        "invitations": {"email": "frank@example.org", "access_level": REPORTER},
    }
    for name, first in first_entries.items():
        if not owner.get(f"{path}/{name}"):
            owner.post(f"{path}/{name}", first)


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
