"""Bridges: starting the pipeline that a trigger job asks for, and taking over what became of it."""

from typing import Any

from api_server.ci.config.pipeline import child_configuration
from api_server.ci.config.plan import PlannedJob, Trigger
from api_server.ci.config.variables import Variable
from api_server.ci.pipelines import creation, job_queries, queries, transitions
from api_server.ci.pipelines.creation import Maker, NotMade, Wanted
from api_server.ci.pipelines.creation_queries import find_merge_request
from api_server.ci.pipelines.job_queries import Bridge, plan_of
from api_server.ci.pipelines.states import COMPLETE, TRANSITIONS, Status
from api_server.git.ref_names import NO_COMMIT
from api_server.state.database import Database, Transaction
from api_server.web.access import Role

_FAILS = {"event": "drop", "failure_reason": "downstream_pipeline_failed"}
#: Status of the downstream pipeline -> what happens to a bridge that runs and waits for it; in others it runs on.
_TAKEN_OVER: dict[str, dict[str, Any]] = {
    "success": {"event": "success"},
    "failed": _FAILS,
    "skipped": _FAILS,
    "canceled": {"event": "cancel"},
}
_MIRRORED = _TAKEN_OVER | {"skipped": {"event": "mirror_skipped"}, "manual": {"event": "mirror_manual"}}


async def start(maker: Maker, job_id: int) -> None:
    """Starts what a pending bridge asks for, once."""
    bridge = await job_queries.find_bridge(maker.database, job_id)
    if bridge is None or bridge.status != "pending":
        return
    planned = plan_of(bridge)
    try:
        wanted = await _wanted(maker, bridge, planned)
        await (
            maker.make(wanted)
            if wanted.source == "parent_pipeline"
            else creation.make_with_rights(maker, wanted)
        )
        reason = None
    except NotMade as refused:
        reason = refused.reason
    async with maker.database.transaction() as transaction:
        if reason is not None:
            await transitions.advance(transaction, job_id, "drop", failure_reason=reason)
        elif await transitions.advance(transaction, job_id, "run") and not _depends(planned):
            await transitions.advance(transaction, job_id, "success")
    await follow(maker.database, job_id)
    await cancel(maker.database, job_id)  # the bridge may have been while the pipeline was made


async def follow_forgotten(database: Database) -> None:
    """Brings the bridges in line whose downstream pipelines have ended, or gone, without a word: with their project."""
    for job_id in await job_queries.forgotten_bridges(database):
        await follow(database, job_id)


async def follow(database: Database, job_id: int) -> None:
    """Brings a bridge that waits for its downstream pipeline in line with it; one whose pipeline was removed fails."""
    async with database.transaction() as transaction:
        await job_queries.lock_pipeline_of(transaction, job_id)
        bridge = await job_queries.find_bridge(transaction, job_id)
        downstream = await job_queries.find_downstream(transaction, job_id)
        if bridge is None or bridge.retried or not _depends(plan_of(bridge)):
            return
        if downstream is None:
            if bridge.status == "running":
                await transitions.advance(transaction, job_id, "drop", failure_reason="unknown_failure")
        else:
            await _take_over(transaction, bridge, downstream.status)


async def _take_over(transaction: Transaction, bridge: Bridge, status: Status) -> None:
    """Brings a bridge that runs, or has taken over another status, to where its downstream pipeline's is."""
    trigger = plan_of(bridge).trigger
    mirrors = trigger is not None and trigger.mirror
    taken_over = (_MIRRORED if mirrors else _TAKEN_OVER).get(status)
    target = "running" if taken_over is None else TRANSITIONS[taken_over["event"]]["running"]
    if bridge.status == target:
        return
    if bridge.status != "running" and await transitions.advance(transaction, bridge.id, "reopen") is None:
        return
    if taken_over is not None:
        await transitions.advance(transaction, bridge.id, **taken_over)


async def cancel(database: Database, job_id: int) -> None:
    """Cancels the child pipeline of a bridge that was canceled; pipelines of other projects go on."""
    bridge = await job_queries.find_bridge(database, job_id)
    downstream = await job_queries.find_downstream(database, job_id)
    if bridge is None or downstream is None or bridge.status != "canceled":
        return
    if downstream.source == "parent_pipeline" and downstream.status not in COMPLETE:
        async with database.transaction() as transaction:
            await transitions.cancel_pipeline(transaction, downstream.id)


async def _wanted(maker: Maker, bridge: Bridge, planned: PlannedJob) -> Wanted:
    """The pipeline that the bridge asks for. Raises `NotMade`."""
    if planned.trigger is None or bridge.user_id is None:
        raise NotMade(reason="invalid_bridge_trigger")
    child = planned.trigger.project is None
    if child and bridge.depth >= maker.settings.child_pipeline_depth:
        raise NotMade(reason="reached_max_descendant_pipelines_depth")
    if bridge.loops and not child:
        raise NotMade(reason="pipeline_loop_detected")
    variables = await _forwarded(maker, bridge, planned, planned.trigger)
    if child:
        return Wanted(
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
            configuration=child_configuration(planned.trigger.include),
        )
    return await _wanted_elsewhere(maker, bridge, planned.trigger, variables)


async def _wanted_elsewhere(
    maker: Maker, bridge: Bridge, trigger: Trigger, variables: tuple[Variable, ...]
) -> Wanted:
    target = await job_queries.project_by_path(maker.database, trigger.project or "", bridge.user_id)
    if target is None:
        raise NotMade(reason="downstream_bridge_project_not_found")
    member = target.admin or target.role >= Role.DEVELOPER  # others are not even told which refs there are
    if not member or target.archived or target.builds_access_level == "disabled":
        raise NotMade(reason="insufficient_bridge_permissions")
    resolved = maker.resolve(target.id, trigger.branch or target.default_branch)
    return Wanted(
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
    )


async def _forwarded(
    maker: Maker, bridge: Bridge, planned: PlannedJob, trigger: Trigger
) -> tuple[Variable, ...]:
    """The bridge's own variables, and those given to its pipeline, as far as `forward` says."""
    given: tuple[Variable, ...] = ()
    if trigger.forward_pipeline_variables:
        rows = await queries.pipeline_variables(maker.database, bridge.pipeline_id)
        given = tuple(
            Variable(row.key, maker.vault.decrypt(row.value), file=row.variable_type == "file")
            for row in rows
        )
    own = planned.variables if trigger.forward_yaml_variables else ()
    return (*own, *given)


def _depends(planned: PlannedJob) -> bool:
    return planned.trigger is not None and (planned.trigger.depend or planned.trigger.mirror)
