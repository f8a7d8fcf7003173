"""Making a pipeline: read the commit, plan its jobs, write all of it down at once."""

import datetime
import re
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar

import attrs
import orjson

from api_server.ci.config import predefined
from api_server.ci.config.context import Context
from api_server.ci.config.errors import ConfigError
from api_server.ci.config.pipeline import plan_pipeline
from api_server.ci.config.plan import AutoCancel, Plan
from api_server.ci.config.predefined import pipeline_variables
from api_server.ci.config.variables import Variable
from api_server.ci.pipelines import creation_queries, planning, repository, transitions
from api_server.ci.pipelines.creation_queries import Subject
from api_server.ci.pipelines.describing import described_merge_request, described_project, described_user
from api_server.ci.pipelines.given_variables import check_may_begin_with
from api_server.ci.pipelines.limits import LIMITS, Limits
from api_server.ci.pipelines.merge_request_queries import MergeRequest
from api_server.ci.pipelines.remote_files import REMOTE_FILES, RemoteFiles
from api_server.ci.pipelines.repository import Commit
from api_server.ci.pipelines.wanted import NotMade, Wanted
from api_server.ci.variables import queries as variables
from api_server.code.branches.protection import protection_of
from api_server.code.tags.protection import tag_protection_of
from api_server.git import server_refs
from api_server.git.errors import AmbiguousNameError, RepositoryError
from api_server.git.references import Resolved
from api_server.git.repositories import REPOSITORIES, Repositories
from api_server.settings import Settings
from api_server.state.database import Database, Transaction
from api_server.state.errors import Conflict, NotFound
from api_server.state.secrets import Vault
from api_server.web.context import DATABASE, SETTINGS, VAULT, App
from common.concurrency import aside

P = ParamSpec("P")
T = TypeVar("T")

#: Variables of a pipeline that are opened in the event loop.
_AT_ONCE = 200
_SKIPS = re.compile(r"\[(ci[ _-]skip|skip[ _-]ci)\]", re.IGNORECASE)


@attrs.frozen
class Maker:
    """Makes pipelines, with what that takes of the application."""

    database: Database
    repositories: Repositories
    vault: Vault
    settings: Settings
    limits: Limits
    remote: RemoteFiles

    async def make(self, wanted: Wanted) -> int:
        """The id of the new pipeline, its first jobs on their way. Raises `NotMade`.

        A pushed configuration that cannot be used gives a failed pipeline with `yaml_errors`, so that who pushed it
        finds out. A merge request has a skipped one only where it would have one that runs.
        """
        self._count(wanted)
        subject = await self._subject(wanted)
        read = await self._read(wanted, subject)
        skips = wanted.skip or _SKIPS.search(read.commit["message"]) is not None
        if skips and wanted.source == "push":
            return await self._write(wanted, read, plan=None)
        try:
            check_may_begin_with(subject, wanted.source, wanted.variables)
            context = await self._context(wanted, subject, read, trusted=True)
            if read.problem is not None:
                raise read.problem
            plan, jobs = await self.in_thread(_planned, read.text or "", context)
        except ConfigError as refused:
            if wanted.source == "push":
                return await self._write(wanted, read, plan=None, errors=refused.errors)
            raise NotMade(*refused.errors) from None
        if not plan.jobs:
            raise NotMade(plan.reason or "No stages / jobs for this pipeline.")
        if skips and wanted.source == "merge_request_event":
            return await self._write(wanted, read, plan=None)
        return await self._write(wanted, read, plan, jobs)

    def resolve(self, project_id: int, ref: str) -> Resolved:
        """The branch or tag that `ref` names: what it is is asked before who may run there. Raises `NotMade`."""
        try:
            found = repository.resolve_ref(self.repositories, project_id, ref)
        except AmbiguousNameError:
            raise NotMade("Ref is ambiguous") from None
        if found is None:
            raise NotMade("Reference not found")
        return found

    async def context(self, wanted: Wanted) -> tuple[Context, str | None]:
        """What the configuration of `wanted` would be planned against, and its text. Raises `NotMade` and
        `ConfigError`."""
        subject = await self._subject(wanted)
        read = await self._read(wanted, subject)
        if read.problem is not None:
            raise NotMade(*read.problem.errors)
        return await self._context(wanted, subject, read, trusted=wanted.configuration is None), read.text

    async def in_thread(
        self,
        plan: Callable[Concatenate[str, Context, P], T],
        text: str,
        context: Context,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Runs what plans a file where it is in nobody's way. Raises `ConfigError`."""
        return await planning.in_thread(self.limits, self.remote, plan, text, context, *args, **kwargs)

    def _count(self, wanted: Wanted) -> None:
        """Counts a pipeline for its project, user and commit; children are bounded by their hierarchy."""
        if wanted.source == "parent_pipeline":
            return
        wait = self.limits.rate.retry_after((wanted.project_id, wanted.user_id, wanted.sha))
        if wait:
            raise NotMade("Too many pipelines created in the last minute. Try again later.", retry_after=wait)

    async def _subject(self, wanted: Wanted) -> Subject:
        try:
            return await creation_queries.subject(
                self.database,
                wanted.project_id,
                wanted.user_id,
                branch=None if wanted.tag else wanted.short_ref,
            )
        except NotFound:
            raise NotMade("Project not found") from None

    async def _read(self, wanted: Wanted, subject: Subject) -> Commit:
        try:
            read = await repository.read_commit(
                self.repositories,
                wanted.project_id,
                wanted.sha,
                tag=wanted.ref if wanted.tag else None,
                path=subject.ci_config_path or repository.DEFAULT_PATH,
            )
        except RepositoryError:
            raise NotMade("Commit not found") from None
        if wanted.configuration is not None:
            return attrs.evolve(read, text=wanted.configuration, problem=None)
        if read.text is None and read.problem is None:
            raise NotMade("Missing CI config file")
        return read

    async def _context(self, wanted: Wanted, subject: Subject, read: Commit, *, trusted: bool) -> Context:
        """What to plan against; protected variables only where the ref is protected and the text is `trusted`: rules of
        one that somebody tries out could spell them out."""
        protected = await self._is_protected(wanted)
        return Context(
            project_id=wanted.project_id,
            predefined=pipeline_variables(
                predefined.Server(url=self.settings.base_url, version=self.settings.dialect),
                described_project(subject),
                predefined.Pipeline(
                    iid=subject.next_iid,
                    ref=wanted.short_ref,
                    source=wanted.source,
                    created_at=self.database.now.astimezone(datetime.UTC),
                    tag=wanted.tag,
                    tag_message=read.tag_message,
                    protected=protected,
                    before_sha=wanted.before_sha,
                    open_merge_requests=subject.open_merge_requests or "",
                ),
                read.description,
                described_user(subject),
                described_merge_request(wanted.merge_request),
            ),
            given=(*await self._stored_variables(wanted, protected=protected and trusted), *wanted.variables),
            repository=repository.for_planning(
                read.repository, read.sha, subject.full_path, wanted.changed_since
            ),
            project=planning.other_projects(self.database, self.repositories, subject),
        )

    async def _stored_variables(self, wanted: Wanted, *, protected: bool) -> list[Variable]:
        """Those of the project and its groups, weakest first. Raises `ConfigError`."""
        try:
            stored = await variables.applicable(self.database, wanted.project_id, protected=protected)
        except variables.TooManyBytes as problem:
            raise ConfigError(f"Variables are too large: {problem}") from None
        return await aside(len(stored) > _AT_ONCE, self._opened, stored)

    def _opened(self, stored: Iterable[variables.SealedVariable]) -> list[Variable]:
        return [
            Variable(one.key, self.vault.decrypt(one.value), masked=one.masked, file=one.file, raw=one.raw)
            for one in stored
        ]

    async def _is_protected(self, wanted: Wanted) -> bool:
        """Of a merge request both branches have to be."""
        if wanted.merge_request is not None:
            return wanted.merge_request.source_protected and wanted.merge_request.target_protected
        protects = tag_protection_of if wanted.tag else protection_of
        return (await protects(self.database, wanted.project_id, wanted.ref)).protected

    async def _write(
        self,
        wanted: Wanted,
        read: Commit,
        plan: Plan | None,
        jobs: str = "[]",
        errors: tuple[str, ...] = (),
    ) -> int:
        protected = await self._is_protected(wanted)
        await server_refs.keep_commit(read.repository, read.sha)
        try:
            async with self.database.transaction() as transaction:
                await self._join_hierarchy(transaction, wanted)
                pipeline_id = await creation_queries.create_pipeline(
                    transaction,
                    **attrs.asdict(wanted, filter=lambda field, _: field.name in creation_queries.COLUMNS),
                    **_of_merge_request(wanted.merge_request),
                    **_of_plan(plan),
                    protected=protected,
                    commit=orjson.dumps(read.commit).decode(),
                    tag_message=read.tag_message or None,
                    committed_at=read.commit["committed_date"],
                    yaml_errors=", ".join(errors) or None,
                    status="failed" if errors else "created" if plan is not None else "skipped",
                )
                if plan is not None:
                    await self._check_activity(transaction, wanted)
                    sealed = {one.key: self.vault.encrypt(one.value) for one in wanted.variables}
                    await creation_queries.create_variables(
                        transaction, pipeline_id, wanted.variables, sealed
                    )
                    await creation_queries.create_jobs(transaction, pipeline_id, jobs, user_id=wanted.user_id)
                    await transitions.refresh(transaction, pipeline_id)
                return pipeline_id
        except Conflict as conflict:
            if conflict.constraint not in ("pipelines_origin", "pipelines_source_job"):
                raise
            return await creation_queries.pipeline_of_origin(
                self.database, origin=wanted.origin, source_job_id=wanted.source_job_id
            )

    async def _join_hierarchy(self, transaction: Transaction, wanted: Wanted) -> None:
        """The row that counts stays locked until the pipeline is there, so that no two pass the bound together. A
        hierarchy whose first pipeline has been removed grows no more."""
        most = self.settings.pipeline_hierarchy_size
        if wanted.hierarchy_id is not None and not await creation_queries.grow_hierarchy(
            transaction, wanted.hierarchy_id, most
        ):
            raise NotMade(
                f"There are {most} pipelines in this hierarchy already.",
                reason="reached_max_pipeline_hierarchy_size",
            )

    async def _check_activity(self, transaction: Transaction, wanted: Wanted) -> None:
        """One new pipeline of a project at a time gets here: each holds its counter's row."""
        most = self.settings.active_jobs_limit
        if most and await creation_queries.active_jobs(transaction, wanted.project_id, most) >= most:
            raise NotMade(
                "Project exceeded the allowed number of jobs in active pipelines. Retry later.",
                retry_after=60,
            )


def _of_merge_request(found: MergeRequest | None) -> dict[str, Any]:
    """What it is made for, as columns."""
    if found is None:
        return {"merge_request_id": None, "source_branch": None}
    return {"merge_request_id": found.id, "source_branch": found.source_branch}


def _of_plan(plan: Plan | None) -> dict[str, Any]:
    """What the file says of the pipeline as a whole, as columns."""
    cancel = AutoCancel() if plan is None else plan.auto_cancel
    return {
        "name": None if plan is None else plan.name,
        "auto_cancel_on_new_commit": cancel.on_new_commit or "conservative",
        "auto_cancel_on_job_failure": cancel.on_job_failure or "none",
    }


def _planned(text: str, context: Context) -> tuple[Plan, str]:
    """The plan, and its jobs as they are written down."""
    plan = plan_pipeline(text, context)
    return plan, creation_queries.columns_of(plan.jobs)


def maker(app: App, database: Database | None = None) -> Maker:
    """One that writes through `database`, where that is a request's."""
    joined = (app[REPOSITORIES], app[VAULT], app[SETTINGS], app[LIMITS], app[REMOTE_FILES])
    return Maker(database or app[DATABASE], *joined)
