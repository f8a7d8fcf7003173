"""The server that somebody else has started: where it is, by what the tests were told."""

import json
import re
from http.client import HTTPException
from pathlib import Path

from forgelet.testing.api import ApiError
from forgelet.testing.server import Forgelet, Ready
from forgelet.testing.starting import CannotStart


def of_file(path: Path) -> Ready:
    """The one that has written this file. Raises `CannotStart`."""
    try:
        return Ready.of(json.loads(path.read_text()))
    except (OSError, ValueError, LookupError, TypeError) as problem:
        raise CannotStart(f"{path} is not the ready file of a server that runs: {problem}") from None


def of_url(url: str, root_token: str | None) -> Ready:
    """The one at `url`. Raises `CannotStart`."""
    if not re.match("https?://.", url):
        raise CannotStart(f"--forgelet-url is {url!r}; it has to begin with http:// or https://")
    if not root_token:
        raise CannotStart(f"set FORGELET_ROOT_TOKEN to the administrator's token of {url}")
    return Ready(url, root_token)


def version_of(forgelet: Forgelet) -> str:
    """What it says to be: `17.11.0`. Raises `CannotStart` where it is nothing of the kind."""
    try:
        return str(forgelet.api.get("version")["version"])
    except (ApiError, OSError, HTTPException, ValueError, LookupError, TypeError) as problem:
        raise CannotStart(
            f"{forgelet.url} does not answer as a GitLab does to its administrator: {problem}"
        ) from None
