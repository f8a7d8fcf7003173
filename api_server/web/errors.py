"""The error bodies of the API, and the middleware that converts exceptions to them (decision D2)."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from api_server.state.errors import LockNotAvailable, NotFound, TooLong, Unavailable
from api_server.web.rate_limits import TooOften
from common.concurrency import ShareTaken, TooBusy
from common.connections import BodyTooSlow
from common.logs import ThrottledLog

#: GitLab's reason phrases, which are those of RFC 2616.
REASONS: Mapping[int, str] = {
    400: "Bad Request",
    401: "Unauthorized",
    402: "Payment Required",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    406: "Not Acceptable",
    407: "Proxy Authentication Required",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    411: "Length Required",
    412: "Precondition Failed",
    413: "Request Entity Too Large",
    414: "Request-URI Too Long",
    415: "Unsupported Media Type",
    416: "Requested Range Not Satisfiable",
    417: "Expectation Failed",
    421: "Misdirected Request",
    422: "Unprocessable Entity",
    424: "Failed Dependency",
    426: "Upgrade Required",
    428: "Precondition Required",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    451: "Unavailable For Legal Reasons",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
    506: "Variant Also Negotiates",
    507: "Insufficient Storage",
    510: "Not Extended",
    511: "Network Authentication Required",
}


def reword(response: web.StreamResponse) -> None:
    """Replace aiohttp's reason phrase and text by ours, unless a handler has chosen its own."""
    reason = REASONS.get(response.status)
    if reason is None or response.prepared:
        return
    usual = web.Response(status=response.status).reason
    if isinstance(response, web.Response) and response.text == f"{response.status}: {usual}":
        response.text = f"{response.status}: {reason}"
    if response.reason == usual:
        response.set_status(response.status, reason)


log = structlog.get_logger(__name__)
often = ThrottledLog(log)

#: Seconds after which a retry makes sense; GitLab's clients honour the header.
_SOON = 5
_RETRY_LATER = {"Retry-After": str(_SOON)}
#: Maximum characters of one text of an error.
MAX_TEXT = 2000


class ApiError(Exception):
    """An error answer: `status` and the JSON `body`, with extra `headers`."""

    def __init__(
        self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, body)
        self.status = status
        #: Texts that quote what was sent are shortened.
        self.body: Mapping[str, Any] = _truncated(body)
        self.headers = headers or {}


def _truncated(part: Any) -> Any:
    if isinstance(part, str):
        return part if len(part) <= MAX_TEXT else f"{part[:MAX_TEXT]}…"
    if isinstance(part, Mapping):
        return {_truncated(name): _truncated(inner) for name, inner in part.items()}
    return list(map(_truncated, part)) if isinstance(part, list) else part


class BodyRefused(Exception):
    """The body of a request is refused with `status` and a sentence, in the API as `{"error": ...}`."""

    def __init__(self, status: int, sentence: str, *, retry: bool = False) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = _RETRY_LATER if retry else {}


def bad_parameters(*texts: str) -> ApiError:
    """Return 400 for parameters that cannot be read: `{"error": "scope does not have a valid value,
    ..."}`."""
    return ApiError(400, {"error": ", ".join(texts)})


def invalid(message: Mapping[str, list[str]] | list[str] | str, status: int = 400) -> ApiError:
    """Return 400 (or 422) for a resource that cannot be saved: `{"message": {"field": ["text"]}}`."""
    return ApiError(status, {"message": message})


def check_present(field: str, value: str | None) -> None:
    """Raise 400 for a blank text; None means that it was not sent."""
    if value is not None and not value.strip():
        raise invalid({field: ["can't be blank"]})


def bad_request(reason: str) -> ApiError:
    return ApiError(400, {"message": f"400 Bad request - {reason}"})


def unauthorized() -> ApiError:
    return ApiError(401, {"message": "401 Unauthorized"})


def forbidden(reason: str | None = None) -> ApiError:
    return ApiError(403, {"message": f"403 Forbidden - {reason}" if reason else "403 Forbidden"})


def insufficient_scope(scopes: str) -> ApiError:
    """Return 403 for a token without a sufficient scope; `scopes` lists those that would suffice, separated
    by spaces."""
    return ApiError(
        403,
        {
            "error": "insufficient_scope",
            "error_description": "The request requires higher privileges than provided by the access token.",
            "scope": scopes,
        },
    )


def invalid_token(description: str) -> ApiError:
    """Return 401 for a token that was valid once."""
    challenge = f'Bearer realm="The API", error="invalid_token", error_description="{description}"'
    return ApiError(
        401, {"error": "invalid_token", "error_description": description}, {"WWW-Authenticate": challenge}
    )


def not_found(subject: str) -> ApiError:
    """Return 404 for a named thing: `404 Project Not Found`."""
    return ApiError(404, {"message": f"404 {subject} Not Found"})


def record_not_found() -> ApiError:
    """Return 404 for a record within a project or group, in GitLab's lower-case form."""
    return ApiError(404, {"message": "404 Not found"})


def conflict(text: str | list[str] = "409 Conflict") -> ApiError:
    return ApiError(409, {"message": text})


def too_many_requests(retry_after: int) -> ApiError:
    """Return 429; `retry_after` is in seconds."""
    text = "This endpoint has been requested too many times. Try again later."
    return ApiError(429, {"message": {"error": text}}, {"Retry-After": str(retry_after)})


@web.middleware
async def api_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Convert exceptions of a handler: `ApiError` to its own answer, the router's refusals to the API's form,
    any other exception to 500 with the traceback only in the log.

    If part of the answer has been sent, an error can only be signalled by closing the connection.
    """
    try:
        return await handler(request)
    except (asyncio.CancelledError, ConnectionResetError):
        raise
    except Exception as problem:
        answer = _answer_to(problem, request)
        if request.writer.output_size:
            raise ConnectionResetError from problem
        return answer


@web.middleware
async def plain_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors outside of the API (git, static objects, pages) in plain text: 503 if a part is
    unavailable, 500 for unexpected errors. Every answer gets our reason phrase."""
    try:
        answer = await handler(request)
    except web.HTTPException as refusal:
        reword(refusal)
        raise
    except (asyncio.CancelledError, ConnectionResetError):
        raise
    except Exception as problem:
        answer = _plain_answer_to(problem, request)
        if request.writer.output_size:
            raise ConnectionResetError from problem
    reword(answer)
    return answer


def _answer_to(problem: Exception, request: web.Request) -> web.StreamResponse:
    match problem:
        case ApiError():
            return _answer(problem.status, problem.body, problem.headers)
        case web.HTTPException():
            return _answer_http_exception(problem)
        case TooOften():
            return web.Response(status=429, text="Retry later\n", headers=problem.headers)
        case BodyRefused():
            return _answer(problem.status, {"error": str(problem)}, problem.headers)
        case BodyTooSlow():
            return _answer(408, {"error": str(problem)}, {})
        case NotFound() | TooLong() | ShareTaken():
            return _answer_to(_api_error_of(problem), request)
        case LockNotAvailable():
            reason = "Conflict: Resource lock"
            return _answer(409, {"message": f"409 {reason}"}, {}, reason=reason)
        case Unavailable() | TooBusy():
            return _answer(503, {"message": "503 Service Unavailable"}, retry_later_headers(problem))
        case _:
            log_unexpected(problem, request)
            return _answer(500, {"message": "500 Internal Server Error"}, {})


def _api_error_of(problem: NotFound | TooLong | ShareTaken) -> ApiError:
    match problem:
        case NotFound():
            return record_not_found()
        case TooLong():
            return bad_request("A path or a name is too long")
        case ShareTaken():
            return too_many_requests(_SOON)


def _plain_answer_to(problem: Exception, request: web.Request) -> web.Response:
    match problem:
        case BodyRefused():
            return web.Response(status=problem.status, text=f"{problem}\n", headers=problem.headers)
        case BodyTooSlow():
            return web.Response(status=408, text=f"{problem}\n")
        case ShareTaken():
            text = "Too many of your requests are under way at once. Try again later.\n"
            return web.Response(status=429, text=text, headers=_RETRY_LATER)
        case Unavailable() | TooBusy():
            return web.Response(status=503, text=f"503: {REASONS[503]}", headers=retry_later_headers(problem))
        case _:
            log_unexpected(problem, request)
            return web.Response(status=500, text=f"500: {REASONS[500]}")


def retry_later_headers(problem: Unavailable | TooBusy) -> dict[str, str]:
    """Return the headers of a 503. Log an unavailable part in one line, without a traceback and at most once
    a second: it is not a fault of this program. Overload is not logged: the answer's status shows it."""
    if isinstance(problem, Unavailable):
        log_unavailable(problem)
    return dict(_RETRY_LATER)


def log_unavailable(problem: Unavailable, event: str = "", **fields: Any) -> None:
    """Log that a part is unavailable, or which `event` failed because of it, at most once a second."""
    often.error(event or str(problem), about=str(problem), cause=problem.cause, **fields)


def log_unexpected(problem: Exception, request: web.Request) -> None:
    """Log an unexpected error, unless the client left while receiving its answer, for which aiohttp raises a
    bare ConnectionError."""
    if isinstance(problem, ConnectionError) and request.transport is None:
        return
    log.error("unexpected failure", method=request.method, path=request.path, exc_info=problem)


def _answer_http_exception(error: web.HTTPException) -> web.StreamResponse:
    error.__traceback__ = None  # its frames hold the request, and aiohttp's router caches the exception
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return _answer(405, {"error": "405 Not Allowed"}, {"Allow": allowed})
    if error.status < 400:  # a redirect, which aiohttp wants raised instead of returned
        location = {"Location": error.headers["Location"]}
        return web.Response(status=error.status, text=error.text, headers=location)
    headers = {name: error.headers[name] for name in ("Content-Range",) if name in error.headers}
    return _answer(error.status, {"error": f"{error.status} {REASONS[error.status]}"}, headers)


def _answer(
    status: int, body: Mapping[str, Any], headers: Mapping[str, str], reason: str | None = None
) -> web.Response:
    return web.Response(
        status=status,
        reason=reason,
        body=orjson.dumps(body),
        content_type="application/json",
        headers=headers,
    )


def reason_of(problem: ApiError) -> str:
    """Return the sentence of an error, or "" if it says no more than its status: `{"message": {"name": ["is
    too long"]}}` becomes `Name is too long.`"""
    message = problem.body.get("message", problem.body.get("error", ""))
    text = " ".join(sentences(message))
    return (
        ""
        if text.startswith(f"{problem.status} ") and " - " not in text
        else text.partition(" - ")[2] or text
    )


def sentences(message: Any, field: str = "") -> list[str]:
    """Return the messages in an error's body as sentences; a text that is not a sentence is put behind the
    name of its `field`."""
    if isinstance(message, Mapping):
        return [text for name, inner in message.items() for text in sentences(inner, str(name))]
    if isinstance(message, list):
        return [text for inner in message for text in sentences(inner, field)]
    text = str(message).strip()
    if field not in ("", "base", "error") and not text[:1].isupper():
        text = f"{field.replace('_', ' ')} {text}".strip()
    return [f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}"] if text else []
