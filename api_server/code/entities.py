"""Branches, tags, commits and folders, which are stored in git and not in PostgreSQL: found by name, sorted, and as
the API shows them.

A name that does not exist is 404 in GitLab's words. Sorting by date reads an object for each branch or tag: call it in
a thread.
"""

import asyncio
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import attrs
import pygit2

from api_server.code.protection import Protection, TagProtection
from api_server.code.repository_queries import TagRelease
from api_server.git import commits, references, trees
from api_server.git.errors import NotFoundError
from api_server.git.references import Branch, Tag
from api_server.git.repositories import Repository
from api_server.namespaces.resources import Project
from api_server.web.errors import not_found
from api_server.web.routes import Role


def branch_named(repository: Repository, name: str) -> Branch:
    branch = references.branch(repository, name)
    if branch is None:
        raise not_found("Branch")
    return branch


def tag_named(repository: Repository, name: str) -> Tag:
    tag = references.tag(repository, name)
    if tag is None:
        raise not_found("Tag")
    return tag


def commit_named(repository: Repository, name: str) -> str:
    """Return the full SHA of the commit that a branch, tag or SHA names. Raise 404."""
    resolved = references.resolve(repository, name)
    if resolved is None:
        raise not_found("Commit")
    return resolved.commit


def folder_named(repository: Repository, ref: str, folder: str, *, recursive: bool) -> trees.Folder:
    """Return a folder of a branch, tag or commit, with all below it if `recursive`. Raise 404."""
    resolved = references.resolve(repository, ref)
    if resolved is None:
        raise not_found("Tree")
    try:
        return trees.open_folder(repository, resolved.commit, folder, recursive=recursive)
    except NotFoundError:
        raise not_found("invalid revision or path") from None


BranchOrder = Literal["name_asc", "updated_asc", "updated_desc"]
TagOrder = Literal["name", "updated", "version"]

RefT = TypeVar("RefT", Branch, Tag)

_NUMBER = re.compile(r"(\d+)")


def matching(refs: Sequence[RefT], search: str | None) -> list[RefT]:
    """Return the refs whose names contain the text, begin with it (`^text`) or end with it (`text$`), ignoring case,
    as GitLab searches them."""
    text = (search or "").lower()
    if text.startswith("^"):
        return [ref for ref in refs if ref.name.lower().startswith(text[1:])]
    if text.endswith("$"):
        return [ref for ref in refs if ref.name.lower().endswith(text[:-1])]
    return [ref for ref in refs if text in ref.name.lower()]


def find_branches(repository: Repository, search: str | None, order: BranchOrder) -> list[Branch]:
    """Return all matching branches by name, or by the dates of their commits."""
    branches = matching(references.branches(repository), search)
    if order == "name_asc":
        return branches
    return sorted(
        branches,
        key=lambda branch: (_date(repository, branch.commit), branch.name),
        reverse=order == "updated_desc",
    )


def find_tags(repository: Repository, search: str | None, order: TagOrder, *, descending: bool) -> list[Tag]:
    """Return all matching tags by name, by date (of the commit if the tag has no message), or by the numbers in their
    names."""
    tags = matching(references.tags(repository), search)
    match order:
        case "name":
            return sorted(tags, key=lambda tag: tag.name, reverse=descending)
        case "version":
            return sorted(tags, key=lambda tag: _version(tag.name), reverse=descending)
    return sorted(tags, key=lambda tag: (_date(repository, tag.target), tag.name), reverse=descending)


def _date(repository: Repository, object_id: str) -> int:
    git_object = repository[object_id]
    if isinstance(git_object, pygit2.Tag):
        return (
            git_object.tagger.time
            if git_object.tagger is not None
            else _date(repository, str(git_object.target))
        )
    return git_object.commit_time if isinstance(git_object, pygit2.Commit) else 0


def _version(name: str) -> tuple[tuple[str, int], ...]:
    """Split a name into texts and numbers, so that `v1.10` sorts after `v1.9`."""
    parts = _NUMBER.split(name)
    return tuple(
        (text, int(number or 0)) for text, number in zip(parts[::2], [*parts[1::2], ""], strict=True)
    )


#: Maximum number of characters of the message of a commit in a list, which may contain a thousand of them, and of the
#: names in it; maximum number of its parents. A push may contain a megabyte of each.
MESSAGE_IN_LIST, NAME_IN_LIST, PARENTS_IN_LIST = 16 * 1024, 255, 1000
_NAMES = ("author_name", "author_email", "committer_name", "committer_email")


def commit(
    repository: Repository, sha: str, project_url: str, stats: dict[str, int] | None = None
) -> dict[str, Any]:
    """Return a commit in GitLab's form with the URL of its page, and with its line counts if they are given."""
    entity = commits.commit_data(repository, sha) | {"web_url": f"{project_url}/-/commit/{sha}"}
    return entity if stats is None else entity | {"stats": stats}


async def commit_list(
    repository: Repository,
    shas: Sequence[str],
    project_url: str,
    stats: Mapping[str, dict[str, int]] | None = None,
) -> list[dict[str, Any]]:
    """Return the commits of a list. They are read in a thread, because their messages may be large. The messages of
    many commits have together at most as many characters as those of a page of 100."""
    counts = stats or {}

    def read() -> list[dict[str, Any]]:
        items = [in_list(commit(repository, sha, project_url, counts.get(sha))) for sha in shas]
        if sum(len(item["message"]) for item in items) > 100 * MESSAGE_IN_LIST:
            return [
                item | {"message": item["message"][: 100 * MESSAGE_IN_LIST // len(items)]} for item in items
            ]
        return items

    return await asyncio.to_thread(read)


def in_list(entity: dict[str, Any]) -> dict[str, Any]:
    """Return the commit as lists show it."""
    return entity | {
        "message": entity["message"][:MESSAGE_IN_LIST],
        "parent_ids": entity["parent_ids"][:PARENTS_IN_LIST],
        **{key: entity[key][:NAME_IN_LIST] for key in _NAMES},
    }


async def branch_list(
    repository: Repository,
    branches: Sequence[Branch],
    project: Project,
    project_url: str,
    protections: Mapping[str, Protection],
    merged: Container[str] = (),
) -> list[dict[str, Any]]:
    """Return the branches of a list; `protections` are by name, `merged` are names. They are read in a thread, like
    `commit_list`."""

    def read() -> list[dict[str, Any]]:
        entities = [
            branch(
                repository,
                item,
                project,
                project_url,
                protections[item.name],
                merged=item.name in merged,
            )
            for item in branches
        ]
        return [item | {"commit": in_list(item["commit"])} for item in entities]

    return await asyncio.to_thread(read)


async def tag_list(
    repository: Repository,
    tags: Sequence[Tag],
    project_url: str,
    rules: Mapping[str, TagProtection],
    releases: Mapping[str, TagRelease],
) -> list[dict[str, Any]]:
    """Return the tags of a list; `rules` and `releases` are by name. They are read in a thread, like `commit_list`."""

    def read() -> list[dict[str, Any]]:
        entities = [
            tag(
                repository,
                item,
                project_url,
                protected=rules[item.name].protected,
                release=releases.get(item.name),
            )
            for item in tags
        ]
        return [item | {"commit": in_list(item["commit"])} for item in entities]

    return await asyncio.to_thread(read)


def branch(
    repository: Repository,
    ref: Branch,
    project: Project,
    project_url: str,
    protection: Protection,
    *,
    merged: bool,
) -> dict[str, Any]:
    """Return a branch in GitLab's form. `protection` is the one that applies to it."""
    return {
        "name": ref.name,
        "commit": commit(repository, ref.commit, project_url),
        "merged": merged,
        "protected": protection.protected,
        "developers_can_push": protection.protected and protection.may_push(Role.DEVELOPER),
        "developers_can_merge": protection.protected and protection.may_merge(Role.DEVELOPER),
        "can_push": protection.may_push(project.role, admin=project.admin),
        "default": ref.name == project.default_branch,
        "web_url": f"{project_url}/-/tree/{quote(ref.name)}",
    }


def tag(
    repository: Repository,
    ref: Tag,
    project_url: str,
    *,
    protected: bool,
    release: TagRelease | None,
) -> dict[str, Any]:
    return {
        "name": ref.name,
        "message": ref.message or "",
        "target": ref.target,
        "commit": commit(repository, ref.commit, project_url),
        "release": release and attrs.asdict(release),
        "protected": protected,
        "created_at": None,
    }
