"""The same lists by FastAPI, SQLAlchemy and asyncpg: what most people would write."""

import os
import secrets
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Response
from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import joinedload, selectinload

from scripts.bench import fastapi_models
from scripts.bench.fastapi_models import (
    CheckResponseRow,
    CheckRow,
    EventRow,
    InvitationRow,
    JobRow,
    MergeRequestRow,
    MirrorRow,
    PipelineRow,
    ProjectRow,
    UserRow,
)

#: As far as ours counts.
MOST_COUNTED = 10_000

engine = create_async_engine(
    os.environ["BENCH_DATABASE_URL"].replace("postgresql://", "postgresql+asyncpg://", 1),
    pool_size=int(os.environ["BENCH_POOL"]),
    max_overflow=0,
)
sessions = async_sessionmaker(engine, expire_on_commit=False)


async def session() -> AsyncIterator[AsyncSession]:
    async with sessions() as open_session:
        yield open_session


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
    """Return the rows of a page; set the headers that go with it."""
    rows_read = (await session.execute(rows.limit(size + 1))).unique().all()
    response.headers["X-Per-Page"] = str(size)
    response.headers["X-Next-Page"] = "2" if len(rows_read) > size else ""
    if counted:
        inner = rows.options().with_only_columns(rows.selected_columns[0]).order_by(None)
        total = select(func.count()).select_from(inner.limit(MOST_COUNTED + 1).subquery())
        response.headers["X-Total"] = str(await session.scalar(total))
    return [row[0] if len(row) == 1 else row for row in rows_read[:size]]


async def the_project(session: AsyncSession, number: int) -> None:
    if await session.get(ProjectRow, number) is None:
        raise HTTPException(404)


BASIC = (joinedload(JobRow.pipeline), joinedload(JobRow.project), joinedload(JobRow.user))
WHOLE = (*BASIC, joinedload(JobRow.runner), selectinload(JobRow.artifacts))


def builds() -> Select[Any]:
    return select(JobRow).where(JobRow.kind == "build").order_by(JobRow.id.desc()).options(*WHOLE)


@api.get("/projects/{number}/jobs")
async def jobs(
    number: int, response: Response, session: Session, pagination: str = ""
) -> list[fastapi_models.Job]:
    await the_project(session, number)
    rows = builds().where(JobRow.project_id == number)
    page_rows = await page(session, rows, response, counted=pagination != "keyset")
    return [fastapi_models.job(row) for row in page_rows]


@api.get("/projects/{number}/pipelines/{pipeline}/jobs")
async def pipeline_jobs(
    number: int, pipeline: int, response: Response, session: Session
) -> list[fastapi_models.Job]:
    await the_project(session, number)
    return [
        fastapi_models.job(row)
        for row in await page(session, builds().where(JobRow.pipeline_id == pipeline), response)
    ]


@api.get("/projects/{number}/pipelines/{pipeline}/bridges")
async def bridges(
    number: int, pipeline: int, response: Response, session: Session
) -> list[fastapi_models.Bridge]:
    await the_project(session, number)
    rows = (
        select(JobRow)
        .where(JobRow.pipeline_id == pipeline, JobRow.kind == "bridge")
        .order_by(JobRow.id.desc())
    )
    rows = rows.options(*BASIC, joinedload(JobRow.downstream).joinedload(PipelineRow.project))
    return [fastapi_models.bridge(row) for row in await page(session, rows, response)]


@api.get("/projects/{number}/jobs/{job}")
async def job(number: int, job: int, session: Session) -> fastapi_models.Job:
    await the_project(session, number)
    row = await session.scalar(builds().where(JobRow.project_id == number, JobRow.id == job))
    if row is None:
        raise HTTPException(404)
    return fastapi_models.job(row)


async def events(
    session: AsyncSession, response: Response, counted: bool, **wanted: object
) -> list[fastapi_models.Event]:
    rows = select(EventRow, UserRow.public_email).outerjoin(UserRow, UserRow.id == EventRow.author_id)
    rows = rows.filter_by(**wanted).order_by(EventRow.created_at.desc(), EventRow.id.desc())
    return [fastapi_models.event(*row) for row in await page(session, rows, response, counted=counted)]


@api.get("/audit_events")
async def all_events(
    response: Response, session: Session, pagination: str = ""
) -> list[fastapi_models.Event]:
    return await events(session, response, pagination != "keyset")


@api.get("/{place}/{number}/audit_events")
async def events_of(
    place: str, number: int, response: Response, session: Session, pagination: str = ""
) -> list[fastapi_models.Event]:
    kind = "Project" if place == "projects" else "Group"
    if place == "projects":
        await the_project(session, number)
    return await events(session, response, pagination != "keyset", entity_type=kind, entity_id=number)


@api.get("/projects/{number}/external_status_checks")
async def checks(number: int, response: Response, session: Session) -> list[fastapi_models.Check]:
    await the_project(session, number)
    rows = select(CheckRow).where(CheckRow.project_id == number).order_by(CheckRow.id)
    return [fastapi_models.Check.model_validate(row) for row in await page(session, rows, response)]


@api.get("/projects/{number}/merge_requests/{iid}/status_checks")
async def checks_of(
    number: int, iid: int, response: Response, session: Session
) -> list[fastapi_models.CheckOfMergeRequest]:
    await the_project(session, number)
    request = MergeRequestRow
    found = await session.scalar(select(request).where(request.project_id == number, request.iid == iid))
    if found is None:
        raise HTTPException(404)
    said = CheckResponseRow
    newest = select(said).where(said.merge_request_id == found.id).distinct(said.check_id)
    latest = newest.order_by(said.check_id, said.id.desc()).subquery()
    check = CheckRow
    rows = (
        select(check, latest.c.status)
        .outerjoin(latest, latest.c.check_id == check.id)
        .where(check.project_id == number)
        .order_by(check.id)
    )
    return [
        fastapi_models.CheckOfMergeRequest(
            id=row.id, name=row.name, external_url=row.external_url, status=status or "pending"
        )
        for row, status in await page(session, rows, response)
    ]


@api.get("/projects/{number}/remote_mirrors")
async def mirrors(number: int, response: Response, session: Session) -> list[fastapi_models.Mirror]:
    await the_project(session, number)
    rows = select(MirrorRow).where(MirrorRow.project_id == number).order_by(MirrorRow.id)
    return [fastapi_models.mirror(row) for row in await page(session, rows, response)]


@api.get("/{place}/{number}/invitations")
async def invitations(
    place: str, number: int, response: Response, session: Session
) -> list[fastapi_models.Invitation]:
    row = InvitationRow
    owner = row.project_id if place == "projects" else row.namespace_id
    if place == "projects":
        await the_project(session, number)
    rows = select(row).where(owner == number).order_by(row.id).options(joinedload(row.created_by))
    return [fastapi_models.invitation(row) for row in await page(session, rows, response)]


@api.get("/projects")
async def projects(response: Response, session: Session) -> list[fastapi_models.Project]:
    rows = select(ProjectRow).order_by(ProjectRow.created_at.desc(), ProjectRow.id.desc())
    found = await page(session, rows.options(joinedload(ProjectRow.namespace)), response)
    return [fastapi_models.project(row) for row in found]


app = FastAPI()
app.include_router(api)
