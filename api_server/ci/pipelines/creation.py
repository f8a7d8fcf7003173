"""Creating a pipeline: reading the commit, planning its jobs, and writing all of it in one transaction.

A pipeline that was requested earlier is created with the rights that its user has at that time.
"""

import asyncio
import datetime
import re
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

import attrs
import orjson

from api_server.ci.config import predefined
from api_server.ci.config.context import Context
from api_server.ci.config.errors import CiConfigError
from api_server.ci.config.inputs import Input, declared_in
from api_server.ci.config.pipeline import NO_JOBS, plan_pipeline
from api_server.ci.config.plan import AutoCancel, Plan, PlannedJob
from api_server.ci.config.predefined import pipeline_variables
from api_server.ci.config.variables import Variable, forwarded
from api_server.ci.pipelines import creation_queries, other_files, planning, repository, transitions
from api_server.ci.pipelines.access import check_may_begin_with, may_run_on
from api_server.ci.pipelines.creation_queries import MergeRequest, PipelineSource, Subject
from api_server.ci.pipelines.job_queries import Bridge
from api_server.ci.pipelines.planning import LIMITS, REMOTE_FILES, Limits, RemoteFiles
from api_server.ci.pipelines.repository import Commit
from api_server.ci.variables import queries as variables
from api_server.code.protection import protection_of, tag_protection_of
from api_server.git import ref_moves
from api_server.git.errors import AmbiguousNameError, RepositoryError
from api_server.git.ref_names import NO_COMMIT
from api_server.git.references import Resolved
from api_server.git.repositories import REPOSITORIES, Repositories
from api_server.namespaces import project_queries
from api_server.namespaces.resources import CI_FILE, Project
from api_server.services import Services
from api_server.settings import Settings
from api_server.state.database import Database, Executor, Transaction
from api_server.state.errors import Conflict, NotFound
from api_server.state.preconditions import share
from api_server.state.secrets import Vault
from api_server.web.errors import ApiError
from api_server.web.routes import Role
from api_server.zip_files import ZIP_FILES, ZipFiles
from common.concurrency import aside


@attrs.frozen(kw_only=True)
class PipelineRequest:
    """A request for a pipeline. `ref` is a short name, or that of a merge request's head; requests with the
    same `origin` create only one pipeline."""

    project_id: int
    ref: str
    sha: str
    source: PipelineSource
    user_id: int | None
    tag: bool = False
    before_sha: str = NO_COMMIT
    #: Stronger than the file's own variables.
    variables: tuple[Variable, ...] = ()
    #: Values for the `spec:inputs` of the file.
    inputs: Mapping[str, Any] = attrs.field(factory=dict)
    origin: str | None = None
    #: Whether to create a skipped pipeline.
    skip: bool = False
    #: The bridge that starts it, and the first pipeline of its hierarchy.
    source_job_id: int | None = None
    hierarchy_id: int | None = None
    #: The merge request for which it, or its parent pipeline, is created.
    merge_request: MergeRequest | None = None
    #: The schedule that is due.
    schedule_id: int | None = None
    #: The text that replaces the file, for child pipelines.
    configuration: str | None = None

    @property
    def short_ref(self) -> str:
        """The branch or tag that the pipeline runs on."""
        return self.ref if self.merge_request is None else self.merge_request.source_branch

    @property
    def changed_since(self) -> str:
        """The commit with which `changes` compare."""
        return self.before_sha if self.merge_request is None else self.merge_request.base_sha or NO_COMMIT


class PipelineRefused(ApiError):
    """The pipeline is refused; `errors` are sentences for the requester, `reason` is GitLab's failure reason
    for a bridge that requested it. With `retry_after` (seconds) a later attempt may succeed."""

    def __init__(
        self, *errors: str, reason: str = "downstream_pipeline_creation_failed", retry_after: int = 0
    ) -> None:
        headers = {"Retry-After": str(retry_after)} if retry_after else None
        super().__init__(429 if retry_after else 400, {"message": {"base": list(errors)}}, headers)
        self.errors = errors
        self.reason = reason


MISSING_FILE = "Missing CI config file"
#: Maximum characters of a merge request's description that its jobs get.
MAX_DESCRIPTION = 2700


def described_project(subject: Subject) -> predefined.Project:
    return predefined.Project(
        id=subject.id,
        full_path=subject.full_path,
        title=subject.name,
        namespace_id=subject.namespace_id,
        visibility=subject.visibility,
        default_branch=subject.default_branch,
        description=subject.description or "",
        config_path=subject.ci_config_path or CI_FILE,
    )


def described_user(subject: Subject) -> predefined.User | None:
    if subject.user_id is None:
        return None
    return predefined.User(
        id=subject.user_id,
        username=subject.username or "",
        name=subject.user_name or "",
        email=subject.email or "",
    )


def described_merge_request(merge_request: MergeRequest | None) -> predefined.MergeRequest | None:
    """Return the merge request without the heads' SHAs, which GitLab gives only to pipelines of merged
    results."""
    if merge_request is None:
        return None
    return predefined.MergeRequest(
        id=merge_request.id,
        iid=merge_request.iid,
        title=merge_request.title,
        description=merge_request.description[:MAX_DESCRIPTION],
        description_is_truncated=len(merge_request.description) > MAX_DESCRIPTION,
        draft=merge_request.draft,
        labels=tuple(merge_request.labels),
        source_branch=merge_request.source_branch,
        source_protected=merge_request.source_protected,
        source_project_id=merge_request.project_id,
        source_project_path=merge_request.project_path,
        target_branch=merge_request.target_branch,
        target_protected=merge_request.target_protected,
        diff_base_sha=merge_request.base_sha or "",
    )


P = ParamSpec("P")
T = TypeVar("T")

#: Variables that a bridge does not have, because no runner runs it.
_OF_RUNNERS = frozenset({"CI_JOB_STARTED_AT", "CI_JOB_TIMEOUT"})
#: Maximum number of a pipeline's variables that are decrypted in the event loop.
_AT_ONCE = 200
_SKIPS = re.compile(r"\[(ci[ _-]skip|skip[ _-]ci)\]", re.IGNORECASE)


@attrs.frozen
class PipelineMaker:
    """Creates pipelines with the parts of the application that this requires."""

    database: Database
    repositories: Repositories
    vault: Vault
    settings: Settings
    limits: Limits
    remote: RemoteFiles
    zip_files: ZipFiles

    @property
    def _server(self) -> predefined.Server:
        return predefined.Server(url=self.settings.base_url, version=self.settings.dialect)

    async def make(self, request: PipelineRequest) -> int:
        """Create a pipeline, enqueue its first jobs and return its id. Raise `PipelineRefused`.

        A pushed configuration that is invalid gives a failed pipeline with `yaml_errors`, so that the user
        who pushed it is informed. So does an invalid configuration of a child pipeline, although it is
        refused. A merge request gets a skipped pipeline only if it would otherwise get one that runs.
        """
        self._count(request)
        subject = await self._subject(request)
        read = await self._read(request, subject)
        skips = request.skip or _SKIPS.search(read.commit["message"]) is not None
        if skips and request.source == "push":
            return await self._write(request, read, plan=None)
        try:
            check_may_begin_with(subject, request.source, request.variables)
            context = await self._context(request, subject, read, trusted=True)
            if read.problem is not None:
                raise read.problem
            plan, jobs = await self.in_thread(_plan, read.text or "", context)
        except CiConfigError as refused:
            if request.source == "push" or request.source_job_id is not None:
                pipeline_id = await self._write(request, read, plan=None, errors=refused.errors)
                if request.source == "push":
                    return pipeline_id
            raise PipelineRefused(*refused.errors) from None
        if not plan.jobs:
            raise PipelineRefused(plan.reason or NO_JOBS)
        if skips and request.source == "merge_request_event":
            return await self._write(request, read, plan=None)
        return await self._write(request, read, plan, jobs)

    def resolve(self, project_id: int, ref: str) -> Resolved:
        """Return the branch or tag that `ref` names; this is determined before the rights on it are checked.
        Raise `PipelineRefused`."""
        try:
            resolved = repository.resolve_ref(self.repositories, project_id, ref)
        except AmbiguousNameError:
            raise PipelineRefused("Ref is ambiguous") from None
        if resolved is None:
            raise PipelineRefused("Reference not found")
        return resolved

    async def context(self, request: PipelineRequest) -> tuple[Context, str | None]:
        """Return the context for planning the configuration of `request`, and the configuration's text. Raise
        `PipelineRefused` and `CiConfigError`."""
        subject = await self._subject(request)
        read = await self._read(request, subject)
        if read.problem is not None:
            raise PipelineRefused(*read.problem.errors)
        return await self._context(request, subject, read, trusted=request.configuration is None), read.text

    async def forwarded(
        self, bridge: Bridge, plan: PlannedJob, pipeline_variables: tuple[Variable, ...]
    ) -> tuple[Variable, ...]:
        """Return the variables that the file gives a bridge, expanded as in its own pipeline, which was
        started with `pipeline_variables`. Raise `PipelineRefused`."""
        bridge_variables = plan.variables
        if not any("$" in variable.value and not variable.raw for variable in bridge_variables):
            return bridge_variables
        request = PipelineRequest(
            project_id=bridge.project_id,
            ref=bridge.ref,
            tag=bridge.tag,
            sha=bridge.sha,
            before_sha=bridge.before_sha,
            source=bridge.source,
            user_id=bridge.user_id,
            variables=pipeline_variables,
            merge_request=await creation_queries.find_merge_request(self.database, bridge.merge_request_id),
            configuration="",
        )
        subject = await self._subject(request)
        try:
            read = await self._read(request, subject)
            context = await self._context(request, subject, read, trusted=True)
        except CiConfigError as refused:
            raise PipelineRefused(*refused.errors) from None
        weaker = (*context.predefined, *self._of_bridge(bridge, plan, subject, context))
        large = len(bridge_variables) + len(context.overrides) > _AT_ONCE
        return tuple(await aside(large, lambda: forwarded(bridge_variables, weaker, context.overrides)))

    def _of_bridge(
        self, bridge: Bridge, plan: PlannedJob, subject: Subject, context: Context
    ) -> list[Variable]:
        """Return the variables of a bridge and its pipeline that `Context.predefined` lacks, or has for the
        next pipeline."""
        job = predefined.Job(
            id=bridge.id, pipeline_id=bridge.pipeline_id, token="", started_at=self.database.now, timeout=0
        )
        of_job = predefined.job_variables(
            self._server, described_project(subject), job, plan, context.predefined
        )
        return [
            Variable("CI_PIPELINE_IID", str(bridge.pipeline_iid)),
            *(variable for variable in of_job if variable.public and variable.key not in _OF_RUNNERS),
        ]

    async def inputs_of_file(self, project_id: int, user_id: int, ref: str) -> dict[str, Input]:
        """Return the inputs that the project's file on a branch or tag declares, by name. Raise
        `PipelineRefused`."""
        resolved = self.resolve(project_id, ref)
        request = PipelineRequest(
            project_id=project_id,
            ref=resolved.name,
            tag=resolved.kind == "tag",
            sha=resolved.commit,
            source="web",
            user_id=user_id,
        )
        read = await self._read(request, await self._subject(request))
        try:
            if read.problem is not None:
                raise read.problem
            return await self.in_thread(declared_in, read.text or "", Context(project_id=project_id))
        except CiConfigError as refused:
            raise PipelineRefused(*refused.errors) from None

    async def in_thread(
        self,
        plan: Callable[Concatenate[str, Context, P], T],
        text: str,
        context: Context,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a function that plans a file in a thread, so that it blocks no other request. Raise
        `CiConfigError`."""
        return await planning.plan_in_thread(self.limits, self.remote, plan, text, context, *args, **kwargs)

    def _count(self, request: PipelineRequest) -> None:
        """Count a pipeline for its project, user and commit. Child pipelines do not count: the size of their
        hierarchy is limited."""
        if request.source == "parent_pipeline":
            return
        wait = self.limits.rate.retry_after((request.project_id, request.user_id, request.sha))
        if wait:
            raise PipelineRefused(
                "Too many pipelines created in the last minute. Try again later.", retry_after=wait
            )

    async def _subject(self, request: PipelineRequest) -> Subject:
        try:
            return await creation_queries.subject(
                self.database,
                request.project_id,
                request.user_id,
                branch=None if request.tag else request.short_ref,
            )
        except NotFound:
            raise PipelineRefused("Project not found") from None

    async def _read(self, request: PipelineRequest, subject: Subject) -> Commit:
        try:
            read = await repository.read_commit(
                self.repositories,
                request.project_id,
                request.sha,
                tag=request.ref if request.tag else None,
                path=subject.ci_config_path or CI_FILE,
            )
        except RepositoryError:
            raise PipelineRefused("Commit not found") from None
        if request.configuration is not None:
            return attrs.evolve(read, text=request.configuration, problem=None)
        if read.text is None and read.problem is None:
            raise PipelineRefused(MISSING_FILE)
        return read

    async def _context(
        self, request: PipelineRequest, subject: Subject, read: Commit, *, trusted: bool
    ) -> Context:
        """Return the context for planning, with protected variables only if the ref is protected and the text
        is `trusted`: in a text that somebody tries out, rules could reveal their values."""
        protected = await self._is_protected(request)
        return Context(
            project_id=request.project_id,
            predefined=pipeline_variables(
                self._server,
                described_project(subject),
                predefined.Pipeline(
                    iid=subject.next_iid,
                    ref=request.short_ref,
                    source=request.source,
                    created_at=self.database.now.astimezone(datetime.UTC),
                    tag=request.tag,
                    tag_message=read.tag_message,
                    protected=protected,
                    before_sha=request.before_sha,
                    open_merge_requests=subject.open_merge_requests or "",
                ),
                read.description,
                described_user(subject),
                described_merge_request(request.merge_request),
            ),
            overrides=(
                *await self._stored_variables(request, protected=protected and trusted),
                *request.variables,
            ),
            inputs=request.inputs,
            repository=repository.for_planning(
                read.repository,
                read.sha,
                subject.full_path,
                asyncio.get_running_loop(),
                request.changed_since,
            ),
            project=other_files.other_projects(self.database, self.repositories, subject),
            template=other_files.templates(self.settings.ci_templates_dir),
            artifact=other_files.artifacts_of_parent(
                self.database,
                self.zip_files,
                request.source_job_id if request.source == "parent_pipeline" else None,
            ),
        )

    async def _stored_variables(self, request: PipelineRequest, *, protected: bool) -> list[Variable]:
        """Return the variables of the project and its groups, weakest first. Raise `CiConfigError`."""
        try:
            stored = await variables.applicable(self.database, request.project_id, protected=protected)
        except variables.TooManyBytes as problem:
            raise CiConfigError(f"Variables are too large: {problem}") from None
        return await aside(
            len(stored) > _AT_ONCE, lambda: [variable.opened(self.vault) for variable in stored]
        )

    async def _is_protected(self, request: PipelineRequest) -> bool:
        """Return whether the ref is protected; for a merge request, whether both branches are."""
        if request.merge_request is not None:
            return request.merge_request.source_protected and request.merge_request.target_protected
        protects = tag_protection_of if request.tag else protection_of
        return (await protects(self.database, request.project_id, request.ref)).protected

    async def _write(
        self,
        request: PipelineRequest,
        read: Commit,
        plan: Plan | None,
        jobs: str = "[]",
        errors: tuple[str, ...] = (),
    ) -> int:
        protected = await self._is_protected(request)
        await ref_moves.keep_commit(read.repository, read.sha)
        try:
            async with self.database.transaction() as transaction:
                await self._join_hierarchy(transaction, request)
                pipeline_id = await creation_queries.create_pipeline(
                    transaction,
                    **attrs.asdict(request, filter=lambda field, _: field.name in creation_queries.COLUMNS),
                    **_of_merge_request(request.merge_request),
                    **_of_plan(plan),
                    protected=protected,
                    commit=orjson.dumps(read.commit).decode(),
                    tag_message=read.tag_message or None,
                    committed_at=read.commit["committed_date"],
                    yaml_errors=", ".join(errors) or None,
                    status="failed" if errors else "created" if plan is not None else "skipped",
                )
                if plan is not None:
                    await self._check_activity(transaction, request)
                    sealed = {
                        variable.key: self.vault.encrypt(variable.value) for variable in request.variables
                    }
                    await creation_queries.create_variables(
                        transaction, pipeline_id, request.variables, sealed
                    )
                    await creation_queries.create_jobs(
                        transaction, pipeline_id, jobs, user_id=request.user_id
                    )
                    await transitions.refresh(transaction, pipeline_id)
                return pipeline_id
        except Conflict as conflict:
            if conflict.constraint not in ("pipelines_origin", "pipelines_source_job"):
                raise
            return await creation_queries.pipeline_of_origin(
                self.database, origin=request.origin, source_job_id=request.source_job_id
            )

    async def _join_hierarchy(self, transaction: Transaction, request: PipelineRequest) -> None:
        """Count the pipeline in its hierarchy.

        The row with the counter stays locked until the pipeline has been created, so that no two of them
        exceed the limit together. A hierarchy whose first pipeline has been removed cannot grow.
        """
        limit = self.settings.pipeline_hierarchy_size
        if request.hierarchy_id is not None and not await creation_queries.grow_hierarchy(
            transaction, request.hierarchy_id, limit
        ):
            raise PipelineRefused(
                f"There are {limit} pipelines in this hierarchy already.",
                reason="reached_max_pipeline_hierarchy_size",
            )

    async def _check_activity(self, transaction: Transaction, request: PipelineRequest) -> None:
        """Check the limit of active jobs. Each new pipeline of a project locks its counter's row, so only one
        at a time gets here."""
        limit = self.settings.active_jobs_limit
        if limit and await creation_queries.active_jobs(transaction, request.project_id, limit) >= limit:
            raise PipelineRefused(
                "Project exceeded the allowed number of jobs in active pipelines. Retry later.",
                retry_after=60,
            )


def _of_merge_request(merge_request: MergeRequest | None) -> dict[str, Any]:
    """Return the columns for the merge request of the pipeline."""
    if merge_request is None:
        return {"merge_request_id": None, "source_branch": None}
    return {"merge_request_id": merge_request.id, "source_branch": merge_request.source_branch}


def _of_plan(plan: Plan | None) -> dict[str, Any]:
    """Return the columns that the file determines for the pipeline as a whole."""
    cancel = AutoCancel() if plan is None else plan.auto_cancel
    return {
        "name": None if plan is None else plan.name,
        "auto_cancel_on_new_commit": cancel.on_new_commit or "conservative",
        "auto_cancel_on_job_failure": cancel.on_job_failure or "none",
    }


def _plan(text: str, context: Context) -> tuple[Plan, str]:
    """Return the plan, and its jobs as they are written to the database."""
    plan = plan_pipeline(text, context)
    return plan, creation_queries.columns_of(plan.jobs)


def pipeline_maker(services: Services) -> PipelineMaker:
    return PipelineMaker(
        services.database,
        services[REPOSITORIES],
        services.vault,
        services.settings,
        services[LIMITS],
        services[REMOTE_FILES],
        services[ZIP_FILES],
    )


INSUFFICIENT = "Insufficient permissions to create a new pipeline"


class PipelineForbidden(PipelineRefused):
    """The user may not run pipelines there."""

    def __init__(self, *errors: str) -> None:
        super().__init__(*errors, reason="insufficient_bridge_permissions")


async def make_with_rights(maker: PipelineMaker, request: PipelineRequest) -> int:
    """Create a pipeline like `PipelineMaker.make`, checking the user's rights. They cannot be revoked until
    the pipeline has been created. Raise `PipelineRefused` and its subclass `PipelineForbidden`."""
    project = await check_rights(maker.database, request)
    groups = (f"group:{namespace_id}" for namespace_id in project.lineage)
    names = {f"user:{request.user_id}", f"project:{project.id}", *groups}

    async def hold(transaction: Transaction) -> None:
        await share(transaction, names)
        await check_rights(transaction, request)

    return await attrs.evolve(maker, database=maker.database.opening_with(hold)).make(request)


async def check_rights(executor: Executor, request: PipelineRequest) -> Project:
    """Return the project with the user's rights in it. Raise `PipelineForbidden` if the user may not run the
    pipeline, and the errors of `check_open`."""
    project = await _project_of_user(executor, request)
    if project is None:
        raise PipelineForbidden(INSUFFICIENT)
    check_open(project)
    ref, tag = request.short_ref, request.tag
    if not await may_run_on(executor, project.id, ref, tag=tag, role=project.role, admin=project.admin):
        raise not_allowed_on(ref)
    return project


def check_open(project: Project) -> None:
    """Raise `PipelineForbidden` if the user may not run any pipelines, and `PipelineRefused` if nobody
    may."""
    if project.role < Role.DEVELOPER:
        raise PipelineForbidden(INSUFFICIENT)
    if project.archived or project.builds_access_level == "disabled":
        raise PipelineRefused("Pipelines are disabled!")


def not_allowed_on(ref: str) -> PipelineForbidden:
    """Return the refusal for a branch or tag on which the user may not run pipelines."""
    return PipelineForbidden(f"You do not have sufficient permission to run a pipeline on '{ref}'.")


async def _project_of_user(executor: Executor, request: PipelineRequest) -> Project | None:
    """Return the project, or None if the user has been removed or blocked, or cannot see it."""
    user = await creation_queries.active_user(executor, request.user_id)
    if user is None:
        return None
    return await project_queries.find_project(
        executor,
        project_id=request.project_id,
        path=None,
        user_id=request.user_id,
        admin=user.admin,
        job_project_id=None,
    )
