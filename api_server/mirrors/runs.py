"""One run of a mirror: begin, push, record what came of it; and the runs that were cut off."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs
import structlog

from api_server.git.remote.secret_files import remove_leftovers
from api_server.git.remote.ssh_keys import HostKey, InvalidHostKeysError, parse_host_keys
from api_server.git.repositories import REPOSITORIES
from api_server.mirrors import notices, queries, states
from api_server.mirrors.configuration import host_keys_from, open_credentials
from api_server.mirrors.lfs import LfsCourier
from api_server.mirrors.plan import all_branches, branches_matching, protected_branches
from api_server.mirrors.states import Ending
from api_server.mirrors.transport import Outcome, Selection, Target, run_mirror
from api_server.outbound.outgoing import OUTGOING_POLICY, RESOLVER
from api_server.state.database import Row
from api_server.state.secrets import Vault
from api_server.web.context import CLOCK, DATABASE, VAULT, App
from common.ending import end

log = structlog.get_logger(__name__)

ResultT = TypeVar("ResultT")

#: Seconds after which a run notices that its mirror or its project is gone.
NOTICED_AFTER = 2.0
UNEXPECTED = "The mirror could not be updated because of a failure of this service; its log has the reason."


@attrs.frozen
class Attempt:
    """What came of a run: the event, the text for `last_error`, and the host keys that were seen."""

    event: Ending
    last_error: str | None = None
    learnt_host_keys: tuple[str, ...] = ()


async def run(app: App, mirror_id: int) -> None:
    """Makes one run of the mirror, whatever it meets; does nothing where the mirror is gone or disabled."""
    async with app[DATABASE].transaction() as transaction:
        mirror = await states.begin(transaction, mirror_id)
    if mirror is not None:
        attempt = await _while_current(app, mirror, _attempt(app, mirror))
        if attempt is not None:
            await record(app, mirror, attempt)


async def record(app: App, mirror: Row, attempt: Attempt) -> None:
    """Ends the run whose row `mirror` is, and tells the maintainers where it is a failure that is news."""
    async with app[DATABASE].transaction() as transaction:
        if keys := _host_keys(mirror.url, attempt.learnt_host_keys):
            await states.learn_host_keys(transaction, mirror.id, mirror.run, keys)
        ended = await states.end(transaction, mirror.id, mirror.run, attempt.event, attempt.last_error)
        if ended is not None and ended.status == "failed":
            await notices.failed(transaction, mirror, attempt.last_error or "", by_mail=ended.to_be_told)
    status = "superseded" if ended is None else ended.status
    log.info("mirror run ended", mirror=mirror.id, project=mirror.project_id, status=status)


async def attend(app: App) -> None:
    """Takes up the runs that were cut off: fails those whose time is over, and makes the others again.

    What they have left of secrets goes when no run that may still need them can be under way.
    """
    remove_leftovers(None, before=app[CLOCK]().timestamp() - states.FIRST_RUN_SECONDS)
    for mirror in await states.unattended(app[DATABASE]):
        if mirror.stuck:
            await record(app, mirror, Attempt("fail", states.STUCK))
        else:
            async with app[DATABASE].transaction() as transaction:
                await states.schedule_in(transaction, mirror.id, seconds=0)


async def postpone(app: App, mirror_id: int, seconds: int) -> None:
    """Queues the run again for later: this process has no room for it now."""
    async with app[DATABASE].transaction() as transaction:
        await states.schedule_in(transaction, mirror_id, seconds)


def target_of(vault: Vault, mirror: Row) -> Target:
    """Where the mirror pushes to, with its secrets opened; a key takes the place of a password."""
    user, password = open_credentials(vault, mirror.credentials)
    by_key = mirror.auth_method == "ssh_public_key" and mirror.private_key is not None
    return Target(
        mirror.url,
        user,
        None if by_key else password,
        vault.decrypt(mirror.private_key) if by_key else None,
        tuple(key.line for key in host_keys_from(mirror.host_keys)),
    )


async def selection_of(app: App, mirror: Row) -> Selection:
    """What the mirror pushes."""
    if mirror.only_protected_branches:
        selects = protected_branches(await queries.protected_names(app[DATABASE], mirror.project_id))
    elif mirror.mirror_branch_regex is not None:
        selects = branches_matching(mirror.mirror_branch_regex)
    else:
        selects = all_branches
    return Selection(selects, mirror.keep_divergent_refs)


async def _attempt(app: App, mirror: Row) -> Attempt:
    try:
        outcome = await run_mirror(
            app[REPOSITORIES].path(mirror.project_id),
            target_of(app[VAULT], mirror),
            await selection_of(app, mirror),
            policy=await app[OUTGOING_POLICY](),
            resolver=app[RESOLVER],
            time_limit=states.time_limit(mirror),
            bring_objects=LfsCourier(app, mirror, states.time_limit(mirror) / 2),
        )
    except Exception:
        log.exception("unexpected failure of a mirror", mirror=mirror.id, project=mirror.project_id)
        return Attempt("fail", UNEXPECTED)
    return Attempt(_event(outcome), outcome.last_error, outcome.learnt_host_keys)


async def _while_current(app: App, mirror: Row, work: Coroutine[Any, Any, ResultT]) -> ResultT | None:
    """What `work` returns; None, with `work` ended, as soon as the run does not count any more."""
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({task}, timeout=NOTICED_AFTER))[0]:
            if not await states.is_current(app[DATABASE], mirror.id, mirror.run):
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
