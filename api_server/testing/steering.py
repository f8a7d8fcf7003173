"""Control of a server for tests: who may use it, its error answers, and patterns of paths."""

import ipaddress
import re
from functools import lru_cache

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler
from yarl import URL

from api_server.testing import CONTROLS, OWN_AGENT
from api_server.web import context
from api_server.web.answers import json_value
from api_server.web.request_data import read
from common import operations, static_paths
from common.static_paths import origin_form


def refused(sentence: str, kind: type[web.HTTPError] = web.HTTPBadRequest) -> web.HTTPError:
    """Return the error of a control that cannot do what was asked, with one sentence that says what to do."""
    return kind(text=sentence)


def is_about_us(request: web.Request) -> bool:
    """Return whether a request steers or watches the server, or is the server's own, or is an edge's test
    whether it is known: it is not part of the tests."""
    return (
        request.path.startswith(CONTROLS)
        or request.path in (*operations.ROUTES, static_paths.NO_FILE)
        or request.headers.get("User-Agent") == OWN_AGENT
    )


@web.middleware
async def steering(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse pages of other origins, through which a browser on this machine could steer or read the server,
    and answer errors as `{"message": ...}`."""
    if not request.path.startswith(CONTROLS):
        return await handler(request)
    try:
        _refuse_others(request)
        return _in_json(await handler(request))
    except web.HTTPError as problem:
        return _in_json(problem)


def _in_json(answer: web.StreamResponse) -> web.StreamResponse:
    if answer.status < 400 or not isinstance(answer, web.Response):
        return answer
    text = answer.text if answer.content_type == "text/plain" else None
    return json_value({"message": text or f"{answer.status} {answer.reason}"}, status=answer.status)


def _refuse_others(request: web.Request) -> None:
    origin, host = request.headers.get("Origin"), request.headers.get("Host")
    base_url = URL(context.services(request).settings.base_url)
    if origin is not None and origin != str(base_url.origin()):
        raise refused("Pages of other origins cannot steer this server.", web.HTTPForbidden)
    if host is not None and not _is_ours(host, base_url):
        raise refused(
            f"This server cannot be steered by that name: use its address, localhost or {base_url.host}.",
            web.HTTPForbidden,
        )


def _is_ours(host: str, base_url: URL) -> bool:
    """Return whether a page of another site cannot have that host: the owner of a domain can let its names
    lead to this machine. Names without a dot (`localhost`, a container's service) belong to this network."""
    try:
        name = URL(f"http://{host}").host or ""
    except ValueError:
        return False
    if "." not in name or name == base_url.host:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def sent_object(request: web.Request) -> dict[str, object]:
    """Return the JSON object that was sent. Raise 400 for anything else."""
    body = await read(request, context.services(request).settings.body_limit)
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise refused("The body is not valid JSON.") from None
    if not isinstance(document, dict):
        raise refused("The body is not a JSON object.")
    return document


#: Maximum characters of a pattern.
LONGEST = 1_000

_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")


def sent_path(raw_path: str) -> str:
    """Return the path of a request's target without its query, percent-encoded as it was sent, but with `%2f`
    as `%2F`."""
    path = origin_form(raw_path).partition("?")[0]
    return _ENCODED.sub(lambda code: code[0].upper(), path) if "%" in path else path


def fits(pattern: str, path: str) -> bool:
    """Return whether the whole of `path`, a `sent_path`, matches `pattern`."""
    return _compiled(pattern).fullmatch(path) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    first, *after = _ENCODED.sub(lambda code: code[0].upper(), pattern).split("**")
    if not after:
        return re.compile(_step(first, is_last=True), re.DOTALL)
    *between, last = after
    parts = [
        _step(first),
        *(_once(f".*?{_step(part)}") for part in between),
        f".*?{_step(last, is_last=True)}",
    ]
    return re.compile("".join(parts), re.DOTALL)


def _step(part: str, *, is_last: bool = False) -> str:
    """Return the expression for the part of a pattern between two `**`."""
    first, *after = (re.escape(fixed).replace(r"\?", "[^/]") for fixed in part.split("*"))
    if not after or not is_last:
        return "".join([first, *(_once(f"[^/]*?{fixed}") for fixed in after)])
    *between, last = after
    return "".join([first, *(_once(f"[^/]*?{fixed}") for fixed in between), f"[^/]*{last}"])


def _once(expression: str) -> str:
    """Return the expression without backtracking: a later match could not be better, and searching for it
    could take exponential time."""
    return f"(?>{expression})"


def check_pattern(name: str, pattern: str) -> str:
    """Return the pattern; `*` alone matches every path. Raise 400 for a pattern that no path can match;
    `name` is its parameter."""
    if pattern == "*":
        return "**"
    if not pattern.startswith(("/", "*")):
        raise refused(f"{name} has to begin with / or **, since it stands for a whole path: /api/v4/version.")
    if "?" in pattern and "=" in pattern:
        raise refused(f"{name} stands for a path without its query.")
    if len(pattern) > LONGEST:
        raise refused(f"{name} has more than {LONGEST} characters.")
    return pattern
