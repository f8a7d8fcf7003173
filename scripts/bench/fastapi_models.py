"""The tables as SQLAlchemy maps them, the answers as pydantic describes them (in the shapes of ours), and the way from
the one to the other."""

import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict
from sqlalchemy import JSON, BigInteger, DateTime, ForeignKey, Integer, Text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

Moment = datetime.datetime
BASE = "http://127.0.0.1:8080"


class Base(DeclarativeBase):
    type_annotation_map = {
        int: BigInteger,
        str: Text,
        Moment: DateTime(timezone=True),
        list[str]: ARRAY(Text),
    }
    id: Mapped[int] = mapped_column(primary_key=True)


class UserRow(Base):
    __tablename__ = "users"
    username: Mapped[str]
    name: Mapped[str]
    state: Mapped[str]
    bio: Mapped[str | None]
    location: Mapped[str | None]
    public_email: Mapped[str | None]
    website_url: Mapped[str | None]
    organization: Mapped[str | None]
    job_title: Mapped[str | None]
    bot: Mapped[bool]
    created_at: Mapped[Moment]


class NamespaceRow(Base):
    __tablename__ = "namespaces"
    kind: Mapped[str]
    name: Mapped[str]
    path: Mapped[str]
    full_path: Mapped[str]
    full_name: Mapped[str]
    parent_id: Mapped[int | None]


class ProjectRow(Base):
    __tablename__ = "projects"
    namespace_id: Mapped[int] = mapped_column(ForeignKey("namespaces.id"))
    name: Mapped[str]
    path: Mapped[str]
    full_path: Mapped[str]
    description: Mapped[str | None]
    visibility: Mapped[str]
    default_branch: Mapped[str]
    empty_repo: Mapped[bool]
    ci_inbound_job_token_scope_enabled: Mapped[bool]
    last_activity_at: Mapped[Moment]
    created_at: Mapped[Moment]
    namespace: Mapped[NamespaceRow] = relationship()


class PipelineRow(Base):
    __tablename__ = "pipelines"
    iid: Mapped[int]
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"))
    source_job_id: Mapped[int | None] = mapped_column(ForeignKey("jobs.id"))
    sha: Mapped[str]
    ref: Mapped[str]
    tag: Mapped[bool]
    status: Mapped[str]
    source: Mapped[str]
    commit: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[Moment]
    updated_at: Mapped[Moment]
    project: Mapped[ProjectRow] = relationship()


class RunnerRow(Base):
    __tablename__ = "runners"
    description: Mapped[str | None]
    name: Mapped[str | None]
    active: Mapped[bool]
    runner_type: Mapped[str]
    contacted_at: Mapped[Moment | None]


class ArtifactRow(Base):
    __tablename__ = "job_artifacts"
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"))
    file_type: Mapped[str]
    file_format: Mapped[str]
    filename: Mapped[str]
    size: Mapped[int]


class JobRow(Base):
    __tablename__ = "jobs"
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"))
    pipeline_id: Mapped[int] = mapped_column(ForeignKey("pipelines.id"))
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id"))
    runner_id: Mapped[int | None] = mapped_column(ForeignKey("runners.id"))
    kind: Mapped[str]
    status: Mapped[str]
    name: Mapped[str]
    stage: Mapped[str]
    coverage: Mapped[float | None]
    allow_failure: Mapped[bool]
    failure_reason: Mapped[str | None]
    tag_list: Mapped[list[str]]
    created_at: Mapped[Moment]
    queued_at: Mapped[Moment | None]
    started_at: Mapped[Moment | None]
    finished_at: Mapped[Moment | None]
    erased_at: Mapped[Moment | None]
    artifacts_expire_at: Mapped[Moment | None]
    pipeline: Mapped[PipelineRow] = relationship(foreign_keys=pipeline_id)
    project: Mapped[ProjectRow] = relationship()
    user: Mapped[UserRow | None] = relationship()
    runner: Mapped[RunnerRow | None] = relationship()
    artifacts: Mapped[list[ArtifactRow]] = relationship(order_by=ArtifactRow.id)
    downstream: Mapped[PipelineRow | None] = relationship(
        foreign_keys=PipelineRow.source_job_id, viewonly=True, uselist=False
    )


class EventRow(Base):
    __tablename__ = "audit_events"
    author_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    author_name: Mapped[str]
    entity_type: Mapped[str]
    entity_id: Mapped[int]
    entity_path: Mapped[str]
    event_type: Mapped[str]
    target_type: Mapped[str]
    target_id: Mapped[int | None]
    target_details: Mapped[str]
    ip_address: Mapped[str | None]
    details: Mapped[dict[str, Any]] = mapped_column(JSONB)
    created_at: Mapped[Moment]


class CheckRow(Base):
    __tablename__ = "external_status_checks"
    project_id: Mapped[int]
    name: Mapped[str]
    external_url: Mapped[str]
    paused_at: Mapped[Moment | None]
    pause_reason: Mapped[str | None]
    failing_since: Mapped[Moment | None]


class CheckResponseRow(Base):
    __tablename__ = "status_check_responses"
    check_id: Mapped[int]
    merge_request_id: Mapped[int]
    status: Mapped[str]


class MergeRequestRow(Base):
    __tablename__ = "merge_requests"
    project_id: Mapped[int]
    iid: Mapped[int] = mapped_column(Integer)


class MirrorRow(Base):
    __tablename__ = "remote_mirrors"
    project_id: Mapped[int]
    enabled: Mapped[bool]
    shown_url: Mapped[str]
    update_status: Mapped[str]
    last_update_at: Mapped[Moment | None]
    last_update_started_at: Mapped[Moment | None]
    last_successful_update_at: Mapped[Moment | None]
    last_error: Mapped[str | None]
    only_protected_branches: Mapped[bool]
    keep_divergent_refs: Mapped[bool]
    auth_method: Mapped[str]
    host_keys: Mapped[list[Any]] = mapped_column(JSONB)
    mirror_branch_regex: Mapped[str | None]


class InvitationRow(Base):
    __tablename__ = "invitations"
    project_id: Mapped[int | None]
    namespace_id: Mapped[int | None]
    email: Mapped[str]
    access_level: Mapped[int] = mapped_column(Integer)
    expires_at: Mapped[datetime.date | None]
    created_by_id: Mapped[int | None] = mapped_column(ForeignKey("users.id"))
    created_at: Mapped[Moment]
    created_by: Mapped[UserRow | None] = relationship()


class Shape(BaseModel):
    model_config = ConfigDict(from_attributes=True)


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
    bio: str = ""
    location: str = ""
    skype: str = ""
    linkedin: str = ""
    twitter: str = ""
    discord: str = ""
    website_url: str = ""
    organization: str = ""
    job_title: str = ""
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


def user(row: UserRow | None) -> User | None:
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


def pipeline(row: PipelineRow | None, path: str) -> PipelineReference | None:
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


def _basic(row: JobRow) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC)
    path, ends = row.project.full_path, row.finished_at or now
    start = row.started_at or ends
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
        "queued_duration": (start - row.queued_at).total_seconds() if row.queued_at else None,
        "user": user(row.user),
        "commit": Commit(**row.pipeline.commit, web_url=f"{BASE}/{path}/-/commit/{row.pipeline.sha}"),
        "pipeline": pipeline(row.pipeline, path),
        "web_url": f"{BASE}/{path}/-/jobs/{row.id}",
        "project": TokenScope(ci_job_token_scope_enabled=row.project.ci_inbound_job_token_scope_enabled),
    }


def job(row: JobRow) -> Job:
    return Job(
        **_basic(row),
        artifacts=[Artifact.model_validate(artifact) for artifact in row.artifacts],
        runner=_runner(row.runner),
        artifacts_expire_at=row.artifacts_expire_at,
        tag_list=row.tag_list,
        source=row.pipeline.source,
    )


def bridge(row: JobRow) -> Bridge:
    return Bridge(**_basic(row), downstream_pipeline=pipeline(row.downstream, row.project.full_path))


def _runner(row: RunnerRow | None) -> Runner | None:
    if row is None:
        return None
    hour = datetime.timedelta(hours=1)
    online = row.contacted_at is not None and datetime.datetime.now(datetime.UTC) - row.contacted_at < hour
    return Runner(
        id=row.id,
        description=row.description,
        active=row.active,
        paused=not row.active,
        is_shared=row.runner_type == "instance_type",
        runner_type=row.runner_type,
        name=row.name,
        online=online,
        status="online" if online else "offline",
    )


def event(row: EventRow, author_email: str | None) -> Event:
    return Event(
        id=row.id,
        author_id=row.author_id,
        entity_id=row.entity_id,
        entity_type=row.entity_type,
        details={
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
        },
        created_at=row.created_at,
    )


def mirror(row: MirrorRow) -> Mirror:
    names = Mirror.model_fields.keys() - {"url"}
    return Mirror(**{name: getattr(row, name) for name in names}, url=row.shown_url)


def invitation(row: InvitationRow) -> Invitation:
    return Invitation(
        id=row.id,
        invite_email=row.email,
        created_at=row.created_at,
        access_level=row.access_level,
        expires_at=row.expires_at,
        created_by_name=row.created_by.name if row.created_by else None,
    )


def project(row: ProjectRow) -> Project:
    owner = row.namespace
    return Project(
        id=row.id,
        description=row.description,
        name=row.name,
        name_with_namespace=f"{owner.full_name} / {row.name}",
        path=row.path,
        path_with_namespace=row.full_path,
        created_at=row.created_at,
        default_branch=None if row.empty_repo else row.default_branch,
        ssh_url_to_repo=f"ssh://git@127.0.0.1/{row.full_path}.git",
        http_url_to_repo=f"{BASE}/{row.full_path}.git",
        web_url=f"{BASE}/{row.full_path}",
        last_activity_at=row.last_activity_at,
        visibility=row.visibility,
        namespace=Namespace(
            id=owner.id,
            name=owner.name,
            path=owner.path,
            kind=owner.kind,
            full_path=owner.full_path,
            parent_id=owner.parent_id,
            web_url=f"{BASE}/groups/{owner.full_path}",
        ),
    )
