"""One run of a mirror: begin, push, record what came of it; and the runs that were cut off."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs
import structlog

from api_server.git.remote.access import remove_leftovers
from api_server.git.remote.ssh_keys import HostKey, InvalidHostKeysError, parse_host_keys
from api_server.git.repositories import REPOSITORIES
from api_server.mirrors import notices, queries, run_queries, schedule
from api_server.mirrors.configuration import open_credentials
from api_server.mirrors.lfs.courier import LfsCourier
from api_server.mirrors.plan import Selection, all_branches, branches_matching, protected_branches
from api_server.mirrors.queries import Mirror
from api_server.mirrors.run_queries import Ending
from api_server.mirrors.transport import Outcome, Target, update_target
from api_server.outbound.client import OUTGOING_POLICY, RESOLVER
from api_server.state.errors import Unavailable
from api_server.state.secrets import Vault
from api_server.web.context import DATABASE, VAULT, App
from common.concurrency import end

log = structlog.get_logger(__name__)

ResultT = TypeVar("ResultT")

#: Seconds after which a run notices that its mirror or its project is gone.
NOTICED_AFTER = 2.0
#: The misspelling is GitLab's, and clients may look for it.
STUCK = "The remote mirror took to long to complete."
UNEXPECTED = "The mirror could not be updated because of a failure of this service; its log has the reason."


@attrs.frozen
class Attempt:
    """What came of a run: the event, the text for `last_error`, and the host keys that were seen."""

    event: Ending
    last_error: str | None = None
    learnt_host_keys: tuple[str, ...] = ()
    #: What nobody has foreseen, for the log.
    problem: Exception | None = None


async def run(app: App, mirror_id: int) -> None:
    """Makes one run of the mirror, whatever it meets; does nothing where the mirror is gone or disabled."""
    async with app[DATABASE].transaction() as transaction:
        mirror = await run_queries.begin(transaction, mirror_id)
    if mirror is not None:
        attempt = await _while_current(app, mirror, _attempt(app, mirror))
        if attempt is not None:
            await record(app, mirror, attempt)


async def record(app: App, mirror: Mirror, attempt: Attempt) -> None:
    """Ends the run of `mirror`: queues the next one where it is tried again, and tells the maintainers where it is a
    failure that is news."""
    async with app[DATABASE].transaction() as transaction:
        if keys := _host_keys(mirror.url, attempt.learnt_host_keys):
            await run_queries.learn_host_keys(transaction, mirror.id, mirror.run, keys)
        ended = await run_queries.end(transaction, mirror.id, mirror.run, attempt.event, attempt.last_error)
        if ended is not None and ended.status == "to_retry":
            as_it_is_now = await queries.find(transaction, mirror.project_id, mirror.id)
            await schedule.run_soon(transaction, as_it_is_now)
        if ended is not None and ended.status == "failed":
            await notices.failed(transaction, mirror, attempt.last_error or "", by_mail=ended.to_be_told)
    _tell(mirror, attempt, "superseded" if ended is None else ended.status)


def _tell(mirror: Mirror, attempt: Attempt, status: str) -> None:
    """The one line about a run."""
    if status not in ("to_retry", "failed"):
        log.info("mirror run ended", mirror=mirror.id, project=mirror.project_id, status=status)
        return
    log.warning(
        "mirror run failed",
        mirror=mirror.id,
        project=mirror.project_id,
        host=urlsplit(mirror.url).hostname,
        status=status,
        reason=attempt.last_error,
        exc_info=attempt.problem,
    )


async def attend(app: App) -> None:
    """Takes up the runs that were cut off: fails those whose time is over, and makes the others again.

    What killed processes have left of secrets goes first.
    """
    await asyncio.to_thread(remove_leftovers, None)
    for mirror in await run_queries.unattended(app[DATABASE], schedule.LOCK_PREFIX):
        if schedule.is_stuck(mirror, app[DATABASE].now):
            await record(app, mirror, Attempt("fail", STUCK))
        else:
            async with app[DATABASE].transaction() as transaction:
                await schedule.run_at_once(transaction, mirror.id)


async def postpone(app: App, mirror_id: int, seconds: int) -> None:
    """Queues the run again for later: this process has no room for it now."""
    async with app[DATABASE].transaction() as transaction:
        await schedule.run_later(transaction, mirror_id, seconds)


def target_of(vault: Vault, mirror: Mirror) -> Target:
    """Where the mirror pushes to, with its secrets opened; a key takes the place of a password."""
    user, password = open_credentials(vault, mirror.credentials)
    private_key = None
    if mirror.auth_method == "ssh_public_key" and mirror.private_key is not None:
        private_key, password = vault.decrypt(mirror.private_key), None
    return Target(mirror.url, user, password, private_key, tuple(key.line for key in mirror.pinned_keys))


async def selection_of(app: App, mirror: Mirror) -> Selection:
    """What the mirror pushes."""
    if mirror.only_protected_branches:
        selects = protected_branches(await queries.protected_names(app[DATABASE], mirror.project_id))
    elif mirror.mirror_branch_regex is not None:
        selects = branches_matching(mirror.mirror_branch_regex)
    else:
        selects = all_branches
    return Selection(selects, mirror.keep_divergent_refs)


async def _attempt(app: App, mirror: Mirror) -> Attempt:
    try:
        outcome = await update_target(
            app[REPOSITORIES].path(mirror.project_id),
            target_of(app[VAULT], mirror),
            await selection_of(app, mirror),
            policy=await app[OUTGOING_POLICY](),
            resolver=app[RESOLVER],
            time_limit=schedule.time_limit(mirror),
            bring_objects=LfsCourier(app, mirror, schedule.time_limit(mirror) / 2),
        )
    except Unavailable:  # the queue tries again, and fails in its turn while there is no database
        raise
    except Exception as problem:
        return Attempt("fail", UNEXPECTED, problem=problem)
    return Attempt(_event(outcome), outcome.last_error, outcome.learnt_host_keys)


async def _while_current(app: App, mirror: Mirror, work: Coroutine[Any, Any, ResultT]) -> ResultT | None:
    """What `work` returns; None, with `work` ended, as soon as the run does not count any more."""
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({task}, timeout=NOTICED_AFTER))[0]:
            if not await run_queries.is_current(app[DATABASE], mirror.id, mirror.run):
                return None
        return task.result()
    finally:
        await end(task)


def _event(outcome: Outcome) -> Ending:
    if outcome.failure is not None:
        return "retry"
    return "diverge" if outcome.divergent else "succeed"


def _host_keys(url: str, lines: tuple[str, ...]) -> tuple[HostKey, ...]:
    """Known_hosts lines that ssh has written, as they are pinned; none where one cannot be read."""
    parts = urlsplit(url)
    try:
        return parse_host_keys(lines, parts.hostname or "", parts.port)
    except InvalidHostKeysError:
        return ()
