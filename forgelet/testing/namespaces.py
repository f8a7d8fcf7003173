"""New users, groups and projects, so that each test gets a namespace of its own."""

import dataclasses
import re
import secrets
from typing import TYPE_CHECKING

from forgelet.testing.api import Api

if TYPE_CHECKING:
    from forgelet.testing.server import Forgelet

#: The scopes of new users' tokens: everything that a user may do.
SCOPES = ("api", "read_user", "read_repository", "write_repository", "create_runner", "manage_runner")


@dataclasses.dataclass(frozen=True)
class User:
    """An ordinary user (no administrator) with a personal access token."""

    id: int
    username: str
    name: str
    email: str
    token: str = dataclasses.field(repr=False)
    api: Api = dataclasses.field(repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class Group:
    """A private group, owned by `owner`."""

    id: int
    name: str
    path: str
    full_path: str
    web_url: str
    owner: User

    @property
    def token(self) -> str:
        """The owner's token."""
        return self.owner.token


@dataclasses.dataclass(frozen=True)
class Project:
    """A private project with a first commit, in the namespace of its `owner`."""

    id: int
    name: str
    path_with_namespace: str
    default_branch: str
    web_url: str
    http_url_to_repo: str
    owner: User

    @property
    def token(self) -> str:
        """The owner's token."""
        return self.owner.token

    @property
    def git_url(self) -> str:
        """`http_url_to_repo` with the owner's name and token, for `git clone` and `git push`."""
        scheme, _, rest = self.http_url_to_repo.partition("://")
        return f"{scheme}://{self.owner.username}:{self.owner.token}@{rest}"


def new_user(forgelet: "Forgelet", label: str = "user") -> User:
    """Create a user whose name begins with `label`."""
    username = _name(label)
    email = f"{username}@example.org"
    attributes = {
        "username": username,
        "name": username,
        "email": email,
        "force_random_password": True,
        "skip_confirmation": True,
    }
    user = forgelet.api.post("users", attributes)
    token_entity = forgelet.api.post(
        f"users/{user['id']}/personal_access_tokens", {"name": "test", "scopes": list(SCOPES)}
    )
    token = token_entity["token"]
    return User(user["id"], username, user["name"], email, token, forgelet.api_of(token))


def new_group(owner: User, label: str = "group") -> Group:
    """Create a group of `owner`."""
    name = _name(label)
    group = owner.api.post("groups", {"name": name, "path": name})
    return Group(**{key: group[key] for key in ("id", "name", "path", "full_path", "web_url")}, owner=owner)


def new_project(owner: User, label: str = "project") -> Project:
    """Create a project of `owner` in the owner's namespace."""
    project = owner.api.post("projects", {"name": _name(label), "initialize_with_readme": True})
    keys = ("id", "name", "path_with_namespace", "default_branch", "web_url", "http_url_to_repo")
    return Project(**{key: project[key] for key in keys}, owner=owner)


def _name(label: str) -> str:
    """Return a unique path that shows which test it belongs to."""
    readable = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:40].strip("-")
    return f"{readable or 'test'}-{secrets.token_hex(4)}"
