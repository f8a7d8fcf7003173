"""Functions that the Python programs share: access to the tested server, and a line of output for each call.

The interpreter of the tested client imports this module, which uses nothing of this project.
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
    """Report whether the block raises an exception; do not pass it on."""
    try:
        yield
    except Exception as problem:
        message = " ".join(f"{type(problem).__name__}: {problem}".split())
        print(f"failed\t{area}\t{name}\t{message}", flush=True)
    else:
        print(f"ok\t{area}\t{name}", flush=True)


def api(method: str, path: str, **values: Any) -> Any:
    """Send a request to the API as administrator, for what a program needs besides its client."""
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
    """Create a user; return it with a `token`."""
    user: dict[str, Any] = api(
        "POST",
        "users",
        username=name,
        name=name.title(),
        email=f"{name}@example.org",
        force_random_password=True,
        skip_confirmation=True,
    )
    token = api("POST", f"users/{user['id']}/personal_access_tokens", name="all", scopes=["api"])
    return user | {"token": token["token"]}


def with_credentials(url: str, user: str, token: str) -> str:
    return url.replace("://", f"://{quote(user)}:{quote(token)}@")
