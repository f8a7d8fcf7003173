"""Our tables as SQLAlchemy maps them: the columns that the peer's lists show."""

import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, ForeignKey, Integer, Text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

Moment = datetime.datetime


class Base(DeclarativeBase):
    type_annotation_map = {
        int: BigInteger,
        str: Text,
        Moment: DateTime(timezone=True),
        list[str]: ARRAY(Text),
    }


class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
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


class Namespace(Base):
    __tablename__ = "namespaces"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    name: Mapped[str]
    path: Mapped[str]
    full_path: Mapped[str]
    full_name: Mapped[str]
    parent_id: Mapped[int | None]


class Project(Base):
    __tablename__ = "projects"
    id: Mapped[int] = mapped_column(primary_key=True)
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
    namespace: Mapped[Namespace] = relationship()


class Pipeline(Base):
    __tablename__ = "pipelines"
    id: Mapped[int] = mapped_column(primary_key=True)
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
    project: Mapped[Project] = relationship()


class Runner(Base):
    __tablename__ = "runners"
    id: Mapped[int] = mapped_column(primary_key=True)
    description: Mapped[str | None]
    name: Mapped[str | None]
    active: Mapped[bool]
    runner_type: Mapped[str]
    contacted_at: Mapped[Moment | None]


class Artifact(Base):
    __tablename__ = "job_artifacts"
    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"))
    file_type: Mapped[str]
    file_format: Mapped[str]
    filename: Mapped[str]
    size: Mapped[int]


class Job(Base):
    __tablename__ = "jobs"
    id: Mapped[int] = mapped_column(primary_key=True)
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
    pipeline: Mapped[Pipeline] = relationship(foreign_keys=pipeline_id)
    project: Mapped[Project] = relationship()
    user: Mapped[User | None] = relationship()
    runner: Mapped[Runner | None] = relationship()
    artifacts: Mapped[list[Artifact]] = relationship(order_by=Artifact.id)
    downstream: Mapped[Pipeline | None] = relationship(
        foreign_keys=Pipeline.source_job_id, viewonly=True, uselist=False
    )


class Event(Base):
    __tablename__ = "audit_events"
    id: Mapped[int] = mapped_column(primary_key=True)
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


class Check(Base):
    __tablename__ = "external_status_checks"
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int]
    name: Mapped[str]
    external_url: Mapped[str]
    paused_at: Mapped[Moment | None]
    pause_reason: Mapped[str | None]
    failing_since: Mapped[Moment | None]


class CheckResponse(Base):
    __tablename__ = "status_check_responses"
    id: Mapped[int] = mapped_column(primary_key=True)
    check_id: Mapped[int]
    merge_request_id: Mapped[int]
    status: Mapped[str]


class MergeRequest(Base):
    __tablename__ = "merge_requests"
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int]
    iid: Mapped[int] = mapped_column(Integer)


class Mirror(Base):
    __tablename__ = "remote_mirrors"
    id: Mapped[int] = mapped_column(primary_key=True)
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


class Invitation(Base):
    __tablename__ = "invitations"
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int | None]
    namespace_id: Mapped[int | None]
    email: Mapped[str]
    access_level: Mapped[int] = mapped_column(Integer)
    expires_at: Mapped[datetime.date | None]
    created_by_id: Mapped[int | None] = mapped_column(ForeignKey("users.id"))
    created_at: Mapped[Moment]
    created_by: Mapped[User | None] = relationship()
