"""What the programs in Python share: the server that is tried, and a line for each call.

It is imported by the interpreter of the client that is tried, and uses nothing of this project.
"""

import contextlib
import json
import os
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

URL, TOKEN = os.environ["FORGELET_URL"], os.environ["FORGELET_TOKEN"]


@contextlib.contextmanager
def call(area: str, name: str) -> Iterator[None]:
    """Report whether the block raises, which it may."""
    try:
        yield
    except Exception as problem:
        message = " ".join(f"{type(problem).__name__}: {problem}".split())
        print(f"failed\t{area}\t{name}\t{message}", flush=True)
    else:
        print(f"ok\t{area}\t{name}", flush=True)


def api(method: str, path: str, **values: Any) -> Any:
    """Ask the API as its administrator, for what a program has to find."""
    request = urllib.request.Request(
        f"{URL}/api/v4/{path}",
        json.dumps(values).encode() if values else None,
        {"PRIVATE-TOKEN": TOKEN, "Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def person(name: str) -> dict[str, Any]:
    """A new user, with a `token`."""
    user: dict[str, Any] = api(
        "POST",
        "users",
        username=name,
        name=name.title(),
        email=f"{name}@example.org",
        force_random_password=True,
        skip_confirmation=True,
    )
    made = api("POST", f"users/{user['id']}/personal_access_tokens", name="all", scopes=["api"])
    return user | {"token": made["token"]}


def with_credentials(url: str, user: str, token: str) -> str:
    return url.replace("://", f"://{quote(user)}:{quote(token)}@")
