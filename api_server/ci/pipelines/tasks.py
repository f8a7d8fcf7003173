"""The background work of pipelines, and the reaction to pushes that makes them."""

import base64
import functools
import uuid
from collections.abc import Mapping, Sequence

import orjson
import structlog
from aiohttp import web

from api_server.ci.config.variables import Variable
from api_server.ci.pipelines import actions, downstream, transitions
from api_server.ci.pipelines.creation import NotMade, Wanted, maker
from api_server.ci.pipelines.push_options import wishes
from api_server.code.refs import REF_LISTENERS
from api_server.git.names import BRANCHES, TAGS
from api_server.git.push import RefUpdate
from api_server.state.database import Row, Transaction
from api_server.state.queue import QUEUE, enqueue
from api_server.state.secrets import Vault
from api_server.web.context import DATABASE, VAULT

log = structlog.get_logger(__name__)

CREATE_PUSHED_PIPELINE = "create_pushed_pipeline"


def setup(app: web.Application) -> None:
    app[REF_LISTENERS].append(functools.partial(react_to_push, app[VAULT]))
    queue = app[QUEUE]

    async def create_pushed_pipeline(
        project_id: int,
        ref: str,
        tag: bool,
        before_sha: str,
        sha: str,
        user_id: int | None,
        origin: str,
        skip: bool = False,
        variables: str | None = None,
    ) -> None:
        wanted = Wanted(
            project_id=project_id,
            ref=ref,
            tag=tag,
            sha=sha,
            before_sha=before_sha,
            source="push",
            user_id=user_id,
            origin=origin,
            skip=skip,
            variables=_opened(app[VAULT], variables),
        )
        try:
            pipeline_id = await maker(app).make(wanted)
        except NotMade as reason:
            log.info("no pipeline for a push", project_id=project_id, reason="; ".join(reason.errors))
        else:
            await actions.cancel_superseded(app[DATABASE], pipeline_id)

    async def start_downstream(job_id: int) -> None:
        await downstream.start(maker(app), job_id)

    async def follow_downstream(job_id: int) -> None:
        await downstream.follow(maker(app), job_id)

    async def cancel_downstream(job_id: int) -> None:
        await downstream.cancel(maker(app), job_id)

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


async def react_to_push(
    vault: Vault, transaction: Transaction, project: Row, user_id: int | None, updates: Sequence[RefUpdate]
) -> None:
    """Queues a pipeline for each branch and tag that now stands at another commit, as the pusher wishes."""
    if project.builds_access_level == "disabled":
        return
    for update in updates:
        kind = next((kind for kind in (BRANCHES, TAGS) if update.ref.startswith(kind)), None)
        if kind is None or update.kind == "delete":
            continue
        wished = wishes(update.options)
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


def _sealed(vault: Vault, variables: Mapping[str, str]) -> str | None:
    """Variables as they may stand in the queue."""
    return base64.b64encode(vault.encrypt(orjson.dumps(variables).decode())).decode() if variables else None


def _opened(vault: Vault, sealed: str | None) -> tuple[Variable, ...]:
    known = orjson.loads(vault.decrypt(base64.b64decode(sealed))) if sealed else {}
    return tuple(Variable(key, value) for key, value in known.items())
