"""`/merge_requests/:iid/merge`, `/cancel_merge_when_pipeline_succeeds`, `/rebase` and `/merge_ref` (supporting
resource)."""

import attrs
from aiohttp import web

from api_server.merge_requests import queries
from api_server.merge_requests.acting import acting
from api_server.merge_requests.handlers import CHANGE, ONE, MergeRequestId
from api_server.merge_requests.merging import auto_merge, merge_ref, rebase
from api_server.merge_requests.merging.merge import Merge, merge
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.web import context
from api_server.web.answers import json_text, json_value
from api_server.web.params import Description
from api_server.web.routes import Routes

routes = Routes()


@attrs.frozen(kw_only=True)
class MergeMergeRequest(MergeRequestId):
    sha: str | None = None
    merge_commit_message: Description | None = None
    squash_commit_message: Description | None = None
    squash: bool | None = None
    should_remove_source_branch: bool | None = None
    auto_merge: bool = False
    #: What `auto_merge` was called before.
    merge_when_pipeline_succeeds: bool = False


@attrs.frozen(kw_only=True)
class RebaseMergeRequest(MergeRequestId):
    skip_ci: bool = False


@routes.put(f"{ONE}/merge", access=CHANGE)
async def merge_merge_request(
    request: web.Request, wanted: MergeMergeRequest, found: Project
) -> web.Response:
    """As the project merges, by whom the target branch's protection lets; on request later, when the head's pipeline
    has succeeded."""
    how = Merge(
        sha=wanted.sha,
        message=wanted.merge_commit_message,
        remove_source_branch=wanted.should_remove_source_branch,
        squash=wanted.squash,
        squash_message=wanted.squash_commit_message,
    )
    later = wanted.auto_merge or wanted.merge_when_pipeline_succeeds
    act = auto_merge.merge_or_wait if later else merge
    merge_request = await act(acting(request, found), wanted.merge_request_iid, how)
    return json_text(await queries.show(context.database(request), merge_request.id, found))


@routes.post(f"{ONE}/cancel_merge_when_pipeline_succeeds", access=CHANGE)
async def cancel_auto_merge(request: web.Request, wanted: MergeRequestId, found: Project) -> web.Response:
    await auto_merge.cancel(acting(request, found), wanted.merge_request_iid)
    return json_value({"status": "success"}, status=201)


@routes.get(f"{ONE}/merge_ref", access=project(opens="repository"))
async def show_merge_ref(request: web.Request, wanted: MergeRequestId, found: Project) -> web.Response:
    """The commit that merging would make now, which can be fetched from `refs/merge-requests/:iid/merge`."""
    sha = await merge_ref.merge_commit(request, found, wanted.merge_request_iid)
    return json_value({"commit_id": sha})


@routes.put(f"{ONE}/rebase", access=CHANGE)
async def rebase_merge_request(
    request: web.Request, wanted: RebaseMergeRequest, found: Project
) -> web.Response:
    """Of the source branch onto the target, in the background; `include_rebase_in_progress` shows when it is over, and
    `merge_error` what has gone wrong."""
    await rebase.begin(acting(request, found), wanted.merge_request_iid, skip_ci=wanted.skip_ci)
    return json_value({"rebase_in_progress": True}, status=202)
