"""Users, a group and two projects with something of each area, made through the API and `git push` like anybody's.

Each step looks first and acts only where something is missing, so that a run cut short is taken up again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from forgelet.local.api_client import Api, ApiError, encoded
from forgelet.local.data_directory import DataDirectory
from forgelet.local.demo_repositories import push_project, push_secret
from forgelet.local.processes import CannotStart

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
    """Makes what is missing, once for each database: what people delete later stays deleted."""
    try:
        instance = str(administrator.get("user")["created_at"])
        if data.recall(_DONE_FOR) != instance:
            tell("Making demo data ...")
            _make(administrator, data, checkout)
            data.remember(_DONE_FOR, instance)
    except ApiError as problem:
        raise CannotStart(f"The demo data cannot be made: {problem}; --no-demo leaves it out") from None
    data.write_secret("git-credentials", _git_credentials(administrator.base_url, data))


def token_name(username: str) -> str:
    """The file in the folder of secrets that holds a demo user's token."""
    return f"{username}-token"


def _make(administrator: Api, data: DataDirectory, checkout: Path | None) -> None:
    ids = {username: _user(administrator, username, name) for username, name in USERS.items()}
    for username, user_id in ids.items():
        _token(administrator, data, username, user_id)
    owner = Api(administrator.base_url, str(data.read_secret(token_name(OWNER))))
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
    """A working token of the user in the folder of secrets; one left from another database is replaced."""
    kept = data.read_secret(token_name(username))
    if kept is not None:
        try:
            if Api(administrator.base_url, kept).get("user")["id"] == user_id:
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
    """A branch with one more commit; a push like any other, it has a pipeline."""
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
    """One merge request, status check and invitation, none of which sends anything over the network."""
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


def _git_credentials(base_url: str, data: DataDirectory) -> str:
    """The format of `git credential-store`, so that pasted git commands carry no token."""
    scheme, _, address = base_url.partition("://")
    tokens = {username: data.read_secret(token_name(username)) for username in USERS}
    return "\n".join(
        f"{scheme}://{username}:{token}@{address}" for username, token in tokens.items() if token
    )
