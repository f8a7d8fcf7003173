"""What the buttons on the page of a job do, as the API does it."""

import attrs
import orjson
from aiohttp import web

from api_server.ci.jobs import artifact_handlers, handlers
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.ci.jobs import OneJob, job_page
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.web.errors import ApiError, reason_of
from api_server.web.routes import Role, ask

pages = Pages()

DEVELOPER = project(Role.DEVELOPER, opens="builds")


@attrs.frozen(kw_only=True)
class CancelJob(OneJob):
    force: bool = False


@attrs.frozen(kw_only=True)
class PlayJob(OneJob):
    #: `NAME=value`, one in each line.
    variables: str = ""


@pages.post("/{project}/-/jobs/{id}/cancel", access=DEVELOPER)
async def cancel(request: web.Request, who: Visitor, wanted: CancelJob, found: Project) -> web.Response:
    await ask(request, handlers.cancel_job, id=str(found.id), job_id=wanted.id, force=wanted.force)
    return _to(request, who, found, wanted.id, "The job is canceled, as soon as its runner hears of it.")


@pages.post("/{project}/-/jobs/{id}/retry", access=DEVELOPER)
async def retry(request: web.Request, who: Visitor, wanted: OneJob, found: Project) -> web.Response:
    answer = await ask(request, handlers.retry_job, id=str(found.id), job_id=wanted.id)
    return _to(request, who, found, _id(answer), "This is the new attempt.")


@pages.post("/{project}/-/jobs/{id}/erase", access=DEVELOPER)
async def erase(request: web.Request, who: Visitor, wanted: OneJob, found: Project) -> web.Response:
    await ask(request, handlers.erase_job, id=str(found.id), job_id=wanted.id)
    return _to(request, who, found, wanted.id, "The log and the artifacts are erased.")


@pages.post("/{project}/-/jobs/{id}/artifacts/keep", access=DEVELOPER)
async def keep(request: web.Request, who: Visitor, wanted: OneJob, found: Project) -> web.Response:
    await ask(request, artifact_handlers.keep, id=str(found.id), job_id=wanted.id)
    return _to(request, who, found, wanted.id, "The artifacts do not expire any more.")


@pages.post("/{project}/-/jobs/{id}/play", access=DEVELOPER)
async def play(request: web.Request, who: Visitor, wanted: PlayJob, found: Project) -> web.Response:
    """What stood in the form stays there where it is refused."""
    try:
        given = _variables(wanted.variables)
        answer = await ask(
            request, handlers.play_job, id=str(found.id), job_id=wanted.id, job_variables_attributes=given
        )
    except (ApiError, ValueError) as problem:
        told = reason_of(problem) if isinstance(problem, ApiError) else str(problem)
        return await job_page(
            request,
            who,
            found,
            wanted.id,
            problem=told or "You may not start this job.",
            variables=wanted.variables,
            status=problem.status if isinstance(problem, ApiError) else 400,
        )
    return _to(request, who, found, _id(answer), "The job is started.")


def _variables(text: str) -> list[dict[str, str]]:
    """Raises ValueError with a sentence for a line that gives none."""
    given = []
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, value = line.partition("=")
        if not line.strip():
            continue
        if not equals or not name.strip():
            raise ValueError(f"Line {number} of the variables is not NAME=value.")
        given.append({"key": name.strip(), "value": value})
    return given


def _id(answer: web.StreamResponse) -> int:
    """Of the job that the API has answered."""
    assert isinstance(answer, web.Response)  # noqa: S101  # a handler of JSON
    return int(orjson.loads(answer.text or "")["id"])


def _to(request: web.Request, who: Visitor, found: Project, job_id: int, text: str) -> web.Response:
    return page.see_other(request, who, f"/{found.full_path}/-/jobs/{job_id}", text)
