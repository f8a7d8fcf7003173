"""The decision about a push when its objects have arrived. Its reasons are locked until git has moved the refs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
from aiohttp import web

from api_server.code import git_access, ref_queries, refs
from api_server.code.git_access import check_may_push, check_may_read, current_caller
from api_server.code.quotas import QUOTAS, QuotaExceeded
from api_server.git.object_checks import refusal_of_objects
from api_server.git.received_push import Push, Verdict, refusal_of, refused_refs
from api_server.git.repositories import bytes_below
from api_server.namespaces.project_queries import find_project
from api_server.namespaces.resources import Project
from api_server.outbound import edges
from api_server.services import Key, Services
from api_server.state import preconditions
from api_server.state.database import Transaction
from api_server.state.errors import LockNotAvailable, Unavailable
from api_server.web.auth import Actor
from api_server.web.errors import log_unavailable
from common.concurrency import ConcurrencyLimiter

log = structlog.stdlib.get_logger(__name__)

#: The limit for pushes whose refs are being moved: each holds a connection to the database meanwhile.
MOVING = Key[ConcurrencyLimiter]("moving")
TIMEOUT_SECONDS = 60.0

_LATER = Verdict("The server could not judge the push, try again in a minute.")


def setup(services: Services) -> None:
    limit = max(1, services.settings.database_pool // 3)
    services[MOVING] = ConcurrencyLimiter(limit, limit, timeout=TIMEOUT_SECONDS)


@asynccontextmanager
async def judged(
    services: Services,
    project: Project,
    actor: Actor,
    remarks: list[str],
    push: Push,
    quarantine: Path | None,
) -> AsyncIterator[Verdict]:
    """Yield the verdict on a push, which stays true for the duration of the block.

    The push is recorded before the block. After the block, its consequences are recorded, and lines about its options
    are added to `remarks`. If the database is lost in between, the task of every minute records the consequences.
    """
    judged_yet = accepted = False
    try:
        size = await asyncio.to_thread(bytes_below, quarantine) if quarantine else 0
        refusal = await refusal_of_objects(quarantine) if quarantine else None
        if refusal is not None:
            yield Verdict(refusal)
            return
        await refs.propose(services, project.id, actor.user_id, push)
        try:
            async with _locked_verdict(services, project, actor, push, size) as verdict:
                judged_yet, accepted = True, verdict.refusal is None
                yield verdict
        finally:
            remarks += await asyncio.shield(_settle(services, project, actor, push, accepted=accepted))
    except Unavailable as problem:
        log_unavailable(problem, "a push is settled later" if judged_yet else "a push could not be judged")
        if not judged_yet:
            yield _LATER
    except Exception as problem:
        if judged_yet:
            raise
        log.warning("a push could not be judged", project_id=project.id, exc_info=problem)
        yield _LATER


@asynccontextmanager
async def _locked_verdict(
    services: Services, project: Project, actor: Actor, push: Push, size: int
) -> AsyncIterator[Verdict]:
    """Yield the verdict. An acceptance holds its locks during the block; a refusal holds none."""
    async with (
        services[MOVING].slot(),
        services.database.transaction() as transaction,
    ):
        verdict = await _verdict(services, transaction, project, actor, push, size)
        if verdict.refusal is None:
            yield verdict
            return
    yield verdict


async def _verdict(
    services: Services, transaction: Transaction, project: Project, actor: Actor, push: Push, size: int
) -> Verdict:
    await preconditions.share(transaction, _names(project, actor))
    await ref_queries.hold_push(transaction, push.id)
    try:
        current = await current_caller(transaction, actor)
        current_project = await find_project(
            transaction,
            project_id=project.id,
            path=None,
            user_id=current.user_id,
            admin=current.admin,
            job_project_id=current.job_project_id,
        )
        readable = check_may_read(current_project, current)
        check_may_push(readable, current)
        if not _names(readable, current) <= _names(project, actor):  # the project has been transferred
            return _LATER
    except web.HTTPException as refusal_response:
        return Verdict(refusal_response.text)
    verdict = await git_access.push_verdict(transaction, readable, push.updates)
    if (refusal := refusal_of(push, verdict, refused_refs(push, verdict))) is not None:
        return Verdict(refusal)
    try:
        await services[QUOTAS].take(transaction, project.id, size)
    except QuotaExceeded as problem:
        return Verdict(str(problem))
    # This push does not move the refs that are refused, wherever they are.
    if verdict.refused:
        allowed = [update for update in push.updates if update.ref not in verdict.refused]
        await ref_queries.keep_waiting(transaction, push.id, refs.text_of(allowed))
    return verdict


def _names(project: Project, actor: Actor) -> set[str]:
    """Return the names of locks without which nobody can change what the verdict depends on."""
    return {
        f"user:{actor.user_id}",
        f"token:{actor.token_id}",
        f"project:{project.id}",
        *(f"group:{namespace_id}" for namespace_id in project.lineage),
    }


async def _settle(
    services: Services, project: Project, actor: Actor, push: Push, *, accepted: bool
) -> list[str]:
    """Settle the push, and return remarks on its options."""
    remarks: list[str] = []
    try:
        if not accepted:
            await refs.withdraw(services, push)
            return []
        applied = await refs.settle_push(services, project.id, push)
        if applied and push.options:
            for listener in services[refs.PUSH_OPTION_LISTENERS]:
                remarks += await listener(project.id, actor.user_id, applied)
    except (LockNotAvailable, Unavailable) as problem:
        # git has moved the refs, and the push is recorded: the task of every minute settles it.
        log.warning("a push is settled later", project_id=project.id, problem=str(problem))
        remarks += (
            ["The server is busy: options of merge requests are not carried out."] if push.options else []
        )
    await edges.notify_now(services)
    return remarks
