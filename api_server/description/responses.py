"""What an operation answers: its successes, and the refusals that it can come to by its declarations."""

from collections.abc import Iterator

from api_server.description.names import is_list
from api_server.description.parameters import fields_of
from api_server.description.schemas.answers import Answer, answers
from api_server.description.values import Schema
from api_server.web.errors import REASONS
from api_server.web.pagination import Paginated
from api_server.web.routes import Place, Route

_SUCCESSES = {
    200: "Done.",
    201: "Made.",
    202: "Accepted: it will be done.",
    204: "Done; there is no body.",
    206: "The part that `Range` asked for.",
    301: "The project or group is elsewhere now, by its id.",
    302: "It is elsewhere.",
    304: "What the client has, by its `If-None-Match`, is what there is.",
}
_REFUSALS = {
    400: "A parameter is missing or does not fit (`error`), or what it says cannot be saved (`message`).",
    401: "Without credentials, or with some that are not valid.",
    403: "The caller's role, scopes or the service's tier do not reach, or the state of things forbids it.",
    404: "It does not exist, or the caller cannot see it.",
    405: "Not of this: the list's order, the state of things, or an old path of the project.",
    409: "Something else has it, or changes it right now.",
    412: "It was changed after `If-Unmodified-Since`, or the client has to do something else first.",
    413: "The body is too large.",
    416: "What `Range` asks for is beyond the end.",
    422: "What was asked for makes no sense as things are.",
    # not as a second content: generated clients would have every error be a text or an object
    429: "Too many requests; `Retry-After` says when to come again. From the limits of all requests it is plain text.",
    503: "Too busy, or a part of the service is away; `Retry-After` says when to come again.",
}
_MEDIA_TYPES = {"text": "text/plain", "bytes": "application/octet-stream"}
_PAGES = ("Link", "X-Next-Page", "X-Page", "X-Per-Page", "X-Prev-Page", "X-Total", "X-Total-Pages")

#: Headers of answers, by name: what they say.
_HEADERS = {
    "ETag": "Names this answer: `If-None-Match` with it gets 304 while nothing has changed.",
    "Link": "`next`, `prev`, `first` and `last` page, as far as there are such; keyset pagination has `next` only.",
    "X-Next-Page": "Number of the next page; empty on the last. None of these with keyset pagination.",
    "X-Page": "Number of this page.",
    "X-Per-Page": "Most items of a page.",
    "X-Prev-Page": "Number of the page before; empty on the first, and past the end.",
    "X-Total": "Items on all pages; missing beyond 10,000.",
    "X-Total-Pages": "Pages; missing beyond 10,000 items.",
    "X-Ignored-Parameters": "Names of parameters that were sent and have no effect here (`x-ignored-parameters`).",
    "X-Request-Id": "What the service's log calls the request.",
    "Location": "Where.",
    "Retry-After": "Seconds.",
}


def responses_of(route: Route) -> Schema:
    """The operation's responses by their status."""
    found = {str(status): response for status, response in _successes(route)}
    for status in _refusals(route):
        found.setdefault(str(status), {"$ref": f"#/components/responses/{_name(status)}"})
    found["default"] = {"$ref": "#/components/responses/Error"}
    return found


def shared_responses() -> dict[str, Schema]:
    """The components to which those refer."""
    shared = {_name(status): _refusal(status, text) for status, text in _REFUSALS.items()}
    shared["Error"] = {
        "description": "Anything else that goes wrong: `message` or `error` says what.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    shared["NotModified"] = {"description": _SUCCESSES[304], "headers": _headers("ETag")}
    shared["MovedPermanently"] = {"description": _SUCCESSES[301], "headers": _headers("Location")}
    return shared


def shared_headers() -> dict[str, Schema]:
    whole = ("X-Per-Page", "X-Page", "X-Total", "X-Total-Pages", "Retry-After")
    return {
        name: {"description": text, "schema": {"type": "integer" if name in whole else "string"}}
        for name, text in _HEADERS.items()
    }


def _successes(route: Route) -> Iterator[tuple[int, Schema]]:
    for answer in answers(route):  # with the refusals that have bodies of their own
        yield answer.status, _success(route, answer)
    if route.method == "GET":
        if isinstance(route.access, Place):
            yield 301, {"$ref": "#/components/responses/MovedPermanently"}
        yield 304, {"$ref": "#/components/responses/NotModified"}


def _success(route: Route, answer: Answer) -> Schema:
    names = ["X-Request-Id"]
    if route.method == "GET" and answer.status == 200:
        names.append("ETag")
    if _is_paginated(route) and answer.status == 200:
        names += _PAGES
    if route.ignores is not None:
        names.append("X-Ignored-Parameters")
    if 300 <= answer.status < 400:
        names.append("Location")
    told: Schema = {"description": (_SUCCESSES | _REFUSALS)[answer.status], "headers": _headers(*names)}
    if answer.form == "json":
        told["content"] = {"application/json": {"schema": answer.schema or {}}}
    elif answer.form:
        media_type = _MEDIA_TYPES[answer.form]
        form = {"format": "binary"} if answer.form == "bytes" else {}
        told["content"] = {media_type: {"schema": {"type": "string"} | form}}
    return told


def _is_paginated(route: Route) -> bool:
    return is_list(route) and route.parameters is not None and issubclass(route.parameters, Paginated)


def _refusals(route: Route) -> Iterator[int]:
    if fields_of(route):
        yield 400
    if route.path != "/openapi.json":
        yield from (401, 403)
    if "{" in route.path:
        yield 404
    if _is_paginated(route) or route.ends or isinstance(route.access, Place):
        yield 405
    if route.method != "GET":
        yield 409
    if route.method == "DELETE":
        yield 412
    if route.method in ("POST", "PUT", "PATCH"):
        yield 413
        yield 422
    if any(answer.status == 206 for answer in answers(route)):
        yield 416
    yield 429
    yield 503


def _refusal(status: int, description: str) -> Schema:
    told: Schema = {
        "description": description,
        "headers": _headers("X-Request-Id", *(["Retry-After"] if status in (429, 503) else [])),
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    return told


def _name(status: int) -> str:
    return "".join(word.capitalize() for word in REASONS[status].replace("-", " ").split())


def _headers(*names: str) -> Schema:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
