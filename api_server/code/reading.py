"""Reads of a repository for a request: git processes that callers wait for, and pages of git's lists.

Reads that end by themselves (lists, differences) have a time limit. Files that are too large for memory are streamed
as fast as the client reads them, which may be slow, and so they have slots of their own.
"""

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import attrs
import orjson
from aiohttp import web

from api_server.code import entities
from api_server.git import commits, references
from api_server.git.diffs import DiffLimits, FileDiff, differences
from api_server.git.errors import GitTimeoutError, OutOfMemoryError, OutputTooLargeError
from api_server.git.references import Branch
from api_server.git.repositories import REPOSITORIES, Repository
from api_server.namespaces.project_queries import is_there
from api_server.namespaces.resources import Project
from api_server.services import Key, Services
from api_server.state.listing import ListPage
from api_server.web import context
from api_server.web.auth import Actor, Anonymous
from api_server.web.errors import ApiError, bad_parameters, not_found
from api_server.web.pagination import Paginated, offset_page, paginated
from api_server.web.routes import caller_or_anonymous
from common.concurrency import ConcurrencyLimiter, ended

P = ParamSpec("P")
T = TypeVar("T")

READS = Key[ConcurrencyLimiter]("repository_reads")
STREAMS = Key[ConcurrencyLimiter]("file_streams")
REFS = Key[ConcurrencyLimiter]("ref_lists")


def setup(services: Services) -> None:
    settings = services.settings
    timeout = settings.repository_queue_timeout
    services[READS] = ConcurrencyLimiter(
        settings.repository_reads, settings.repository_reads_per_caller, timeout=timeout
    )
    services[STREAMS] = ConcurrencyLimiter(
        settings.file_streams, settings.file_streams_per_caller, timeout=timeout
    )
    services[REFS] = ConcurrencyLimiter(2, 1, timeout=timeout)


@asynccontextmanager
async def reading(services: Services, actor: Actor | Anonymous) -> AsyncIterator[None]:
    """Hold a slot for git processes that read for the caller during the block. They are killed if they take too long.

    Raise `TooBusy` if no slot becomes free, and 503 if the repository cannot be read within the limits.
    """
    limit = services.settings.repository_read_timeout
    try:
        async with services[READS].slot(*counted_for(actor)), asyncio.timeout(limit):
            yield
    except (TimeoutError, GitTimeoutError):
        raise _refused(f"reading the repository took longer than {limit} seconds") from None
    except OutOfMemoryError:
        raise _refused("reading the repository takes more memory than there is for it") from None
    except OutputTooLargeError:
        raise _refused("the repository has names that are too long to be read") from None


@asynccontextmanager
async def streaming(
    services: Services,
    actor: Actor | Anonymous,
    *,
    user_id: int | None = None,
    from_storage: bool = False,
) -> AsyncIterator[None]:
    """Hold a slot for a file that is streamed to the caller, or to the user `user_id` if that is given. Raise
    `TooBusy`."""
    async with services[STREAMS].slot(*counted_for(actor, user_id, from_storage=from_storage)):
        yield


async def reading_refs(
    request: web.Request,
    read: Callable[Concatenate[Repository, P], T],
    repository: Repository,
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Return the result of `read`, which reads all branches or tags, from a thread. A caller has one such thread at a
    time, and all callers together two, because each of them delays the event loop. Raise `TooBusy`."""
    async with context.services(request)[REFS].slot(*counted_for(caller_or_anonymous(request))):
        return await ended(asyncio.ensure_future(asyncio.to_thread(read, repository, *args, **kwargs)))


def counted_for(
    actor: Actor | Anonymous, user_id: int | None = None, *, from_storage: bool = False
) -> Sequence[Hashable]:
    """Return the keys under which slots are counted: the user (by default the caller), or the address of an anonymous
    caller.

    Files that the external storage fetches for anonymous callers count only towards the total, because it sends the
    requests of all of them.
    """
    user_id = actor.user_id if user_id is None else user_id
    if user_id is not None:
        return [("user", user_id)]
    return [] if from_storage else [("address", actor.address)]


def _refused(reason: str) -> ApiError:
    return ApiError(503, {"message": f"503 Service Unavailable - {reason}"})


async def ensured(services: Services, project: Project) -> bool:
    """Create the project's repository if it does not exist yet. Return False if the project has just been removed, of
    which nothing may be left."""
    repositories = services[REPOSITORIES]
    if not repositories.exists(project.id):
        if not await is_there(services.database, project.id):
            return False
        await repositories.ensure(project.id, project.default_branch)
    return True


async def opened(services: Services, project: Project) -> Repository:
    """Return the project's repository, and create it if it does not exist yet. Raise 404 if the project no longer
    exists."""
    if not await ensured(services, project):
        raise not_found("Project")
    return services[REPOSITORIES].open(project.id)


def url_of(services: Services, project: Project) -> str:
    """Return the URL of the project's page."""
    return f"{services.settings.base_url}/{project.full_path}"


ItemT = TypeVar("ItemT")


def on_page(params: Paginated, items: Sequence[ItemT]) -> Sequence[ItemT]:
    """Return the items that are on the requested page."""
    page = offset_page(params)
    return items[page.offset : page.offset + page.size]


async def page_response(
    request: web.Request, params: Paginated, page_entities: Sequence[dict[str, Any]], total: int
) -> web.Response:
    """Answer with a page of a list of `total` entities. `page_entities` are those on the requested page."""
    page = offset_page(params)
    more = page.offset + page.size < total
    return await paginated(request, page, ListPage(orjson.dumps(page_entities).decode(), more, None, total))


def token_at(key: bytes) -> str:
    """Return the `page_token` of the page that follows the node at `key`."""
    return base64.urlsafe_b64encode(key).decode()


def position_of(token: str | None) -> bytes:
    """Return the key after which a page begins. Raise 400."""
    try:
        return base64.b64decode((token or "").encode(), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise bad_parameters("page_token is invalid") from None


async def merged_branches(
    services: Services,
    actor: Actor | Anonymous,
    repository: Repository,
    project: Project,
    branches: Sequence[Branch],
) -> set[str]:
    """Return the names of those branches that are merged into the default branch and have fallen behind it."""
    default = references.branch(repository, project.default_branch)
    others = [each.name for each in branches if default and each.commit != default.commit]
    if default is None or not others:
        return set()
    async with reading(services, actor):
        return await commits.merged_branches(repository, others, default.commit)


async def all_commits(
    services: Services, project: Project, repository: Repository, shas: Sequence[str]
) -> list[dict[str, Any]]:
    """Return these commits as the API shows them."""
    return await entities.commit_list(repository, shas, url_of(services, project))


@attrs.frozen(kw_only=True)
class ListDifferences(Paginated):
    unidiff: bool = False


async def differences_response(
    request: web.Request, params: ListDifferences, repository: Repository, old: str | None, new: str
) -> web.Response:
    """Answer with a page of the files that differ between two commits."""
    services = context.services(request)
    page = offset_page(params)
    async with reading(services, caller_or_anonymous(request)):
        files, total = await differences(
            repository, old, new, _limits(services), skip=page.offset, limit=page.size
        )
    return await page_response(request, params, [_diff(file, params.unidiff) for file in files], total)


async def all_differences(
    services: Services, repository: Repository, old: str | None, new: str, *, unidiff: bool
) -> tuple[list[dict[str, Any]], bool]:
    """Return the files that differ between two commits, and whether there is more than is shown at once. Call it
    within `reading`."""
    limits = _limits(services)
    files, total = await differences(repository, old, new, limits, limit=limits.diff_max_files)
    overflows = total >= limits.diff_max_files or any(file.collapsed for file in files)
    return [_diff(file, unidiff) for file in files], overflows


async def number_of_differences(services: Services, repository: Repository, old: str | None, new: str) -> str:
    """Return the number of files that differ, as GitLab writes it: with a plus if there are more than are listed."""
    limits = _limits(services)
    _, total = await differences(
        repository, old, new, attrs.evolve(limits, diff_max_files=limits.diff_max_files + 1), limit=0
    )
    return f"{limits.diff_max_files}+" if total > limits.diff_max_files else str(total)


async def commits_response(
    request: web.Request, params: Paginated, project: Project, repository: Repository, shas: Sequence[str]
) -> web.Response:
    """Answer with a page of these commits."""
    commit_entities = await entities.commit_list(
        repository, on_page(params, shas), url_of(context.services(request), project)
    )
    return await page_response(request, params, commit_entities, len(shas))


def _limits(services: Services) -> DiffLimits:
    settings = services.settings
    return DiffLimits(
        diff_max_files=settings.diff_max_files,
        diff_max_lines=settings.diff_max_lines,
        diff_max_patch_bytes=settings.diff_max_patch_bytes,
    )


def _diff(file: FileDiff, unidiff: bool) -> dict[str, Any]:
    """Return the difference as the API shows it; with `unidiff`, the hunks follow the names of the file as in a
    patch."""
    old = "/dev/null" if file.added else f"a/{file.old_path}"
    new = "/dev/null" if file.removed else f"b/{file.new_path}"
    names = f"--- {old}\n+++ {new}\n" if unidiff and file.text.startswith("@@") else ""
    return {
        "diff": names + file.text,
        "collapsed": file.collapsed,
        "too_large": file.too_large,
        "new_path": file.new_path,
        "old_path": file.old_path,
        "a_mode": file.old_mode,
        "b_mode": file.new_mode,
        "new_file": file.added,
        "renamed_file": file.renamed,
        "deleted_file": file.removed,
        "generated_file": None,
    }
