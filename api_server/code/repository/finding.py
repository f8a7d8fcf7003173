"""What callers name in a repository; what is not there is 404, in GitLab's words."""

import asyncio
from collections.abc import Sequence

from api_server.git import files, references, trees
from api_server.git.errors import NotFoundError
from api_server.git.files import Entry
from api_server.git.references import Branch, Tag
from api_server.git.repositories import Repository
from api_server.web.errors import not_found


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
    """The full SHA of the commit that a branch, tag or SHA names."""
    resolved = references.resolve(repository, name)
    if resolved is None:
        raise not_found("Commit")
    return resolved.commit


def file_at(repository: Repository, ref: str, path: str) -> tuple[str, Entry]:
    """The file, and the commit that it was found in."""
    commit = commit_named(repository, ref)
    entry = files.find(repository, commit, path)
    if entry is None or not entry.is_blob:
        raise not_found("File")
    return commit, entry


async def nodes_at(repository: Repository, ref: str, folder: str, *, recursive: bool) -> Sequence[trees.Node]:
    """What is in a folder, `recursive` with all below it."""
    resolved = references.resolve(repository, ref)
    if resolved is None:
        raise not_found("Tree")
    try:
        return await asyncio.to_thread(trees.below, repository, resolved.commit, folder, recursive=recursive)
    except NotFoundError:
        raise not_found("invalid revision or path") from None
