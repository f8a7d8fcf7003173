"""What lists of branches and tags have, and in which order. What is dated reads an object for each: call it in a
thread."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

import pygit2

from api_server.git.references import Branch, Tag
from api_server.git.repositories import Repository

BranchOrder = Literal["name_asc", "updated_asc", "updated_desc"]
TagOrder = Literal["name", "updated", "version"]

RefT = TypeVar("RefT", Branch, Tag)

_NUMBER = re.compile(r"(\d+)")


def matching(refs: Sequence[RefT], search: str | None) -> list[RefT]:
    """Those whose names have the text, begin with it (`^text`) or end with it (`text$`), in whatever case, as GitLab
    looks for them."""
    text = (search or "").lower()
    if text.startswith("^"):
        return [ref for ref in refs if ref.name.lower().startswith(text[1:])]
    if text.endswith("$"):
        return [ref for ref in refs if ref.name.lower().endswith(text[:-1])]
    return [ref for ref in refs if text in ref.name.lower()]


def of_branches(repository: Repository, found: Iterable[Branch], order: BranchOrder) -> list[Branch]:
    """By name, or by when their commits were made."""
    if order == "name_asc":
        return sorted(found, key=lambda branch: branch.name)
    return sorted(
        found,
        key=lambda branch: (_date(repository, branch.commit), branch.name),
        reverse=order == "updated_desc",
    )


def of_tags(repository: Repository, found: Iterable[Tag], order: TagOrder, *, descending: bool) -> list[Tag]:
    """By name, by when they were made (those without a message: their commits), or by the numbers in their names."""
    match order:
        case "name":
            return sorted(found, key=lambda tag: tag.name, reverse=descending)
        case "version":
            return sorted(found, key=lambda tag: _version(tag.name), reverse=descending)
    return sorted(found, key=lambda tag: (_date(repository, tag.target), tag.name), reverse=descending)


def _date(repository: Repository, object_id: str) -> int:
    found = repository[object_id]
    if isinstance(found, pygit2.Tag):
        return found.tagger.time if found.tagger is not None else _date(repository, str(found.target))
    return found.commit_time if isinstance(found, pygit2.Commit) else 0


def _version(name: str) -> tuple[tuple[str, int], ...]:
    """Texts and numbers by turns: `v1.10` follows `v1.9`."""
    parts = _NUMBER.split(name)
    return tuple(
        (text, int(number or 0)) for text, number in zip(parts[::2], [*parts[1::2], ""], strict=True)
    )
