"""The tables in SQLAlchemy, the answers in pydantic (in the same shapes as ours), and functions that convert rows to
answers."""

import datetime
import functools
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, Self

from pydantic import BaseModel
from sqlalchemy import MetaData, Table, create_engine
from sqlalchemy.orm import declarative_base, relationship

Moment = datetime.datetime
BASE = "http://127.0.0.1:8080"
_database = create_engine(os.environ["BENCH_DATABASE_URL"])

Base: Any = declarative_base(metadata=MetaData())


def table(name: str, columns: str) -> Table:
    """Return a table with these columns, as the database describes them."""
    return Table(
        name,
        Base.metadata,
        autoload_with=_database,
        include_columns=["id", *columns.split()],
        resolve_fks=False,
    )


def many_to_one(column: str, row: str) -> Any:
    return relationship(row, primaryjoin=f"foreign({column}) == {row}.id", viewonly=True)


class UserRow(Base):
    __table__ = table(
        "users",
        "username name state bio location public_email website_url organization job_title bot created_at",
    )


class NamespaceRow(Base):
    __table__ = table("namespaces", "kind name path full_path full_name parent_id")


class ProjectRow(Base):
    __table__ = table(
        "projects",
        "namespace_id name path full_path description visibility default_branch empty_repo "
        "ci_inbound_job_token_scope_enabled last_activity_at created_at",
    )
    namespace = many_to_one("ProjectRow.namespace_id", "NamespaceRow")


class PipelineRow(Base):
    __table__ = table(
        "pipelines", "iid project_id source_job_id sha ref tag status source commit created_at updated_at"
    )
    project = many_to_one("PipelineRow.project_id", "ProjectRow")


class RunnerRow(Base):
    __table__ = table("runners", "description name active runner_type contacted_at")


class ArtifactRow(Base):
    __table__ = table("job_artifacts", "job_id file_type file_format filename size")


class JobRow(Base):
    __table__ = table(
        "jobs",
        "project_id pipeline_id user_id runner_id kind status name stage coverage allow_failure failure_reason "
        "tag_list created_at queued_at started_at finished_at erased_at artifacts_expire_at",
    )
    pipeline = many_to_one("JobRow.pipeline_id", "PipelineRow")
    project = many_to_one("JobRow.project_id", "ProjectRow")
    user = many_to_one("JobRow.user_id", "UserRow")
    runner = many_to_one("JobRow.runner_id", "RunnerRow")
    artifacts = relationship(
        "ArtifactRow",
        primaryjoin="foreign(ArtifactRow.job_id) == JobRow.id",
        order_by="ArtifactRow.id",
        viewonly=True,
    )
    downstream = relationship(
        "PipelineRow",
        primaryjoin="foreign(PipelineRow.source_job_id) == JobRow.id",
        viewonly=True,
        uselist=False,
    )


class EventRow(Base):
    __table__ = table(
        "audit_events",
        "author_id author_name entity_type entity_id entity_path event_type target_type target_id "
        "target_details ip_address details created_at",
    )
    __mapper_args__ = {"primary_key": [__table__.c.id]}


class CheckRow(Base):
    __table__ = table(
        "external_status_checks", "project_id name external_url paused_at pause_reason failing_since"
    )


class CheckResponseRow(Base):
    __table__ = table("status_check_responses", "check_id merge_request_id status")


class MergeRequestRow(Base):
    __table__ = table("merge_requests", "project_id iid")


class MirrorRow(Base):
    __table__ = table(
        "remote_mirrors",
        "project_id enabled shown_url update_status last_update_at last_update_started_at "
        "last_successful_update_at last_error only_protected_branches keep_divergent_refs auth_method "
        "host_keys mirror_branch_regex",
    )


class InvitationRow(Base):
    __table__ = table(
        "invitations", "project_id namespace_id email access_level expires_at created_by_id created_at"
    )
    created_by = many_to_one("InvitationRow.created_by_id", "UserRow")


class Shape(BaseModel):
    """An answer, or a part of one."""

    @classmethod
    def of(cls, row: Any, **others: object) -> Self:
        """Return the shape with the row's columns of the same names, and with these other values."""
        shape: Any = cls  # hashable, which mypy does not know without pydantic
        names, values = _columns(shape, row.__class__)
        return cls(**(dict(zip(names, values(row), strict=True)) | others))


@functools.cache
def _columns(shape: Any, row: Any) -> tuple[Sequence[str], Callable[[object], Sequence[Any]]]:
    names = [name for name in shape.model_fields if name in row.__table__.columns]
    return names, operator.attrgetter(*names)


class User(Shape):
    id: int
    username: str
    public_email: str | None
    name: str
    state: str
    locked: bool = False
    avatar_url: str | None = None
    web_url: str
    created_at: Moment
    bio: str
    location: str
    skype: str = ""
    linkedin: str = ""
    twitter: str = ""
    discord: str = ""
    website_url: str
    organization: str
    job_title: str
    pronouns: str | None = None
    bot: bool
    work_information: str | None = None
    followers: int = 0
    following: int = 0
    is_followed: bool = False
    local_time: str | None = None


class Commit(Shape):
    id: str
    short_id: str
    title: str
    created_at: str | None = None
    message: str | None = None
    author_name: str | None = None
    author_email: str | None = None
    web_url: str


class PipelineReference(Shape):
    id: int
    iid: int
    project_id: int
    sha: str
    ref: str
    status: str
    source: str
    created_at: Moment
    updated_at: Moment
    web_url: str


class Runner(Shape):
    id: int
    description: str | None
    ip_address: str | None = None
    active: bool
    paused: bool
    is_shared: bool
    runner_type: str
    name: str | None
    online: bool
    status: str


class Artifact(Shape):
    file_type: str
    size: int
    filename: str
    file_format: str


class TokenScope(Shape):
    ci_job_token_scope_enabled: bool


class BaseJob(Shape):
    id: int
    status: str
    stage: str
    name: str
    ref: str
    tag: bool
    coverage: float | None
    allow_failure: bool
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None
    erased_at: Moment | None
    duration: float | None
    queued_duration: float | None
    user: User | None
    commit: Commit
    pipeline: PipelineReference
    web_url: str
    project: TokenScope
    archived: bool = False


class Job(BaseJob):
    artifacts: list[Artifact]
    runner: Runner | None
    runner_manager: None = None
    artifacts_expire_at: Moment | None
    tag_list: list[str]
    source: str


class Bridge(BaseJob):
    downstream_pipeline: PipelineReference | None


class Event(Shape):
    id: int
    author_id: int
    entity_id: int
    entity_type: str
    details: dict[str, Any]
    created_at: Moment


class Check(Shape):
    id: int
    name: str
    project_id: int
    external_url: str
    hmac: bool = False
    protected_branches: list[Any] = []
    applies_to_all_branches: bool = True
    paused: bool = False
    paused_at: Moment | None
    pause_reason: str | None
    failing_since: Moment | None


class CheckOfMergeRequest(Shape):
    id: int
    name: str
    external_url: str
    status: str


class Mirror(Shape):
    id: int
    enabled: bool
    url: str
    update_status: str
    last_update_at: Moment | None
    last_update_started_at: Moment | None
    last_successful_update_at: Moment | None
    last_error: str | None
    only_protected_branches: bool
    keep_divergent_refs: bool
    auth_method: str
    host_keys: list[Any]
    mirror_branch_regex: str | None


class Invitation(Shape):
    id: int
    invite_email: str
    created_at: Moment
    access_level: int
    expires_at: datetime.date | None
    user_name: str | None = None
    created_by_name: str | None


class Namespace(Shape):
    id: int
    name: str
    path: str
    kind: str
    full_path: str
    parent_id: int | None
    avatar_url: str | None = None
    web_url: str


class Project(Shape):
    id: int
    description: str | None
    name: str
    name_with_namespace: str
    path: str
    path_with_namespace: str
    created_at: Moment
    default_branch: str | None
    tag_list: list[str] = []
    topics: list[str] = []
    ssh_url_to_repo: str
    http_url_to_repo: str
    web_url: str
    readme_url: str | None = None
    forks_count: int = 0
    avatar_url: str | None = None
    star_count: int = 0
    last_activity_at: Moment
    visibility: str
    namespace: Namespace


def user(row: Any) -> User | None:
    if row is None:
        return None
    return User(
        id=row.id,
        username=row.username,
        public_email=row.public_email,
        name=row.name,
        state=row.state,
        web_url=f"{BASE}/{row.username}",
        created_at=row.created_at,
        bio=row.bio or "",
        location=row.location or "",
        website_url=row.website_url or "",
        organization=row.organization or "",
        job_title=row.job_title or "",
        bot=row.bot,
    )


def pipeline(row: Any, path: str) -> PipelineReference | None:
    if row is None:
        return None
    return PipelineReference(
        id=row.id,
        iid=row.iid,
        project_id=row.project_id,
        sha=row.sha,
        ref=row.ref,
        status=row.status,
        source=row.source,
        created_at=row.created_at,
        updated_at=row.updated_at,
        web_url=f"{BASE}/{path}/-/pipelines/{row.id}",
    )


def _basic(row: Any) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC)
    path, ends = row.project.full_path, row.finished_at or now
    begun = row.started_at or ends
    return {
        "id": row.id,
        "status": row.status,
        "stage": row.stage,
        "name": row.name,
        "ref": row.pipeline.ref,
        "tag": row.pipeline.tag,
        "coverage": row.coverage,
        "allow_failure": row.allow_failure,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "erased_at": row.erased_at,
        "duration": (ends - row.started_at).total_seconds() if row.started_at else None,
        "queued_duration": (begun - row.queued_at).total_seconds() if row.queued_at else None,
        "user": user(row.user),
        "commit": Commit(**row.pipeline.commit, web_url=f"{BASE}/{path}/-/commit/{row.pipeline.sha}"),
        "pipeline": pipeline(row.pipeline, path),
        "web_url": f"{BASE}/{path}/-/jobs/{row.id}",
        "project": TokenScope(ci_job_token_scope_enabled=row.project.ci_inbound_job_token_scope_enabled),
    }


def job(row: Any) -> Job:
    return Job(
        **_basic(row),
        artifacts=[Artifact.of(artifact) for artifact in row.artifacts],
        runner=_runner(row.runner),
        artifacts_expire_at=row.artifacts_expire_at,
        tag_list=row.tag_list,
        source=row.pipeline.source,
    )


def bridge(row: Any) -> Bridge:
    return Bridge.of(row, **_basic(row), downstream_pipeline=pipeline(row.downstream, row.project.full_path))


def _runner(row: Any) -> Runner | None:
    if row is None:
        return None
    hour = datetime.timedelta(hours=1)
    online = row.contacted_at is not None and datetime.datetime.now(datetime.UTC) - row.contacted_at < hour
    return Runner.of(
        row,
        paused=not row.active,
        is_shared=row.runner_type == "instance_type",
        online=online,
        status="online" if online else "offline",
    )


def event(row: Any, author_email: str | None) -> Event:
    details = {
        **row.details,
        "event_name": row.event_type,
        "author_name": row.author_name,
        "author_email": author_email,
        "author_class": "User" if row.author_id > 0 else "UnauthenticatedAuthor",
        "target_id": row.target_id,
        "target_type": row.target_type,
        "target_details": row.target_details,
        "ip_address": row.ip_address,
        "entity_path": row.entity_path,
    }
    return Event.of(row, details=details)


def mirror(row: Any) -> Mirror:
    return Mirror.of(row, url=row.shown_url)


def invitation(row: Any) -> Invitation:
    created_by = row.created_by.name if row.created_by else None
    return Invitation.of(row, invite_email=row.email, created_by_name=created_by)


def project(row: Any) -> Project:
    owner = row.namespace
    return Project.of(
        row,
        name_with_namespace=f"{owner.full_name} / {row.name}",
        path_with_namespace=row.full_path,
        default_branch=None if row.empty_repo else row.default_branch,
        ssh_url_to_repo=f"ssh://git@127.0.0.1/{row.full_path}.git",
        http_url_to_repo=f"{BASE}/{row.full_path}.git",
        web_url=f"{BASE}/{row.full_path}",
        namespace=Namespace.of(owner, web_url=f"{BASE}/groups/{owner.full_path}"),
    )
