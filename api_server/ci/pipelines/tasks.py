"""The background work of pipelines: it creates the pipelines of pushes, starts and follows those of bridges,
and continues after a job's state has changed."""

import base64
import functools
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import orjson
import structlog

from api_server.accounts.users import USER_LISTENERS, UserEvent
from api_server.ci.config.pipeline import child_configuration
from api_server.ci.config.plan import PlannedJob, Trigger
from api_server.ci.config.variables import Variable
from api_server.ci.pipelines import creation, creation_queries, job_queries, queries, transitions
from api_server.ci.pipelines.creation import PipelineMaker, PipelineRefused, PipelineRequest, pipeline_maker
from api_server.ci.pipelines.creation_queries import find_merge_request
from api_server.ci.pipelines.job_queries import Bridge, plan_of
from api_server.ci.pipelines.planning import LIMITS, REMOTE_FILES, Limits, RemoteFiles
from api_server.ci.pipelines.states import COMPLETE, TRANSITIONS, Event, Status
from api_server.code.ref_queries import MovedProject
from api_server.code.refs import REF_LISTENERS
from api_server.git import references
from api_server.git.received_push import RefUpdate
from api_server.git.ref_names import BRANCHES, NO_COMMIT, TAGS
from api_server.namespaces import project_queries
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.state.database import Database, Transaction
from api_server.state.queue import enqueue
from api_server.state.secrets import Vault
from api_server.web.routes import Role

_FAILS = {"event": "drop", "failure_reason": "downstream_pipeline_failed"}
#: Status of the downstream pipeline -> event of a running bridge that waits for it; with other statuses it
#: keeps waiting.
_TAKEN_OVER: dict[str, dict[str, Any]] = {
    "success": {"event": "success"},
    "failed": _FAILS,
    "skipped": _FAILS,
    "canceled": {"event": "cancel"},
}
_MIRRORED = _TAKEN_OVER | {"skipped": {"event": "mirror_skipped"}, "manual": {"event": "mirror_manual"}}
_OF_UPSTREAM = _MIRRORED | {"failed": {"event": "drop", "failure_reason": "unknown_failure"}}


async def start_bridge(maker: PipelineMaker, job_id: int) -> None:
    """Start the pipeline that a pending bridge requests, once, or let the bridge mirror the one that it
    names."""
    bridge = await job_queries.find_bridge(maker.database, job_id)
    if bridge is None or bridge.status != "pending":
        return
    plan = plan_of(bridge)
    if plan.upstream is not None:
        await _begin_to_mirror(maker.database, bridge, plan.upstream)
        return
    try:
        request = await _request_of_bridge(maker, bridge, plan)
        await (
            maker.make(request)
            if request.source == "parent_pipeline"
            else creation.make_with_rights(maker, request)
        )
        reason = None
    except PipelineRefused as refused:
        reason = refused.reason
    async with maker.database.transaction() as transaction:
        if reason is not None:
            await transitions.advance(transaction, job_id, "drop", failure_reason=reason)
        elif await transitions.advance(transaction, job_id, "run") and not _depends(plan):
            await transitions.advance(transaction, job_id, "success")
    await follow_bridge(maker.database, job_id)
    await cancel_child(maker.database, job_id)  # the bridge may have been canceled meanwhile


async def _begin_to_mirror(database: Database, bridge: Bridge, path: str) -> None:
    """Let a bridge mirror the newest pipeline of the default branch of a project, with the rights of its
    user."""
    project = await _project_of_user(database, path, bridge.user_id)
    async with database.transaction() as transaction:
        event: Event = "drop"
        if project is None:
            reason = "upstream_bridge_project_not_found"
        elif not project.shows_pipelines:
            reason = "insufficient_upstream_permissions"
        else:
            reason = "pipeline_loop_detected"
            event = await job_queries.mirror(
                transaction, bridge, project_id=project.id, branch=project.default_branch
            )
        await transitions.advance(transaction, bridge.id, event, failure_reason=reason)
    await follow_bridge(database, bridge.id)


async def _project_of_user(database: Database, path: str, user_id: int | None) -> Project | None:
    """Return the project with the user's rights, or None if the user cannot see it, or has been removed or
    blocked."""
    user = await creation_queries.active_user(database, user_id)
    if user is None:
        return None
    return await project_queries.find_project(
        database, project_id=None, path=path, user_id=user_id, admin=user.admin, job_project_id=None
    )


async def follow_mirrored(database: Database, pipeline_id: int) -> None:
    """Give the bridges that mirror a pipeline its status."""
    after = 0
    while job_ids := await job_queries.mirroring(database, pipeline_id, after=after):
        for job_id in job_ids:
            await follow_bridge(database, job_id)
        after = job_ids[-1]


async def follow_forgotten_bridges(database: Database) -> None:
    """Update the bridges whose downstream pipelines have ended unnoticed or have been removed, for instance
    with their project."""
    for job_id in await job_queries.forgotten_bridges(database):
        await follow_bridge(database, job_id)


async def follow_bridge(database: Database, job_id: int, *, retried: bool = False) -> None:
    """Give a bridge the status of the pipeline that it waits for or mirrors. It fails if the pipeline was removed.

    A canceled bridge stays canceled unless somebody has `retried` its child pipeline.
    """
    async with database.transaction() as transaction:
        await job_queries.lock_pipeline_of(transaction, job_id)
        bridge = await job_queries.find_bridge(transaction, job_id)
        if bridge is None or bridge.retried or not _depends(plan := plan_of(bridge)):
            return
        find = job_queries.find_downstream if plan.upstream is None else job_queries.find_mirrored
        followed = await find(transaction, job_id)
        revived = retried and followed is not None and followed.source == "parent_pipeline"
        if bridge.status == "canceled" and not revived:
            return
        if followed is not None:
            await _take_over(transaction, bridge, plan, followed.status)
        elif bridge.status == "running":
            await transitions.advance(transaction, job_id, "drop", failure_reason="unknown_failure")


async def _take_over(transaction: Transaction, bridge: Bridge, plan: PlannedJob, status: Status) -> None:
    """Give a bridge that is running, or has taken over another status, the status of the pipeline that it
    follows."""
    mirrored = _OF_UPSTREAM if plan.trigger is None else _MIRRORED
    mirrors = plan.trigger is None or plan.trigger.mirror
    taken_over = (mirrored if mirrors else _TAKEN_OVER).get(status)
    target = "running" if taken_over is None else TRANSITIONS[taken_over["event"]]["running"]
    if bridge.status == target:
        return
    if bridge.status != "running" and not await transitions.reopen(transaction, bridge):
        return
    if taken_over is not None:
        await transitions.advance(transaction, bridge.id, **taken_over)


async def cancel_child(database: Database, job_id: int) -> None:
    """Cancel the child pipeline of a canceled bridge. Pipelines of other projects continue."""
    bridge = await job_queries.find_bridge(database, job_id)
    downstream = await job_queries.find_downstream(database, job_id)
    if bridge is None or downstream is None or bridge.status != "canceled":
        return
    if downstream.source == "parent_pipeline" and downstream.status not in COMPLETE:
        async with database.transaction() as transaction:
            await transitions.cancel_pipeline(transaction, downstream.id)


DROP_PIPELINES = "drop_pipelines_of_blocked_user"


async def follow_user(transaction: Transaction, event: UserEvent) -> None:
    if event.kind == "restricted":
        await enqueue(transaction, DROP_PIPELINES, user_id=event.user_id)


async def drop_pipelines(database: Database, user_id: int) -> None:
    """Let the unfinished jobs in the pipelines of a blocked user fail, each pipeline in a separate transaction."""
    for pipeline_id in await queries.unfinished_of_blocked(database, user_id):
        async with database.transaction() as transaction:
            await transitions.drop_pipeline(transaction, pipeline_id, "user_blocked")


async def _request_of_bridge(maker: PipelineMaker, bridge: Bridge, plan: PlannedJob) -> PipelineRequest:
    """Return the pipeline that the bridge requests. Raise `PipelineRefused`."""
    if plan.trigger is None or bridge.user_id is None:
        raise PipelineRefused(reason="invalid_bridge_trigger")
    child = plan.trigger.project is None
    if child and bridge.depth >= maker.settings.child_pipeline_depth:
        raise PipelineRefused(reason="reached_max_descendant_pipelines_depth")
    if bridge.loops and not child:
        raise PipelineRefused(reason="pipeline_loop_detected")
    variables = await _forwarded_variables(maker, bridge, plan, plan.trigger)
    if child:
        return PipelineRequest(
            project_id=bridge.project_id,
            ref=bridge.ref,
            tag=bridge.tag,
            sha=bridge.sha,
            before_sha=bridge.before_sha,
            source="parent_pipeline",
            user_id=bridge.user_id,
            variables=variables,
            source_job_id=bridge.id,
            hierarchy_id=bridge.hierarchy_id,
            merge_request=await find_merge_request(maker.database, bridge.merge_request_id),
            configuration=child_configuration(plan.trigger.include),
        )
    return await _request_elsewhere(maker, bridge, plan.trigger, variables)


async def _request_elsewhere(
    maker: PipelineMaker, bridge: Bridge, trigger: Trigger, variables: tuple[Variable, ...]
) -> PipelineRequest:
    target = await job_queries.project_by_path(maker.database, trigger.project or "", bridge.user_id)
    if target is None:
        raise PipelineRefused(reason="downstream_bridge_project_not_found")
    member = target.admin or target.role >= Role.DEVELOPER  # other users must not learn which refs exist
    if not member or target.archived or target.builds_access_level == "disabled":
        raise PipelineRefused(reason="insufficient_bridge_permissions")
    resolved = maker.resolve(target.id, trigger.branch or target.default_branch)
    return PipelineRequest(
        project_id=target.id,
        ref=resolved.name,
        tag=resolved.kind == "tag",
        sha=resolved.commit,
        before_sha=NO_COMMIT,
        source="pipeline",
        user_id=bridge.user_id,
        variables=variables,
        source_job_id=bridge.id,
        hierarchy_id=bridge.hierarchy_id,
        inputs=trigger.inputs,
    )


async def _forwarded_variables(
    maker: PipelineMaker, bridge: Bridge, plan: PlannedJob, trigger: Trigger
) -> tuple[Variable, ...]:
    """Return the bridge's own variables and those given to its pipeline, as far as `forward` allows. Raise
    `PipelineRefused`."""
    rows = await queries.pipeline_variables(maker.database, bridge.pipeline_id)
    of_pipeline = tuple(
        Variable(row.key, maker.vault.decrypt(row.value), file=row.variable_type == "file") for row in rows
    )
    of_bridge = await maker.forwarded(bridge, plan, of_pipeline) if trigger.forward_yaml_variables else ()
    return (*of_bridge, *(of_pipeline if trigger.forward_pipeline_variables else ()))


def _depends(plan: PlannedJob) -> bool:
    """Return whether a bridge takes over the status of a pipeline."""
    return plan.trigger is None or plan.trigger.depend or plan.trigger.mirror


_KEY = re.compile(r"[A-Za-z0-9_]{1,255}", re.ASCII)


@attrs.frozen
class PushOptions:
    """The options of a push. `skip` creates skipped pipelines; `variables` and `inputs` are given to those
    that run."""

    skip: bool = False
    variables: Mapping[str, str] = attrs.field(factory=dict)
    inputs: Mapping[str, str] = attrs.field(factory=dict)


def push_options(options: Iterable[str]) -> PushOptions:
    """Return the meaning of the options. Ignore other options and invalid variables; of each name the last
    one counts."""
    skip, variables, inputs = False, {}, {}
    for option in options:
        name, _, value = option.partition("=")
        key, assigned, text = value.partition("=")
        if name == "ci.skip":
            skip = True
        elif name == "ci.variable" and assigned and _KEY.fullmatch(key) and "\0" not in text:
            variables[key] = text
        elif name == "ci.input" and assigned and key.strip():
            inputs[key] = text
    return PushOptions(skip, variables, inputs)


log = structlog.get_logger(__name__)

CREATE_PUSHED_PIPELINE = "create_pushed_pipeline"


async def react_to_push(
    vault: Vault,
    limit: int,
    transaction: Transaction,
    project: MovedProject,
    user_id: int | None,
    updates: Sequence[RefUpdate],
) -> None:
    """Queue a pipeline for the first `limit` (0: all) branches and tags that moved, with the options of the
    push."""
    if project.builds_access_level == "disabled":
        return
    refs = [
        update for update in updates if update.kind != "delete" and update.ref.startswith((BRANCHES, TAGS))
    ]
    if limit and len(refs) > limit:
        log.info("a push makes its first pipelines only", project_id=project.id, refs=len(refs), made=limit)
    for update in refs[: limit or None]:
        kind = BRANCHES if update.ref.startswith(BRANCHES) else TAGS
        options = push_options(update.options)
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
            skip=options.skip,
            variables=_sealed(vault, options.variables),
            inputs=_sealed(vault, options.inputs),
        )


async def create_pipeline(
    services: Services, *, variables: str | None = None, inputs: str | None = None, **pushed: Any
) -> None:
    """Create a pipeline that `react_to_push` has queued, and cancel those that it supersedes."""
    decrypted = tuple(Variable(key, value) for key, value in _opened(services.vault, variables).items())
    request = PipelineRequest(
        source="push", variables=decrypted, inputs=_opened(services.vault, inputs), **pushed
    )
    maker = pipeline_maker(services)
    try:
        pipeline_id = await maker.make(request)
    except PipelineRefused as refused:
        reason = "; ".join(refused.errors)
        log.info("no pipeline for a push", project_id=request.project_id, reason=reason)
    else:
        head = references.branch(maker.repositories.open(request.project_id), request.ref)
        await transitions.cancel_superseded(
            services.database, pipeline_id, None if head is None else head.commit
        )


def _sealed(vault: Vault, values: Mapping[str, str]) -> str | None:
    """Return variables or inputs in the encrypted form in which the queue stores them."""
    return base64.b64encode(vault.encrypt(orjson.dumps(values).decode())).decode() if values else None


def _opened(vault: Vault, sealed: str | None) -> dict[str, str]:
    return dict(orjson.loads(vault.decrypt(base64.b64decode(sealed)))) if sealed else {}


def setup(services: Services) -> None:
    services[LIMITS] = Limits(services.settings)
    services[REMOTE_FILES] = RemoteFiles(services)
    limit = services.settings.git_push_pipeline_limit
    services[REF_LISTENERS].append(functools.partial(react_to_push, services.vault, limit))
    services[USER_LISTENERS].append(follow_user)
    queue = services.queue

    async def create_pushed_pipeline(**pushed: Any) -> None:
        await create_pipeline(services, **pushed)

    async def start_downstream(job_id: int) -> None:
        await start_bridge(pipeline_maker(services), job_id)

    async def follow_downstream(job_id: int, retried: bool = False) -> None:
        await follow_bridge(services.database, job_id, retried=retried)

    async def follow_mirrored_pipeline(pipeline_id: int) -> None:
        await follow_mirrored(services.database, pipeline_id)

    async def cancel_downstream(job_id: int) -> None:
        await cancel_child(services.database, job_id)

    async def drop_pipelines_of_blocked_user(user_id: int) -> None:
        await drop_pipelines(services.database, user_id)

    async def follow_forgotten() -> None:
        await follow_forgotten_bridges(services.database)

    async def start_delayed(job_id: int) -> None:
        async with services.database.transaction() as transaction:
            await transitions.start_when_due(transaction, job_id)

    async def assign_resource(project_id: int, resource_group: str) -> None:
        async with services.database.transaction() as transaction:
            await transitions.assign_resource(transaction, project_id, resource_group)

    queue.add(CREATE_PUSHED_PIPELINE, create_pushed_pipeline, attempts=5)
    queue.add(transitions.START_DOWNSTREAM, start_downstream, attempts=5)
    queue.add(transitions.FOLLOW_DOWNSTREAM, follow_downstream, attempts=5)
    queue.add(transitions.FOLLOW_MIRRORED, follow_mirrored_pipeline, attempts=5)
    queue.add(transitions.CANCEL_DOWNSTREAM, cancel_downstream, attempts=5)
    queue.add(DROP_PIPELINES, drop_pipelines_of_blocked_user, attempts=5)
    queue.add(transitions.START_DELAYED, start_delayed, attempts=5)
    queue.add(transitions.ASSIGN_RESOURCE, assign_resource, attempts=5)
    queue.add_periodic("follow_forgotten_bridges", "* * * * *", follow_forgotten)
