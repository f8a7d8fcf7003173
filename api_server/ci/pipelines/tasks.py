"""The background work of pipelines: makes the pipelines of pushes, and does what moving a job sets off."""

import base64
import functools
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import orjson
import structlog
from aiohttp import web

from api_server.ci.config.variables import Variable
from api_server.ci.pipelines import downstream, transitions
from api_server.ci.pipelines.creation import NotMade, Wanted, maker
from api_server.ci.pipelines.planning import LIMITS, REMOTE_FILES, Limits, RemoteFiles
from api_server.code.ref_queries import MovedProject
from api_server.code.refs import REF_LISTENERS
from api_server.git import references
from api_server.git.received_push import RefUpdate
from api_server.git.ref_names import BRANCHES, TAGS
from api_server.state.database import Transaction
from api_server.state.queue import QUEUE, enqueue
from api_server.state.secrets import Vault
from api_server.web.context import DATABASE, SETTINGS, VAULT, App

_KEY = re.compile(r"[A-Za-z0-9_]{1,255}", re.ASCII)


@attrs.frozen
class PushOptions:
    """`skip` makes skipped pipelines; `variables` are given to those that run."""

    skip: bool = False
    variables: Mapping[str, str] = attrs.field(factory=dict)


def push_options(options: Iterable[str]) -> PushOptions:
    """What options mean; others, and variables that cannot be one, are passed over. Of one name the last counts."""
    skip, variables = False, {}
    for option in options:
        name, _, value = option.partition("=")
        key, assigned, text = value.partition("=")
        if name == "ci.skip":
            skip = True
        elif name == "ci.variable" and assigned and _KEY.fullmatch(key) and "\0" not in text:
            variables[key] = text
    return PushOptions(skip, variables)


log = structlog.get_logger(__name__)

CREATE_PUSHED_PIPELINE = "create_pushed_pipeline"


async def react_to_push(
    vault: Vault,
    most: int,
    transaction: Transaction,
    project: MovedProject,
    user_id: int | None,
    updates: Sequence[RefUpdate],
) -> None:
    """Queues a pipeline for the first `most` (0: all) branches and tags that now stand at another commit, as the pusher
    wishes."""
    if project.builds_access_level == "disabled":
        return
    moved = [one for one in updates if one.kind != "delete" and one.ref.startswith((BRANCHES, TAGS))]
    if most and len(moved) > most:
        log.info("a push makes its first pipelines only", project_id=project.id, refs=len(moved), made=most)
    for update in moved[: most or None]:
        kind = BRANCHES if update.ref.startswith(BRANCHES) else TAGS
        wished = push_options(update.options)
        await enqueue(
            transaction,
            CREATE_PUSHED_PIPELINE,
            project_id=project.id,
            ref=update.ref.removeprefix(kind),
            tag=kind == TAGS,
            before_sha=update.old,
            sha=update.new,
            user_id=user_id,
            origin=uuid.uuid4().hex,
            skip=wished.skip,
            variables=_sealed(vault, wished.variables),
        )


async def create_pipeline(app: App, *, variables: str | None = None, **pushed: Any) -> None:
    """Makes a pipeline that `react_to_push` has queued, and cancels those that it makes superfluous."""
    wanted = Wanted(source="push", variables=_opened(app[VAULT], variables), **pushed)
    making = maker(app)
    try:
        pipeline_id = await making.make(wanted)
    except NotMade as refused:
        reason = "; ".join(refused.errors)
        log.info("no pipeline for a push", project_id=wanted.project_id, reason=reason)
    else:
        head = references.branch(making.repositories.open(wanted.project_id), wanted.ref)
        await transitions.cancel_superseded(app[DATABASE], pipeline_id, None if head is None else head.commit)


def _sealed(vault: Vault, variables: Mapping[str, str]) -> str | None:
    """Variables as they may stand in the queue."""
    return base64.b64encode(vault.encrypt(orjson.dumps(variables).decode())).decode() if variables else None


def _opened(vault: Vault, sealed: str | None) -> tuple[Variable, ...]:
    known = orjson.loads(vault.decrypt(base64.b64decode(sealed))) if sealed else {}
    return tuple(Variable(key, value) for key, value in known.items())


def setup(app: web.Application) -> None:
    app[LIMITS] = Limits(app[SETTINGS])
    app[REMOTE_FILES] = RemoteFiles(app)
    most = app[SETTINGS].git_push_pipeline_limit
    app[REF_LISTENERS].append(functools.partial(react_to_push, app[VAULT], most))
    queue = app[QUEUE]

    async def create_pushed_pipeline(**pushed: Any) -> None:
        await create_pipeline(app, **pushed)

    async def start_downstream(job_id: int) -> None:
        await downstream.start(maker(app), job_id)

    async def follow_downstream(job_id: int) -> None:
        await downstream.follow(app[DATABASE], job_id)

    async def cancel_downstream(job_id: int) -> None:
        await downstream.cancel(app[DATABASE], job_id)

    async def follow_forgotten() -> None:
        await downstream.follow_forgotten(app[DATABASE])

    async def start_delayed(job_id: int) -> None:
        async with app[DATABASE].transaction() as transaction:
            await transitions.start_when_due(transaction, job_id)

    async def assign_resource(project_id: int, resource_group: str) -> None:
        async with app[DATABASE].transaction() as transaction:
            await transitions.assign_resource(transaction, project_id, resource_group)

    queue.add(CREATE_PUSHED_PIPELINE, create_pushed_pipeline, attempts=5)
    queue.add(transitions.START_DOWNSTREAM, start_downstream, attempts=5)
    queue.add(transitions.FOLLOW_DOWNSTREAM, follow_downstream, attempts=5)
    queue.add(transitions.CANCEL_DOWNSTREAM, cancel_downstream, attempts=5)
    queue.add(transitions.START_DELAYED, start_delayed, attempts=5)
    queue.add(transitions.ASSIGN_RESOURCE, assign_resource, attempts=5)
    queue.add_periodic("follow_forgotten_bridges", "* * * * *", follow_forgotten)
