"""Consequences of moved refs: recorded once, in one transaction, however the refs were moved.

A push, or a move that the API itself makes, is recorded before git moves anything. This record is deleted when the
consequences are decided, so that a crash in between loses nothing: `settle_leftovers` finds the record.
"""

import asyncio
import datetime
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import attrs
import orjson
import structlog
from cachetools import LRUCache

from api_server.code import ref_queries as queries
from api_server.code.ref_queries import Leftover, MovedProject
from api_server.git import ref_moves, references
from api_server.git.errors import RepositoryError, StorageUnavailableError
from api_server.git.received_push import Push, RefUpdate, applied_updates
from api_server.git.ref_names import BRANCHES
from api_server.git.repositories import REPOSITORIES
from api_server.outbound import edges
from api_server.services import Key, Services
from api_server.state.database import Database, Transaction
from api_server.state.errors import LockNotAvailable
from api_server.state.preconditions import ChangedMeanwhile

log = structlog.get_logger(__name__)

#: `listener(transaction, project, user_id, updates)` is called after git has moved the refs and before that is
#: acknowledged. `user_id` is the user who moved them. It has to queue what takes time.
RefListener = Callable[[Transaction, MovedProject, int | None, Sequence[RefUpdate]], Awaitable[None]]

REF_LISTENERS = Key[list[RefListener]]("ref_listeners", list)

#: `listener(project_id, user_id, updates)` carries out the options of a push whose updates have happened. It returns
#: lines for the user to read.
PushOptionListener = Callable[[int, int, Sequence[RefUpdate]], Awaitable[list[str]]]

PUSH_OPTION_LISTENERS = Key[list[PushOptionListener]]("push_option_listeners", list)

#: Ids of pushes for which it has been logged that they cannot be settled.
UNSETTLED = Key[LRUCache[str, bool]]("unsettled")

_MAX_KEYS = 100

#: Age after which a push that has moved nothing never will.
_GIVEN_UP_AFTER = datetime.timedelta(hours=7)


async def propose(services: Services, project_id: int, user_id: int | None, push: Push) -> None:
    """Record what git is about to be asked for."""
    options = services.vault.encrypt(orjson.dumps(push.options).decode()) if push.options else None
    updates = await asyncio.to_thread(text_of, push.updates)
    async with services.database.transaction() as transaction:
        await queries.record_push(transaction, push.id, project_id, user_id, updates=updates, options=options)


async def move(services: Services, project_id: int, user_id: int | None, *updates: RefUpdate) -> None:
    """Move refs, all or none, and decide the consequences. Raise the errors of `ref_moves.apply_push`.

    git moves them within the transaction that records the consequences, and the beginning of this transaction ensures
    that the request is still allowed. The record of the push is written and deleted by transactions that are not the
    request's, because only the request's first transaction checks this.
    """
    await move_in(services.shared, services.database, project_id, user_id, Push(updates))


async def move_in(
    services: Services, database: Database, project_id: int, user_id: int | None, push: Push
) -> None:
    """Move refs like `move`, also without a request: the beginning of the transactions of `database` makes the
    checks."""
    has_moved = False
    await propose(services, project_id, user_id, push)
    try:
        async with database.transaction() as transaction:
            await queries.lock_push(transaction, push.id)  # locks are waited for before git begins
            await ref_moves.apply_push(services[REPOSITORIES].path(project_id), push)
            has_moved = True
            await settle(services, transaction, project_id, push, is_over=True)
    except StorageUnavailableError:  # git may have moved some of them
        if not has_moved:
            await settle_push(services, project_id, push)
        raise
    except (RepositoryError, ChangedMeanwhile, LockNotAvailable):
        if not has_moved:
            await withdraw(services, push)
        raise


async def withdraw(services: Services, push: Push) -> None:
    """Delete the record of a push that has moved nothing."""
    async with services.database.transaction() as transaction:
        await queries.delete_push(transaction, push.id)


async def settle_push(
    services: Services, project_id: int, push: Push, *, is_over: bool = True
) -> list[RefUpdate]:
    """Decide the consequences of those updates of a proposed push that git has really made, of each once. Return these
    updates.

    If the push may still be going on (not `is_over`), the other updates keep waiting. Raise `LockNotAvailable` if
    other requests lock the project for too long; `settle_leftovers` finds the push then.
    """
    async with services.database.transaction() as transaction:
        return await settle(services, transaction, project_id, push, is_over=is_over)


async def settle(
    services: Services, transaction: Transaction, project_id: int, push: Push, *, is_over: bool
) -> list[RefUpdate]:
    """Settle a push like `settle_push`, in the caller's transaction."""
    proposed = await queries.lock_push(transaction, push.id)
    if proposed is None:
        return []
    repository = services[REPOSITORIES].path(project_id)
    applied, rest = await asyncio.to_thread(_applied_and_waiting, repository, push, proposed.updates)
    if is_over or rest is None:
        await queries.delete_push(transaction, push.id)
    elif applied:
        await queries.keep_waiting(transaction, push.id, rest)
    if applied:
        await follow(services, transaction, project_id, proposed.user_id, applied)
    return applied


async def settle_leftovers(services: Services, now: datetime.datetime) -> None:
    """Settle the pushes of processes that ended between git's work and its consequences.

    A push that cannot be settled is logged once, and tried again next time.
    """
    for leftover in await queries.leftovers(services.database):
        try:
            await _settle_leftover(services, leftover, now)
        except Exception as problem:
            if leftover.id not in services[UNSETTLED]:
                services[UNSETTLED][leftover.id] = True
                log.warning("a push cannot be settled", project_id=leftover.project_id, exc_info=problem)


async def _settle_leftover(services: Services, leftover: Leftover, now: datetime.datetime) -> None:
    options = () if leftover.options is None else orjson.loads(services.vault.decrypt(leftover.options))
    push = Push(_updates(leftover.updates), id=leftover.id, options=tuple(options))
    repository = services[REPOSITORIES].path(leftover.project_id)
    is_over = now - leftover.created_at > _GIVEN_UP_AFTER
    if is_over and not repository.is_dir():  # all that the push can have moved no longer exists
        await withdraw(services, push)
        return
    applied = await asyncio.to_thread(applied_updates, repository, push)
    if is_over or applied:
        log.info("settling a push that was left unsettled", project_id=leftover.project_id)
        await settle_push(services, leftover.project_id, push, is_over=is_over)


def _applied_and_waiting(repository: Path, push: Push, proposed: str) -> tuple[list[RefUpdate], str | None]:
    """Return which of the proposed updates git has made, and the others as text, or None if there are no others. A
    push may have thousands of them: call it in a thread."""
    waiting = attrs.evolve(push, updates=_updates(proposed))
    applied = applied_updates(repository, waiting)
    applied_set = set(applied)
    rest = [update for update in waiting.updates if update not in applied_set]
    return applied, text_of(rest) if rest else None


def _updates(text: str) -> tuple[RefUpdate, ...]:
    return tuple(RefUpdate(*update) for update in orjson.loads(text))


def text_of(updates: Sequence[RefUpdate]) -> str:
    """Return updates as text, in the form in which they are recorded."""
    return orjson.dumps([[update.old, update.new, update.ref] for update in updates]).decode()


async def follow(
    services: Services,
    transaction: Transaction,
    project_id: int,
    user_id: int | None,
    updates: Sequence[RefUpdate],
) -> None:
    """Decide the consequences of updates that have happened, as part of the transaction."""
    project = await _note_activity(services, transaction, project_id, updates)
    if project is None:
        return
    await edges.changed(transaction, *_surrogate_keys(project_id, updates))
    for listener in services[REF_LISTENERS]:
        await listener(transaction, project, user_id, updates)


async def _note_activity(
    services: Services, transaction: Transaction, project_id: int, updates: Sequence[RefUpdate]
) -> MovedProject | None:
    """Record the activity and return the changed project, or None if it no longer exists. If the project was empty,
    its default branch is chosen and protected."""
    project = await queries.lock_project(transaction, project_id)
    if project is None:
        return None
    repository = services[REPOSITORIES].open(project_id)
    default_branch = project.default_branch
    chosen = _first_branch(default_branch, updates) if project.empty_repo else None
    if chosen is not None:
        await ref_moves.set_default_branch(repository, chosen)
        await queries.protect(transaction, project_id, chosen)
    is_empty = references.is_empty(repository)
    await queries.note_activity(transaction, project_id, chosen or default_branch, is_empty=is_empty)
    return attrs.evolve(project, default_branch=chosen or default_branch, empty_repo=is_empty)


def _first_branch(preferred: str, updates: Sequence[RefUpdate]) -> str | None:
    """Return which of the branches that have just been created becomes the default branch, or None if there are
    none."""
    created = [
        u.ref.removeprefix(BRANCHES) for u in updates if u.ref.startswith(BRANCHES) and u.kind == "create"
    ]
    return preferred if preferred in created else next(iter(created), None)


def ref_key(project_id: int, name: str) -> str:
    """Return the surrogate key of responses that were read by the name of one branch or tag."""
    return f"project-{project_id}-ref-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _surrogate_keys(project_id: int, updates: Sequence[RefUpdate]) -> set[str]:
    """Return the keys to purge. A moved ref affects only responses that were read by its name. A new or deleted ref
    may change what any name means, and very many refs would have too many keys: then return the key of the whole
    project."""
    if len(updates) > _MAX_KEYS or any(update.kind != "update" for update in updates):
        return {edges.project_key(project_id)}
    return {ref_key(project_id, update.ref.split("/", 2)[-1]) for update in updates}
