"""Commits as GitLab shows them, and how they descend from each other."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pygit2

from api_server.git.errors import NotFound
from api_server.git.processes import run
from api_server.git.repositories import Repository, open_repository

SHORT_ID_DIGITS = 8
_TITLE_CHARACTERS = 80


def commit_data(repository: Repository, sha: str) -> dict[str, Any]:
    """The commit with this full SHA in GitLab's shape (without `web_url`). Raises `NotFound`."""
    try:
        commit = repository[sha].peel(pygit2.Commit)
    except (KeyError, ValueError, pygit2.GitError) as problem:
        raise NotFound(f"The commit {sha} does not exist.") from problem
    message = _text(commit.raw_message, commit.message_encoding)
    committed = _date(commit.committer)
    return {
        "id": str(commit.id),
        "short_id": str(commit.id)[:SHORT_ID_DIGITS],
        "created_at": committed,
        "parent_ids": [str(parent) for parent in commit.parent_ids],
        "title": _title(message),
        "message": message,
        "author_name": _text(commit.author.raw_name),
        "author_email": _text(commit.author.raw_email),
        "authored_date": _date(commit.author),
        "committer_name": _text(commit.committer.raw_name),
        "committer_email": _text(commit.committer.raw_email),
        "committed_date": committed,
    }


async def commits_between(repository: Repository, old: str | None, new: str, limit: int) -> list[str]:
    """SHAs of at most `limit` commits reachable from `new` but not from `old`, newest first (`git rev-list`)."""
    exclude = [f"^{old}"] if old is not None else []
    return await _shas(repository, ["rev-list", f"--max-count={limit}", new, *exclude, "--"])


async def merge_base(repository: Repository, one: str, other: str) -> str | None:
    """The best common ancestor of two commits, None when their histories have nothing in common."""
    found = await _shas(repository, ["merge-base", one, other], accept=(0, 1))
    return found[0] if found else None


async def is_ancestor(repository: Repository, ancestor: str, descendant: str) -> bool:
    """Whether `ancestor` is `descendant` or reachable from it, that is: a push from one to the other is no force push."""
    arguments = ["merge-base", "--is-ancestor", ancestor, descendant]
    return (await run(arguments, repository=_path(repository), accept=(0, 1))).returncode == 0


async def _shas(repository: Repository, arguments: Sequence[str], accept: Sequence[int] = (0,)) -> list[str]:
    # A child and not libgit2, which would hold the interpreter's lock for the whole walk.
    return (await run(arguments, repository=_path(repository), accept=accept)).stdout.decode().split()
