"""The pipelines of a push: queued in the transaction that notes it, made by a worker."""

import base64
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import structlog

from api_server.ci.config.variables import Variable
from api_server.ci.pipelines import actions
from api_server.ci.pipelines.creation import maker
from api_server.ci.pipelines.push_options import wishes
from api_server.ci.pipelines.wanted import NotMade, Wanted
from api_server.code.ref_queries import MovedProject
from api_server.git import references
from api_server.git.received_push import RefUpdate
from api_server.git.ref_names import BRANCHES, TAGS
from api_server.state.database import Transaction
from api_server.state.queue import enqueue
from api_server.state.secrets import Vault
from api_server.web.context import DATABASE, VAULT, App

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
        await actions.cancel_superseded(app[DATABASE], pipeline_id, None if head is None else head.commit)


def _sealed(vault: Vault, variables: Mapping[str, str]) -> str | None:
    """Variables as they may stand in the queue."""
    return base64.b64encode(vault.encrypt(orjson.dumps(variables).decode())).decode() if variables else None


def _opened(vault: Vault, sealed: str | None) -> tuple[Variable, ...]:
    known = orjson.loads(vault.decrypt(base64.b64decode(sealed))) if sealed else {}
    return tuple(Variable(key, value) for key, value in known.items())
