"""Which entries of the journal, and which failure, a request to the controls means."""

from collections.abc import Mapping

from aiohttp import web

from api_server.testing.journal import Filter
from api_server.testing.path_patterns import check_pattern
from api_server.testing.steering import refused

_FILTERS = ("method", "path", "status", "user")


def wanted_entries(request: web.Request) -> Filter:
    """Those that the query's `method`, `path`, `status` and `user` say, all of them without one. Raises 400."""
    sent = request.query
    _check_names(sent, _FILTERS)
    status = sent.get("status")
    if status is not None and not (status.isascii() and status.isdigit() and len(status) == 3):
        raise refused("status has to be a number such as 404.")
    path = sent.get("path")
    return Filter(
        method=sent["method"].upper() if "method" in sent else None,
        path=None if path is None else check_pattern("path", path),
        status=None if status is None else int(status),
        user=sent.get("user"),
    )


def no_filter(request: web.Request) -> None:
    """Raises 400 where there is a query: who means some must not meet all."""
    _check_names(request.query, ())


def number_in_path(request: web.Request, name: str) -> int:
    """Raises 404 for what is no number."""
    text = request.match_info[name]
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise refused(f"There is no failure {text[:50]!r}.", web.HTTPNotFound)
    return int(text)


def _check_names(sent: Mapping[str, str], known: tuple[str, ...]) -> None:
    for name in sent:
        if name not in known:
            what = f"there are {', '.join(known)}" if known else "name one failure in the path instead"
            raise refused(f"There is no filter {name[:50]!r}; {what}.")
