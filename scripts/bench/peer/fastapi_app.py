"""The same lists by FastAPI, SQLAlchemy and asyncpg: what most people would write."""

import datetime
import os
import secrets
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Response
from sqlalchemy import JSON, BigInteger, DateTime, ForeignKey, Integer, Select, Text, func, select
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, joinedload, mapped_column, relationship, selectinload

from scripts.bench.peer import answers, shapes

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


#: As far as ours counts.
MOST_COUNTED = 10_000

engine = create_async_engine(
    os.environ["BENCH_DATABASE_URL"].replace("postgresql://", "postgresql+asyncpg://", 1),
    pool_size=int(os.environ["BENCH_POOL"]),
    max_overflow=0,
)
sessions = async_sessionmaker(engine, expire_on_commit=False)


async def session() -> AsyncIterator[AsyncSession]:
    async with sessions() as opened:
        yield opened


def known(private_token: Annotated[str, Header()]) -> None:
    if not secrets.compare_digest(private_token, os.environ["BENCH_TOKEN"]):
        raise HTTPException(401)


Session = Annotated[AsyncSession, Depends(session)]
api = APIRouter(prefix="/api/v4", dependencies=[Depends(known)])


async def page(
    session: AsyncSession,
    rows: Select[*tuple[Any, ...]],
    response: Response,
    *,
    counted: bool = True,
    size: int = 20,
) -> list[Any]:
    """The rows of a page, and the headers that go with it."""
    found = (await session.execute(rows.limit(size + 1))).unique().all()
    response.headers["X-Per-Page"] = str(size)
    response.headers["X-Next-Page"] = "2" if len(found) > size else ""
    if counted:
        inner = rows.options().with_only_columns(rows.selected_columns[0]).order_by(None)
        total = select(func.count()).select_from(inner.limit(MOST_COUNTED + 1).subquery())
        response.headers["X-Total"] = str(await session.scalar(total))
    return [row[0] if len(row) == 1 else row for row in found[:size]]


async def the_project(session: AsyncSession, number: int) -> None:
    if await session.get(Project, number) is None:
        raise HTTPException(404)


BASIC = (joinedload(Job.pipeline), joinedload(Job.project), joinedload(Job.user))
WHOLE = (*BASIC, joinedload(Job.runner), selectinload(Job.artifacts))


def builds() -> Select[Any]:
    return select(Job).where(Job.kind == "build").order_by(Job.id.desc()).options(*WHOLE)


@api.get("/projects/{number}/jobs")
async def jobs(number: int, response: Response, session: Session, pagination: str = "") -> list[shapes.Job]:
    await the_project(session, number)
    rows = builds().where(Job.project_id == number)
    found = await page(session, rows, response, counted=pagination != "keyset")
    return [answers.job(row) for row in found]


@api.get("/projects/{number}/pipelines/{pipeline}/jobs")
async def pipeline_jobs(number: int, pipeline: int, response: Response, session: Session) -> list[shapes.Job]:
    await the_project(session, number)
    return [
        answers.job(row) for row in await page(session, builds().where(Job.pipeline_id == pipeline), response)
    ]


@api.get("/projects/{number}/pipelines/{pipeline}/bridges")
async def bridges(number: int, pipeline: int, response: Response, session: Session) -> list[shapes.Bridge]:
    await the_project(session, number)
    rows = select(Job).where(Job.pipeline_id == pipeline, Job.kind == "bridge").order_by(Job.id.desc())
    rows = rows.options(*BASIC, joinedload(Job.downstream).joinedload(Pipeline.project))
    return [answers.bridge(row) for row in await page(session, rows, response)]


@api.get("/projects/{number}/jobs/{job}")
async def job(number: int, job: int, session: Session) -> shapes.Job:
    await the_project(session, number)
    found = await session.scalar(builds().where(Job.project_id == number, Job.id == job))
    if found is None:
        raise HTTPException(404)
    return answers.job(found)


async def events(
    session: AsyncSession, response: Response, counted: bool, **wanted: object
) -> list[shapes.Event]:
    rows = select(Event, User.public_email).outerjoin(User, User.id == Event.author_id)
    rows = rows.filter_by(**wanted).order_by(Event.created_at.desc(), Event.id.desc())
    return [answers.event(*row) for row in await page(session, rows, response, counted=counted)]


@api.get("/audit_events")
async def all_events(response: Response, session: Session, pagination: str = "") -> list[shapes.Event]:
    return await events(session, response, pagination != "keyset")


@api.get("/{place}/{number}/audit_events")
async def events_of(
    place: str, number: int, response: Response, session: Session, pagination: str = ""
) -> list[shapes.Event]:
    kind = "Project" if place == "projects" else "Group"
    if place == "projects":
        await the_project(session, number)
    return await events(session, response, pagination != "keyset", entity_type=kind, entity_id=number)


@api.get("/projects/{number}/external_status_checks")
async def checks(number: int, response: Response, session: Session) -> list[shapes.Check]:
    await the_project(session, number)
    rows = select(Check).where(Check.project_id == number).order_by(Check.id)
    return [shapes.Check.model_validate(row) for row in await page(session, rows, response)]


@api.get("/projects/{number}/merge_requests/{iid}/status_checks")
async def checks_of(
    number: int, iid: int, response: Response, session: Session
) -> list[shapes.CheckOfMergeRequest]:
    await the_project(session, number)
    request = MergeRequest
    found = await session.scalar(select(request).where(request.project_id == number, request.iid == iid))
    if found is None:
        raise HTTPException(404)
    said = CheckResponse
    newest = select(said).where(said.merge_request_id == found.id).distinct(said.check_id)
    latest = newest.order_by(said.check_id, said.id.desc()).subquery()
    check = Check
    rows = (
        select(check, latest.c.status)
        .outerjoin(latest, latest.c.check_id == check.id)
        .where(check.project_id == number)
        .order_by(check.id)
    )
    return [
        shapes.CheckOfMergeRequest(
            id=row.id, name=row.name, external_url=row.external_url, status=status or "pending"
        )
        for row, status in await page(session, rows, response)
    ]


@api.get("/projects/{number}/remote_mirrors")
async def mirrors(number: int, response: Response, session: Session) -> list[shapes.Mirror]:
    await the_project(session, number)
    rows = select(Mirror).where(Mirror.project_id == number).order_by(Mirror.id)
    return [answers.mirror(row) for row in await page(session, rows, response)]


@api.get("/{place}/{number}/invitations")
async def invitations(
    place: str, number: int, response: Response, session: Session
) -> list[shapes.Invitation]:
    row = Invitation
    owner = row.project_id if place == "projects" else row.namespace_id
    if place == "projects":
        await the_project(session, number)
    rows = select(row).where(owner == number).order_by(row.id).options(joinedload(row.created_by))
    return [answers.invitation(row) for row in await page(session, rows, response)]


@api.get("/projects")
async def projects(response: Response, session: Session) -> list[shapes.Project]:
    rows = select(Project).order_by(Project.created_at.desc(), Project.id.desc())
    found = await page(session, rows.options(joinedload(Project.namespace)), response)
    return [answers.project(row) for row in found]


app = FastAPI()
app.include_router(api)
