"""The data that pipelines read from the repository: a commit with its configuration, and the target of a
ref."""

import asyncio
import datetime
import functools
from collections.abc import Collection
from typing import Any

import attrs

from api_server.ci.config import context, predefined
from api_server.ci.config.errors import CiConfigError
from api_server.ci.config.yaml_text import MAX_BYTES, too_big
from api_server.git import commits, references, trees
from api_server.git.errors import GitLimitError, NotFoundError, RepositoryMissingError
from api_server.git.ref_names import NO_COMMIT
from api_server.git.repositories import Repositories, Repository

#: Maximum number of paths of a commit or a change that are compared with patterns.
MAX_PATHS = 200_000


@attrs.frozen(kw_only=True)
class Commit:
    """The commit from which a pipeline is planned: `commit` as answers show it, and the configuration's
    `text`, or None if there is none or if it is refused unread, for the reason in `problem`."""

    repository: Repository
    sha: str
    commit: dict[str, Any]
    tag_message: str
    text: str | None
    problem: CiConfigError | None = None

    @property
    def description(self) -> predefined.Commit:
        """The values of the `CI_COMMIT_*` variables."""
        return predefined.Commit(
            sha=self.sha,
            message=self.commit["message"],
            author=self.commit["author_name"],
            author_email=self.commit["author_email"],
            timestamp=datetime.datetime.fromisoformat(self.commit["committed_date"]),
        )


def for_planning(
    repository: Repository,
    sha: str,
    project: str,
    loop: asyncio.AbstractEventLoop,
    changed_from: str = NO_COMMIT,
) -> context.Repository:
    """Return a commit of the project at a full path, for use in a thread: long git operations run in the
    event loop `loop`, which must not wait for the thread. `changed_from` is the commit to compare with if
    rules ask for changes."""

    @functools.cache
    def changed() -> Collection[str] | None:
        return asyncio.run_coroutine_threadsafe(_changed(repository, changed_from, sha), loop).result()

    def changed_since(ref: str) -> Collection[str] | None:
        return asyncio.run_coroutine_threadsafe(_changed_since(repository, ref, sha), loop).result()

    return context.Repository(
        read=lambda path: read_text(repository, sha, path),
        content_id=functools.cache(lambda path: _content_id(repository, sha, path)),
        paths=lambda: asyncio.run_coroutine_threadsafe(_paths(repository, sha), loop).result(),
        changed=changed,
        changed_since=changed_since,
        project=project,
        sha=sha,
    )


async def read_commit(
    repositories: Repositories, project_id: int, sha: str, *, tag: str | None, path: str
) -> Commit:
    """Return the commit. Raise `NotFoundError` without the commit, `RepositoryMissingError` without a
    repository."""
    repository = repositories.open(project_id)
    commit = commits.commit_data(repository, sha)
    resolved_tag = references.tag(repository, tag) if tag is not None else None
    text, problem = None, None
    try:
        text = await asyncio.to_thread(read_text, repository, sha, path)
    except CiConfigError as refused:
        problem = refused
    return Commit(
        repository=repository,
        sha=sha,
        commit=commit,
        tag_message=(resolved_tag.message or "") if resolved_tag is not None else "",
        text=text,
        problem=problem,
    )


def resolve_ref(repositories: Repositories, project_id: int, ref: str) -> references.Resolved | None:
    """Return the branch or tag that `ref` names, by its short or full name; None for any other name and
    without a repository.

    Raise `AmbiguousNameError`.
    """
    try:
        return references.resolve_unambiguous(repositories.open(project_id), ref)
    except RepositoryMissingError:
        return None


def read_text(repository: Repository, sha: str, path: str) -> str | None:
    """Return the text of a file of a commit, or None if there is no such file.

    Raise `CiConfigError` if it is too large for a configuration.
    """
    entry = trees.find_entry(repository, sha, path.strip("/"))
    if entry is None or not entry.is_blob:
        return None
    if (entry.size or 0) > MAX_BYTES:
        raise CiConfigError(too_big(entry.size or 0, MAX_BYTES))
    return trees.read_blob(repository, entry).decode(errors="replace")


def _content_id(repository: Repository, sha: str, path: str) -> str | None:
    entry = trees.find_entry(repository, sha, path.strip("/"))
    return None if entry is None else entry.id


async def _paths(repository: Repository, sha: str) -> Collection[str]:
    """Return all paths. Raise `CiConfigError` if there are too many."""
    try:
        return await trees.paths(repository, sha, MAX_PATHS)
    except GitLimitError:
        raise CiConfigError(
            f"Wildcards and `exists` are for up to {MAX_PATHS} files; there are more"
        ) from None


async def _changed(repository: Repository, before_sha: str, sha: str) -> Collection[str] | None:
    if before_sha == NO_COMMIT:
        return None
    try:
        return await trees.changed_paths(repository, before_sha, sha, MAX_PATHS)
    except (NotFoundError, GitLimitError):  # the old commit may have been garbage-collected
        return None


async def _changed_since(repository: Repository, ref: str, sha: str) -> Collection[str] | None:
    """Return the changed paths since the merge base with a ref. Raise `CiConfigError` if there is no such
    ref."""
    resolved = references.resolve(repository, ref)
    if resolved is None:
        raise CiConfigError("rules:changes:compare_to is not a valid ref")
    base = await commits.merge_base(repository, resolved.commit, sha)
    return await _changed(repository, base or resolved.commit, sha)
