"""`/projects/:id/statuses/:sha` and `/projects/:id/repository/commits/:sha/statuses` (supporting
resources)."""

from typing import Annotated

import attrs
from aiohttp import web

from api_server.ci.commit_statuses import changes, queries
from api_server.ci.commit_statuses.changes import ReportedStatus, State, Subject
from api_server.ci.pipelines.access import archived_before, check_may_change, short_ref
from api_server.ci.pipelines.planning import LIMITS
from api_server.code.entities import commit_named
from api_server.code.protection import protection_for
from api_server.code.reading import opened, reading
from api_server.git import commits, ref_moves
from api_server.git.ref_names import MAX_NAME_BYTES
from api_server.git.repositories import Repository
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.web.answers import json_text
from api_server.web.auth import Actor, Anonymous
from api_server.web.errors import not_found
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.params import AtMostBytes
from api_server.web.routes import Role, Routes

routes = Routes()
#: The ref in a request need not exist.
Ref = Annotated[str, AtMostBytes(MAX_NAME_BYTES)]


@attrs.frozen(kw_only=True)
class ListStatuses(Paginated):
    id: str
    sha: str
    ref: str | None = None
    stage: str | None = None
    name: str | None = None
    pipeline_id: int | None = None
    all: bool = False


@attrs.frozen(kw_only=True)
class SetStatus:
    id: str
    sha: str
    state: State
    ref: Ref | None = None
    name: str | None = None
    context: str | None = None
    target_url: str | None = None
    description: str | None = None
    coverage: float | None = None
    pipeline_id: int | None = None

    @property
    def reported(self) -> ReportedStatus:
        names = (name for name in (self.name, self.context) if name is not None)
        return ReportedStatus(
            state=self.state,
            name=next(names, "default"),
            target_url=self.target_url,
            description=self.description,
            coverage=self.coverage,
        )


@routes.get(
    "/projects/{id}/repository/commits/{sha}/statuses",
    access=project(feature="builds"),
    answers="200 [CommitStatus]",
)
async def list_statuses(
    request: web.Request, services: Services, params: ListStatuses, project: Project
) -> web.Response:
    """List the statuses of a commit, given by SHA or by the name of a branch or tag: reports of other systems
    and its jobs; the oldest first."""
    sha = commit_named(await opened(services, project), params.sha)
    page = requested_page(params, queries.LISTING, default_sort="asc")
    rows = await queries.list_statuses(
        services.database,
        page,
        project.id,
        sha,
        ref=params.ref or None,
        stage=params.stage or None,
        name=params.name or None,
        pipeline_id=params.pipeline_id,
        all=params.all,
    )
    return await paginated(request, page, rows)


@routes.post(
    "/projects/{id}/statuses/{sha}",
    access=project(Role.DEVELOPER, feature="builds"),
    answers="201 CommitStatus",
)
async def set_status(services: Services, actor: Actor, params: SetStatus, project: Project) -> web.Response:
    """Set the status of a commit in its newest pipeline on `ref`, or in a pipeline of its own."""
    changes.check(params.reported)
    repository = await opened(services, project)
    subject = await _subject(services, actor, params, project, repository)
    await check_may_change(services, project, subject.judged_by, tag=subject.tag)
    await ref_moves.keep_commit(repository, subject.sha)
    async with services.database.transaction() as transaction:
        entity = await changes.set_status(
            transaction,
            subject,
            params.reported,
            actor.user_id,
            limit=services.settings.commit_statuses_limit,
            pipelines=services[LIMITS].rate,
            archived_before=archived_before(services),
        )
    return json_text(entity, status=201)


async def _subject(
    services: Services, actor: Actor | Anonymous, params: SetStatus, project: Project, repository: Repository
) -> Subject:
    """Return the subject of the status. Raise 404 if the commit, a ref for it or the pipeline does not
    exist."""
    sha = commit_named(repository, params.sha)
    ref, tag, judged_by = await _ref_of_status(services, actor, params, project, repository, sha)
    return Subject(
        project_id=project.id,
        sha=sha,
        ref=ref,
        tag=tag,
        judged_by=judged_by,
        protected=not tag and (await protection_for(services, project.id, judged_by)).protected,
        pipeline_id=params.pipeline_id,
        data=commits.commit_data(repository, sha),
    )


async def _ref_of_status(
    services: Services,
    actor: Actor | Anonymous,
    params: SetStatus,
    project: Project,
    repository: Repository,
    sha: str,
) -> tuple[str, bool, str]:
    """Return the ref of the status, whether it is a tag, and the ref whose protection decides: those named by
    `ref`, or else those of the commit's newest pipeline, or else the first branch that contains the
    commit."""
    ref, tag = short_ref(services, project, params.ref) if params.ref else (None, False)
    pipeline = await queries.find_joined(
        services.database,
        project.id,
        sha,
        ref=ref,
        tag=tag,
        pipeline_id=params.pipeline_id,
        archived_before=archived_before(services),
    )
    if pipeline is not None:
        return pipeline.ref, pipeline.tag, pipeline.judged_by
    if params.pipeline_id is not None:
        raise changes.no_such_pipeline()
    if ref is None:
        async with reading(services, actor):
            ref = await commits.branch_with(repository, sha)
    if ref is None or ref.startswith("refs/"):  # pipelines are not created for such refs
        raise not_found("References for commit")
    return ref, tag, ref
