"""Content that the tools create in a forgelet: users, commits, archives, and repositories that git makes."""

import io
import os
import subprocess
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from common.logs import redact
from forgelet.testing.api import Api

_BOUNDARY = "between-the-parts"


def user_values(name: str) -> dict[str, Any]:
    """Return the body of a request that creates a confirmed user of that name."""
    return {
        "username": name,
        "name": name,
        "email": f"{name}@example.org",
        "force_random_password": True,
        "skip_confirmation": True,
    }


@attrs.frozen
class User:
    """A user, and her token of the scope `api`."""

    id: int
    token: str


def new_user(root: Api, name: str) -> User:
    """Create a user as the administrator."""
    user = root.post("users", user_values(name))
    values = {"name": "tools", "scopes": ["api"], "expires_at": "2099-01-01"}
    token = root.post(f"users/{user['id']}/personal_access_tokens", values)
    return User(user["id"], token["token"])


def commit_values(
    branch: str, files: Mapping[str, str], *, action: str = "create", message: str = "Change", **others: str
) -> dict[str, Any]:
    """Return the body of a commit that creates (or updates) these files; `start_branch` may be among the `others`."""
    actions = [{"action": action, "file_path": path, "content": text} for path, text in files.items()]
    return {"branch": branch, "commit_message": message, "actions": actions, **others}


def archive(files: Mapping[str, str | bytes]) -> bytes:
    """Return a zip archive of these files."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zip_file:
        for name, content in files.items():
            zip_file.writestr(name, content)
    return file.getvalue()


def multipart(content: bytes, name: str = "artifacts.zip") -> tuple[bytes, str]:
    """Return the body of a form with one file, and its Content-Type."""
    disposition = f'Content-Disposition: form-data; name="file"; filename="{name}"'
    head = f"--{_BOUNDARY}\r\n{disposition}\r\nContent-Type: application/octet-stream\r\n\r\n"
    body = head.encode() + content + f"\r\n--{_BOUNDARY}--\r\n".encode()
    return body, f"multipart/form-data; boundary={_BOUNDARY}"


def git(repository: Path, *arguments: str, stdin: bytes | Iterable[bytes] = b"") -> str:
    """Run git on a bare repository without this machine's configuration; return its output. Raise RuntimeError if it
    fails."""
    identity = {f"GIT_{role}_{part}": "alice@example.org" for role in _ROLES for part in ("NAME", "EMAIL")}
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(repository.parent),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        **identity,
    }
    result = subprocess.run(
        ["git", f"--git-dir={repository}", *arguments],
        input=stdin if isinstance(stdin, bytes) else b"".join(stdin),
        capture_output=True,
        env=environment,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(
            f"git {arguments[0]} failed: {redact(result.stderr.decode(errors='replace')).strip()}"
        )
    return result.stdout.decode(errors="replace")


_ROLES = ("AUTHOR", "COMMITTER")


def data(content: bytes) -> bytes:
    """Return content as git-fast-import(1) reads it."""
    return b"data %d\n" % len(content) + content + b"\n"


def commit_head(branch: str, message: str, *, on: str = "") -> bytes:
    """Return the beginning of a commit for git-fast-import(1), which files have to follow. Its parent is `on`, if
    given."""
    head = f"commit refs/heads/{branch}\ncommitter Alice <alice@example.org> 1700000000 +0000\n".encode()
    return head + data(message.encode()) + (f"from {on}\n".encode() if on else b"")
