"""Errors as pages: refusals by the API's rules, and missing pages."""

import asyncio
from collections.abc import Mapping
from urllib.parse import quote

from aiohttp import web
from aiohttp.typedefs import Handler

from api_server.pages import forms, page, sessions
from api_server.pages.forms import RefusedForm
from api_server.pages.sessions import Form
from api_server.state.errors import LockNotAvailable, NotFound, TooLong, Unavailable
from api_server.web import context
from api_server.web.errors import (
    ApiError,
    BodyRefused,
    log_unexpected,
    reason_of,
    record_not_found,
    retry_later_headers,
)
from common.concurrency import ShareTaken, TooBusy
from common.connections import BodyTooSlow

#: Titles and texts by status. The reason that a rule gives replaces the text.
_TEXTS: Mapping[int, tuple[str, str]] = {
    400: (
        "Bad request",
        "A value in the URL or in the form is invalid.",
    ),
    403: (
        "Access denied",
        "Your role does not allow this, or the feature is disabled. Ask a maintainer or an owner for access.",
    ),
    404: ("Page not found", "The page may have been deleted or moved, or you do not have access to it."),
    405: ("No entries on this page", "The list has fewer pages."),
    408: ("Request timeout", "Go back and submit the form again."),
    409: (
        "Conflict",
        "Someone else made a change at the same time. Go back, refresh the page and try again.",
    ),
    413: ("Request too large", "Submit less data, or use Git."),
    422: ("Changes not saved", "A value is invalid."),
    429: ("Too many requests", "Wait a minute and try again."),
    500: (
        "Something went wrong on our end",
        "The error has been logged for the operator.",
    ),
    503: ("Service unavailable", "The service is busy or starting. Try again in a few seconds."),
}


class SignInFirst(Exception):
    """An anonymous visitor asked for a page that needs, or may need, a signed-in user."""


def as_pages(handler: Handler) -> Handler:
    """Wrap a handler so that its errors are answered with pages."""

    async def handle(request: web.Request) -> web.StreamResponse:
        await context.services(request)[page.TEMPLATES].compiled()
        try:
            return await handler(request)
        except (asyncio.CancelledError, ConnectionResetError):
            raise
        except web.HTTPException as problem:
            if problem.status < 400:
                raise
            return _page(request, problem.status)
        except Exception as problem:
            if request.writer.output_size:
                raise ConnectionResetError from problem
            return _answer_to(problem, request)

    return handle


def answer(request: web.Request, status: int, reason: str = "") -> web.Response:
    """Return the page of that status."""
    return _page(request, status, reason)


def _answer_to(problem: Exception, request: web.Request) -> web.Response:
    if isinstance(problem, SignInFirst):
        return sign_in_first(request)
    status, text, headers = refusal_of(problem, request)
    return _page(request, status, text, headers)


def refusal_of(problem: Exception, request: web.Request) -> tuple[int, str, Mapping[str, str]]:
    """Return the status of an error, a sentence or "", and headers. Log unexpected errors."""
    match problem:
        case ApiError():
            return problem.status, reason_of(problem), problem.headers
        case NotFound():
            return record_not_found().status, "", {}
        case TooLong():
            return 400, "", {}
        case BodyRefused():
            return problem.status, str(problem), problem.headers
        case BodyTooSlow():
            return 408, "", {}
        case ShareTaken():
            return 429, "", {"Retry-After": "5"}
        case LockNotAvailable():
            return 409, "", {}
        case Unavailable() | TooBusy():
            return 503, "", retry_later_headers(problem)
        case _:
            log_unexpected(problem, request)
            return 500, "", {}


def refuse_form(request: web.Request, form: Form, problem: Exception) -> Mapping[str, str]:
    """Have the request's page show `form` again with its problems. Return further headers for the answer."""
    status, text, headers = refusal_of(problem, request)
    problems = forms.problems_of(problem) if isinstance(problem, ApiError) else {}
    if not problems:
        title, usual = _texts(status)
        problems = {"": [text or f"{title}. {usual}"]}
    request[forms.REFUSED] = RefusedForm(request.path, form, problems, status)
    return headers


def sign_in_first(request: web.Request) -> web.Response:
    """Redirect an anonymous visitor to sign in and then back. If she sent a form, show its content first."""
    if page.has_written(request):
        return page.refused_form(request, sessions.anonymous_visitor(request), "Your session has expired.")
    location = f"/-/sign_in?return_to={quote(page.address(request), safe='/')}"
    return web.Response(status=303, headers={"Location": location, "Cache-Control": "no-store"})


def _page(
    request: web.Request, status: int, text: str = "", headers: Mapping[str, str] | None = None
) -> web.Response:
    title, usual = _texts(status)
    response = page.message(request, sessions.anonymous_visitor(request), title, text or usual, status)
    response.headers.update(headers or {})
    return response


def _texts(status: int) -> tuple[str, str]:
    return _TEXTS.get(status, _TEXTS[500 if status >= 500 else 400])
