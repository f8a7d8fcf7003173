"""What follows when refs of a repository have moved: recorded once, in one transaction, however they were moved.

A push, and a move that the API makes itself, is written down before git is started and struck out when its
consequences are decided, so that a crash in between loses nothing: `settle_leftovers` finds it.
"""

import asyncio
import datetime
import hashlib
from collections.abc import Awaitable, Callable, Sequence

import attrs
import orjson
import structlog
from aiohttp import web

from api_server.git import ref_transactions, references
from api_server.git.errors import RepositoryError
from api_server.git.received_push import Push, RefUpdate, applied_updates
from api_server.git.ref_names import BRANCHES
from api_server.git.repositories import REPOSITORIES
from api_server.outbound import edges
from api_server.state.database import Row, Transaction
from api_server.web.context import DATABASE, VAULT, App

log = structlog.get_logger(__name__)

#: `listener(transaction, project, user_id, updates)`: `project` is the projects row, `user_id` who moved the refs.
#: Runs after git has moved them and before that is acknowledged; it queues what takes time.
RefListener = Callable[[Transaction, Row, int | None, Sequence[RefUpdate]], Awaitable[None]]

REF_LISTENERS: web.AppKey[list[RefListener]] = web.AppKey("ref_listeners", list)

#: A push that has moved nothing by now never will.
_GIVEN_UP_AFTER = datetime.timedelta(hours=7)

PROPOSE = """
    INSERT INTO pushes (id, project_id, user_id, updates, options)
    VALUES (%(id)s, %(project_id)s, %(user_id)s, %(updates)s, %(options)s)
"""


async def propose(app: App, project_id: int, user_id: int | None, push: Push) -> None:
    """Writes down what is about to be asked of git."""
    async with app[DATABASE].transaction() as transaction:
        await transaction.row(
            PROPOSE,
            id=push.id,
            project_id=project_id,
            user_id=user_id,
            updates=_text(push.updates),
            options=app[VAULT].encrypt(orjson.dumps(push.options).decode()) if push.options else None,
        )


async def move(app: App, project_id: int, user_id: int | None, *updates: RefUpdate) -> None:
    """Moves refs, all or none, and decides the consequences. Raises `NameTakenError`, `BranchMovedError`."""
    push = Push(updates)
    await propose(app, project_id, user_id, push)
    try:
        await ref_transactions.move(app[REPOSITORIES].path(project_id), push)
    except RepositoryError:
        await _withdraw(app, push)
        raise
    await settle_push(app, project_id, push)


STRIKE_OUT = """
    DELETE FROM pushes WHERE id = %(id)s
"""


async def _withdraw(app: App, push: Push) -> None:
    async with app[DATABASE].transaction() as transaction:
        await transaction.row(STRIKE_OUT, id=push.id)


LOCK_PUSH = """
    SELECT pushes.user_id, pushes.updates FROM pushes WHERE pushes.id = %(id)s FOR UPDATE
"""

KEEP_WAITING = """
    UPDATE pushes SET updates = %(updates)s WHERE id = %(id)s
"""


async def settle_push(app: App, project_id: int, push: Push, *, is_over: bool = True) -> None:
    """Decides the consequences of what git has really done of a proposed push, of each update once.

    Where the push may still be going on (not `is_over`), the updates that git has not done keep waiting.
    """
    async with app[DATABASE].transaction() as transaction:
        proposed = await transaction.row(LOCK_PUSH, id=push.id)
        if proposed is None:
            return
        waiting = attrs.evolve(push, updates=_updates(proposed.updates))
        applied = await asyncio.to_thread(applied_updates, app[REPOSITORIES].path(project_id), waiting)
        rest = [update for update in waiting.updates if update not in applied]
        if is_over or not rest:
            await transaction.row(STRIKE_OUT, id=push.id)
        elif applied:
            await transaction.row(KEEP_WAITING, id=push.id, updates=_text(rest))
        if applied:
            await follow(app, transaction, project_id, proposed.user_id, applied)


LEFTOVERS = """
    SELECT pushes.id, pushes.project_id, pushes.updates, pushes.options, pushes.created_at FROM pushes
    ORDER BY pushes.created_at
"""


async def settle_leftovers(app: App, now: datetime.datetime) -> None:
    """Settles the pushes of processes that died between git's work and its consequences."""
    for row in await app[DATABASE].rows(LEFTOVERS):
        options = () if row.options is None else orjson.loads(app[VAULT].decrypt(row.options))
        push = Push(_updates(row.updates), id=row.id, options=tuple(options))
        repository = app[REPOSITORIES].path(row.project_id)
        is_over = now - row.created_at > _GIVEN_UP_AFTER
        if is_over or await asyncio.to_thread(applied_updates, repository, push):
            log.info("settling a push that was left unsettled", project_id=row.project_id)
            await settle_push(app, row.project_id, push, is_over=is_over)


def _updates(text: str) -> tuple[RefUpdate, ...]:
    return tuple(RefUpdate(*update) for update in orjson.loads(text))


def _text(updates: Sequence[RefUpdate]) -> str:
    return orjson.dumps([[update.old, update.new, update.ref] for update in updates]).decode()


async def follow(
    app: App, transaction: Transaction, project_id: int, user_id: int | None, updates: Sequence[RefUpdate]
) -> None:
    """Decides the consequences of updates that have happened, as part of the transaction."""
    project = await _note_activity(app, transaction, project_id, updates)
    if project is None:
        return
    await edges.changed(transaction, *_surrogate_keys(project_id, updates))
    for listener in app[REF_LISTENERS]:
        await listener(transaction, project, user_id, updates)


LOCK_PROJECT = """
    SELECT projects.* FROM projects WHERE projects.id = %(id)s FOR UPDATE
"""

NOTE_ACTIVITY = """
    UPDATE projects SET last_activity_at = now(), empty_repo = %(empty)s,
        default_branch = coalesce(%(default_branch)s, default_branch)
    WHERE id = %(id)s RETURNING *
"""

PROTECT = """
    INSERT INTO protected_branches (project_id, name) VALUES (%(project_id)s, %(name)s)
    ON CONFLICT (project_id, name) DO NOTHING
"""


async def _note_activity(
    app: App, transaction: Transaction, project_id: int, updates: Sequence[RefUpdate]
) -> Row | None:
    """The project's row after it: no longer empty, and its default branch chosen and protected on first sight."""
    project = await transaction.row(LOCK_PROJECT, id=project_id)
    if project is None:
        return None
    repository = app[REPOSITORIES].open(project_id)
    chosen = None
    if project.empty_repo:
        chosen = _first_branch(project.default_branch, updates)
        if chosen is not None:
            references.set_default_branch(repository, chosen)
            await transaction.row(PROTECT, project_id=project_id, name=chosen)
    return await transaction.row(
        NOTE_ACTIVITY, id=project_id, empty=references.is_empty(repository), default_branch=chosen
    )


def _first_branch(wanted: str, updates: Sequence[RefUpdate]) -> str | None:
    """Which of the branches that have just appeared is the default one."""
    created = [
        u.ref.removeprefix(BRANCHES) for u in updates if u.ref.startswith(BRANCHES) and u.kind == "create"
    ]
    return wanted if wanted in created else next(iter(created), None)


def ref_key(project_id: int, name: str) -> str:
    """The surrogate key of what was read by the name of one branch or tag."""
    return f"project-{project_id}-ref-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _surrogate_keys(project_id: int, updates: Sequence[RefUpdate]) -> set[str]:
    """A moved ref concerns what was read by its name; one that comes or goes may change what any name means."""
    if any(update.kind != "update" for update in updates):
        return {edges.project_key(project_id)}
    return {ref_key(project_id, update.ref.split("/", 2)[-1]) for update in updates}
