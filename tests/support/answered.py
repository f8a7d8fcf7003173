"""A check of every answer of the API that a test receives against the answers that its route declares.

A server notes its answers (`note`). They are checked after each test, when no event loop waits for the check. A run of
the whole suite also reports routes that have never succeeded.
"""

import functools
import gzip
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import attrs
import jsonschema_rs
import orjson
import pytest
from aiohttp import web

from api_server.description.answers import Answer, answers, error_schema, with_components
from api_server.web.routes import Route
from tests.support.route_table import ROUTES, name_of

_PATTERN = re.compile(r"(?<=\w):[^}]*(?=})")
_BASE = "/api/v4"
_BY_ADDRESS = {(route.method, _BASE + _PATTERN.sub("", route.path)): route for route in ROUTES}

#: Routes that succeed in no test. The set may only shrink.
NEVER_ANSWERED: set[str] = set()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@attrs.frozen
class Noted:
    """An answer. `body` is None if the answer was streamed, or is not sent."""

    route: Route | None
    asked: str
    status: int
    content_type: str
    location: str | None
    body: bytes | None


_noted: list[Noted] = []
_succeeded: set[str] = set()


@web.middleware
async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
    response = await handler(request)
    if request.path.startswith(_BASE + "/") and request.method != "OPTIONS":
        resource = request.match_info.route.resource
        method = "GET" if request.method == "HEAD" else request.method
        body = response.body if isinstance(response, web.Response) and request.method != "HEAD" else None
        _noted.append(
            Noted(
                route=_BY_ADDRESS.get((method, resource.canonical)) if resource is not None else None,
                asked=f"{request.method} {request.path_qs}",
                status=response.status,
                content_type=response.content_type,
                location=response.headers.get("Location"),
                body=_unpacked(response, body) if isinstance(body, bytes) else None,
            )
        )
    return response


def _unpacked(response: web.StreamResponse, body: bytes) -> bytes:
    return gzip.decompress(body) if response.headers.get("Content-Encoding") == "gzip" else body


@pytest.fixture(autouse=True)
def every_answer_fits() -> Iterator[None]:
    """Fail a test if an answer differs from the answers that its route declares."""
    _noted.clear()  # answers after the end of the test before
    yield
    problems = list(dict.fromkeys(text for noted in _noted for text in misfits(noted)))
    _noted.clear()
    assert not problems, "\n".join(problems)


def misfits(noted: Noted) -> Iterator[str]:
    """Yield a line for each difference from what the route declares."""
    answer = _declared(noted)
    if isinstance(answer, str):
        yield f"{noted.asked}: {answer}"
        return
    if noted.route is not None and noted.status < 400:
        _succeeded.add(name_of(noted.route))
    if (form := answer.form) is None or noted.body is None:
        return
    expected = {"json": "application/json", "text": "text/plain"}.get(form, noted.content_type)
    if noted.content_type != expected:
        yield f"{noted.asked}: {noted.content_type} is not {expected}"
    elif answer.schema is not None:
        value = orjson.loads(noted.body)
        for error in _validator(orjson.dumps(answer.schema)).iter_errors(value):
            place = "/".join(map(str, error.instance_path))
            yield f"{noted.asked}: {noted.status}, /{place}: {error.message[:1000]} (see entities.toml)"


def _declared(noted: Noted) -> Answer | str:
    """Return the declared answer with that status, or a description of the mistake."""
    by_status = {answer.status: answer for answer in answers(noted.route)} if noted.route else {}
    if noted.status in by_status:
        return by_status[noted.status]
    # of the rate limit, which comes before GitLab's API
    if noted.status == 429 and noted.content_type == "text/plain":
        return Answer(status=429, form="text")
    if noted.status >= 400:
        return Answer(status=noted.status, form="json", schema=error_schema())
    if noted.status == 304 or (noted.status in (301, 302) and noted.location):
        return Answer(status=noted.status)
    if noted.status == 206 and any(answer.form in ("bytes", "text") for answer in by_status.values()):
        return Answer(status=206, form="bytes")
    return f"the route does not declare {noted.status}, but {sorted(by_status)}"


@functools.cache
def _validator(schema: bytes) -> Any:
    whole = with_components(orjson.loads(schema))
    return jsonschema_rs.Draft202012Validator(whole, validate_formats=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send a worker's successes to the process that has started it; that process judges them after a run of all
    tests."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["succeeded"] = sorted(_succeeded)
    elif _ran_everything(session) and (problem := _of_the_whole_suite()):
        session.config.get_terminal_writer().line(f"\n{problem}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _succeeded.update(getattr(node, "workeroutput", {}).get("succeeded", ()))


def _ran_everything(session: pytest.Session) -> bool:
    config = session.config
    asked = config.option
    chosen = asked.keyword or asked.markexpr or asked.collectonly or config.getoption("lf", default=False)
    return (
        config.args_source is config.ArgsSource.TESTPATHS
        and asked.all
        and not chosen
        and session.exitstatus == pytest.ExitCode.OK
    )


def _of_the_whole_suite() -> str | None:
    never = {name_of(route) for route in ROUTES} - _succeeded
    if new := never - NEVER_ANSWERED:
        return f"No test sees these succeed: {', '.join(sorted(new))}"
    if gone := NEVER_ANSWERED - never:
        return f"NEVER_ANSWERED of tests/support/answered.py need not name: {', '.join(sorted(gone))}"
    return None
