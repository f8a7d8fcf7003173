"""Paths and parameters of static objects, and the headers that the service and the edge exchange about them.

Both processes read requests with this module, so they always agree about what a URL names.
"""

import enum
import re
from typing import Final
from urllib.parse import parse_qsl, quote, unquote_to_bytes, urlencode

import attrs

EXTERNAL_STORAGE_TOKEN_HEADER: Final = "X-Service-External-Storage-Token"
STATIC_OBJECT_TOKEN_HEADER: Final = "X-Service-Static-Object-Token"
#: The query parameter with the user's static object token.
TOKEN_PARAMETER: Final = "token"
#: A path without a file, to test the storage's token: the service checks the token first, so 404 means that it is
#: right.
NO_FILE: Final = "/forgelet/-/raw/HEAD/is-the-storage-token-right"

#: The longest request target that is parsed, in characters.
MAX_TARGET_LENGTH: Final = 8000

#: File name endings and their canonical archive format. Longer endings come first.
ARCHIVE_FORMATS: Final = {
    ".tar.gz": "tar.gz",
    ".tar.bz2": "tar.bz2",
    ".tbz2": "tar.bz2",
    ".tbz": "tar.bz2",
    ".tb2": "tar.bz2",
    ".bz2": "tar.bz2",
    ".tgz": "tar.gz",
    ".gz": "tar.gz",
    ".tar": "tar",
    ".zip": "zip",
}

_SERVER = re.compile(r"\Ahttps?://[^/?#]*", re.IGNORECASE)
_BOOLEANS = frozenset({"true", "false"})
_UNESCAPED = re.compile(r"/[!-~]*")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_UNSAFE_ESCAPE = re.compile(r"%(?:2f|5c|00)", re.IGNORECASE)
#: A text that can be copied into a header field.
_TOKEN = re.compile(r"[\x21-\x7e]{1,512}")
#: The characters that a path segment may contain unescaped (RFC 3986 section 3.3: pchar).
_SEGMENT_SAFE = "!$&'()*+,;=:@-._~"


class StaticPathError(ValueError):
    """The request target names no static object, or names it in a way that two readers could understand differently.
    The text says why and repeats nothing of the request."""


class TooLongError(StaticPathError):
    """The request target is longer than `MAX_TARGET_LENGTH`."""


class Kind(enum.Enum):
    """The kind of a static object: one file (`/raw/`) or a packed tree (`/-/archive/`)."""

    RAW = "raw"
    ARCHIVE = "archive"


@attrs.frozen
class Archive:
    """The parts of an archive path: `ref`, file `name` without its ending ("" if there is none), `format`."""

    ref: str
    name: str
    format: str


@attrs.frozen
class StaticPath:
    """A decoded request for a static object.

    `project` is the full path of the project. `rest` follows the marker (`<ref>/<path>` or `<ref>/<name>.<format>`;
    only the repository knows where a ref ends). `dashed` says whether the path was written with `/-/`. `query` holds
    the parameters that have an effect, in canonical order and spelling. `token` is the user's static object token.
    """

    kind: Kind
    project: str
    rest: str
    dashed: bool
    query: tuple[tuple[str, str], ...] = ()
    token: str | None = attrs.field(default=None, repr=False)

    @property
    def target(self) -> str:
        """The canonical request target of this object, without the token."""
        marker = f"/-/{self.kind.value}/" if self.dashed else f"/{self.kind.value}/"
        path = quote(f"/{self.project}{marker}{self.rest}", safe="/" + _SEGMENT_SAFE)
        return f"{path}?{urlencode(self.query)}" if self.query else path

    @property
    def archives(self) -> list[Archive]:
        """Return the possible meanings of an archive path, the more likely first: a file name after the last slash,
        or only a ref. Return nothing if the ending is not in `ARCHIVE_FORMATS`."""
        for ending, format_ in ARCHIVE_FORMATS.items():
            stem = self.rest.removesuffix(ending)
            if stem != self.rest:
                ref, _, name = stem.rpartition("/")
                with_name = [Archive(ref=ref, name=name, format=format_)] if ref and name else []
                return with_name + ([Archive(ref=stem, name="", format=format_)] if name else [])
        return []


def parse(target: str) -> StaticPath:
    """Parse a request target as on the request line (`/group/app/-/raw/main/README?inline=false`), or a URL.

    The first marker in the path decides the kind. Raise `StaticPathError` for everything that is no static object,
    and for spellings that another reader could resolve to another object: dot segments, empty segments, escaped
    slashes, backslashes, NUL, broken escapes, bytes that are not UTF-8, over-long targets.
    """
    target = origin_form(target)
    if len(target) > MAX_TARGET_LENGTH:
        raise TooLongError("the request target is too long")
    path, _, query = target.partition("?")
    segments = _segments(path)
    marker = _first_marker(segments)
    dashed = segments[marker - 1] == "-"
    project = segments[: marker - 1] if dashed else segments[:marker]
    rest = segments[marker + 1 :]
    if not project or not rest:
        raise StaticPathError("the path names no project or nothing in it")
    kind = Kind(segments[marker])
    effective, token = _parameters(kind, query)
    return StaticPath(
        kind=kind, project="/".join(project), rest="/".join(rest), dashed=dashed, query=effective, token=token
    )


def origin_form(target: str) -> str:
    """Return a request target without scheme and host, which its absolute form has (RFC 9112 section 3.2.2)."""
    return _SERVER.sub("", target, count=1)


def _segments(path: str) -> list[str]:
    if not _UNESCAPED.fullmatch(path):
        raise StaticPathError("the path does not start with a slash or holds characters that need escapes")
    if "\\" in path or "#" in path or _UNSAFE_ESCAPE.search(path) or _BAD_ESCAPE.search(path):
        raise StaticPathError("the path holds an escape or a character with more than one meaning")
    segments = [_decoded(segment) for segment in path[1:].split("/")]
    if any(segment in {"", ".", ".."} for segment in segments):
        raise StaticPathError("the path holds empty or dot segments")
    return segments


def _decoded(text: str) -> str:
    if "%" not in text:
        return text
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise StaticPathError("the request target is not UTF-8") from None


def _first_marker(segments: list[str]) -> int:
    for index, segment in enumerate(segments):
        if segment == "raw":
            return index
        if segment == "-":
            following = segments[index + 1 : index + 2]
            if following in (["raw"], ["archive"]):
                return index + 1
            raise StaticPathError("the path names something else than a file or an archive")
    raise StaticPathError("the path has neither /raw/ nor /-/archive/")


def _parameters(kind: Kind, query: str) -> tuple[tuple[tuple[str, str], ...], str | None]:
    """Return the parameters that have an effect (`inline`; `append_sha`, `path`; the first of each counts), and the
    token."""
    if not query:
        return (), None
    values = _query_values(query)
    names = ("inline",) if kind is Kind.RAW else ("append_sha", "path")
    effective = []
    for name in names:
        value = _directory(values[name]) if name == "path" and name in values else values.get(name, "")
        if value and (name == "path" or value in _BOOLEANS):
            effective.append((name, value))
    token = values.get(TOKEN_PARAMETER) or None
    if token and not _TOKEN.fullmatch(token):
        raise StaticPathError("the token is invalid")
    return tuple(effective), token


def _query_values(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        raise StaticPathError("the query is not UTF-8 or has too many parameters") from None
    values: dict[str, str] = {}
    for name, value in pairs:
        values.setdefault(name, value)
    return values


def _directory(path: str) -> str:
    """Return the `path` of an archive without superfluous slashes (`/docs//` is `docs`)."""
    if "\0" in path or "\\" in path:
        raise StaticPathError("the parameter path holds a character with more than one meaning")
    segments = [segment for segment in path.split("/") if segment]
    if any(segment in {".", ".."} for segment in segments):
        raise StaticPathError("the parameter path holds dot segments")
    return "/".join(segments)
