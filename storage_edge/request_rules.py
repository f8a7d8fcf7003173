"""Conversion of an incoming request into a request to the origin with its cache key, or into a refusal."""

import functools
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

import attrs
from multidict import CIMultiDictProxy

from common import static_paths
from storage_edge.rules import coding, freshness, selection, storing
from storage_edge.rules.freshness import RequestDirectives
from storage_edge.settings import Settings

ALLOWED_METHODS: Final = "GET, HEAD, OPTIONS"

_PREFLIGHT_FIELDS = ("Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers")
#: Fields that the edge sets itself, whatever the client sent: they describe one hop, or the edge answers them.
_OWN_FIELDS = storing.HOP_BY_HOP | {
    "cdn-loop",
    "content-length",
    "expect",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "range",
    "x-forwarded-for",
    "x-request-id",
}


@attrs.frozen
class Refusal:
    """A refusal of the request with this status and an empty body."""

    status: HTTPStatus
    reason: str


@attrs.frozen
class Options:
    """OPTIONS for a static object, which the edge answers itself. With all three fields it is a CORS preflight."""

    is_preflight: bool


@attrs.frozen
class EdgeRequest:
    """A GET or HEAD for a static object, as the cache sees it.

    `target` is the canonical request target that the origin is asked for. Together with the origin it is the target
    URI, `uri`, which is the cache key (RFC 9111 section 2), because two services may have the same paths. `token` is
    the user's. `forwarded` has the client's fields that are sent to the origin, by lower-case name; a response can
    vary only on these. Requests to the origin are counted for the address `client`, and `caller_fields` returns the
    fields that tell the origin about it. `has` lists the lines that name entity tags which the client already has.
    """

    method: str
    target: str
    uri: str
    kind: static_paths.Kind
    token: str | None = attrs.field(default=None, repr=False)
    forwarded: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    directives: RequestDirectives = freshness.NO_DIRECTIVES
    client: str = attrs.field(default="", eq=False, repr=False)
    caller_fields: Callable[[], Mapping[str, str]] = attrs.field(default=dict, eq=False, repr=False)
    has: tuple[str, ...] = attrs.field(default=(), eq=False, repr=False)
    is_ranged: bool = attrs.field(default=False, eq=False)
    takes_gzip: bool = attrs.field(default=False, eq=False)

    @property
    def facts(self) -> storing.RequestFacts:
        """The properties that decide about storing the response."""
        return storing.RequestFacts(
            has_token=self.token is not None,
            has_credentials="authorization" in self.forwarded,
            no_store=self.directives.no_store,
        )


class Rules:
    """The operator's choices about requests. `origin` is scheme, host and port of the service.

    Only fields for which `forward_all` allows it are sent to the origin, in addition to the edge's own: no client's
    cookies, credentials or invented fields can change what is stored for others.
    """

    def __init__(self, settings: Settings) -> None:
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Apply these settings from now on."""
        self.origin = str(settings.origin_url).rstrip("/")
        self._forward_all = settings.forward_all_headers
        self._client_directives = settings.client_directives

    def read(
        self,
        method: str,
        target: str,
        headers: CIMultiDictProxy[str],
        client: str = "",
        caller_fields: Callable[[], Mapping[str, str]] = dict,
    ) -> EdgeRequest | Options | Refusal:
        """Parse a request. Refuse a target that is not a static object with 400, then other methods with 405 (the
        contract, "Static objects with external storage")."""
        try:
            path, canonical, uri = _parsed(self.origin, target)
        except static_paths.TooLongError as error:
            return Refusal(HTTPStatus.REQUEST_URI_TOO_LONG, str(error))
        except static_paths.StaticPathError as error:
            return Refusal(HTTPStatus.BAD_REQUEST, str(error))
        if method == "OPTIONS":
            return Options(all(name in headers for name in _PREFLIGHT_FIELDS))
        if method not in {"GET", "HEAD"}:
            return Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "method")
        cache_control = headers.getall("Cache-Control", []) if self._client_directives else []
        return EdgeRequest(
            method=method,
            target=canonical,
            uri=uri,
            kind=path.kind,
            token=path.token,
            forwarded=_end_to_end(headers) if self._forward_all else {},
            directives=freshness.request_directives(cache_control),
            client=client,
            caller_fields=caller_fields,
            has=(*headers.getall("If-None-Match", []), *headers.getall("If-Range", [])),
            is_ranged="Range" in headers,
            takes_gzip=coding.takes_gzip(headers.getall("Accept-Encoding", [])),
        )

    def read_plainly(self, method: str, target: str, accept_encoding: str | None) -> EdgeRequest | None:
        """Return the same as `read` for a GET or HEAD whose only relevant field is one line of Accept-Encoding.
        Return None if it has a token, is refused, or if all fields matter. The client is left out."""
        if self._forward_all:
            return None
        takes_gzip = accept_encoding is not None and coding.takes_gzip([accept_encoding])
        return _read_plainly(self.origin, method, target, takes_gzip)


@functools.lru_cache(maxsize=16_384)
def _read_plainly(origin: str, method: str, target: str, takes_gzip: bool) -> EdgeRequest | None:
    try:
        path, canonical, uri = _parsed(origin, target)
    except static_paths.StaticPathError:
        return None
    if path.token is not None:
        return None
    return EdgeRequest(method=method, target=canonical, uri=uri, kind=path.kind, takes_gzip=takes_gzip)


@functools.lru_cache(maxsize=16_384)
def _parsed(origin: str, target: str) -> tuple[static_paths.StaticPath, str, str]:
    """Parse a target. The result is cached: popular targets repeat, and parsing costs more than finding them in
    memory."""
    path = static_paths.parse(target)
    return path, path.target, origin + path.target


def _end_to_end(headers: CIMultiDictProxy[str]) -> dict[str, str]:
    combined = selection.combined(headers)
    connection_options = {name.strip().lower() for name in combined.get("connection", "").split(",")}
    return {
        name: value
        for name, value in combined.items()
        if name not in _OWN_FIELDS
        and name not in connection_options
        and not name.endswith(("storage-token", "object-token"))
    }
