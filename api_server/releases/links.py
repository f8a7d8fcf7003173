"""What a link of a release may be; its rules are GitLab's, and so are the words."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import attrs
from yarl import URL

from api_server.state.errors import Conflict
from api_server.web.errors import ApiError, invalid

LinkType = Literal["other", "runbook", "image", "package"]

MAX_FILEPATH = 128
_FILEPATH = re.compile(r"/(?:[-.\w]+/)*[-.\w]*[0-9a-zA-Z]", re.ASCII)
_SCHEMES = ("http", "https", "ftp")
_NOT_IN_URLS = re.compile(r"[\x00-\x20\x7f]")
_TAKEN = "has already been taken"


@attrs.frozen(kw_only=True)
class Link:
    """`filepath` is a path below the release that leads to `url`: `/bin/app`."""

    name: str
    url: str
    filepath: str | None = None
    link_type: LinkType = "other"


def check(link: Link) -> None:
    """Raises 400."""
    if problems := _problems(link):
        raise invalid(problems)


def check_all(links: Sequence[Link], most: int) -> None:
    """Of a new release. Raises 400."""
    check_room(len(links), most)  # first: the others take longer the more there are
    for link in links:
        for field, texts in _problems(link).items():
            raise _not_valid(f"Links {field} {texts[0]}")
    for field in ("name", "url", "filepath"):
        counted = Counter(value for link in links if (value := getattr(link, field)))
        if doubled := sorted(value for value, count in counted.items() if count > 1):
            raise _not_valid(f"Links have duplicate values ({', '.join(doubled)})")


def check_room(count: int, most: int) -> None:
    """Raises 400 for more links than a release may have; `most` 0 is no limit."""
    if most and count > most:
        raise _not_valid(f"Links are too many (maximum is {most})")


def taken(problem: Conflict) -> ApiError:
    """The 400 of a name, URL or path that another link of the release has."""
    return invalid({problem.constraint.removeprefix("release_links_"): [_TAKEN]})


def _not_valid(text: str) -> ApiError:
    return invalid(f"Validation failed: {text}")


def _problems(link: Link) -> dict[str, list[str]]:
    problems = {}
    if problem := _problem_with_url(link.url):
        problems["url"] = [f"is blocked: {problem}"]
    if link.filepath and len(link.filepath) > MAX_FILEPATH:
        problems["filepath"] = [f"is too long (maximum is {MAX_FILEPATH} characters)"]
    elif link.filepath and not _FILEPATH.fullmatch(link.filepath):
        problems["filepath"] = ["is invalid"]
    return problems


def _problem_with_url(url: str) -> str | None:
    try:
        parts = URL(url)  # as it is read when somebody is redirected to it
    except ValueError:
        return "URI is invalid"
    if parts.scheme not in _SCHEMES:
        return f"Only allowed schemes are {', '.join(_SCHEMES)}"
    return None if parts.raw_host and not _NOT_IN_URLS.search(url) else "URI is invalid"
