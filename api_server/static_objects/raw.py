"""Raw files of commits for users and edges, with headers that keep browsers from executing them and limit caching."""

import hashlib
import re
from typing import Final

import attrs
from aiohttp import hdrs, web

from api_server.code import file_answers
from api_server.code.reading import streaming
from api_server.code.refs import ref_key
from api_server.git import references, trees
from api_server.git.references import Resolved
from api_server.git.repositories import REPOSITORIES, Repository
from api_server.git.trees import Entry
from api_server.namespaces.resources import Project
from api_server.outbound import edges
from api_server.services import Services
from api_server.static_objects.access import Reader
from api_server.web import context
from api_server.web.answers import attachment
from api_server.web.routes import caller_or_anonymous
from common.static_paths import StaticPath

#: Lifetime in seconds of an object that is named by a branch or tag, which can move (purges notify the edge of moves),
#: or by a part of a SHA, which may become the name of a branch or ambiguous.
MOVING_SECONDS = 60
#: Lifetime in seconds of an object that is named by its full commit SHA.
FIXED_SECONDS = 3600
#: Lifetime in seconds of such an object at an edge; purges remove it when its project becomes private.
FIXED_AT_EDGE_SECONDS = 86_400


def freshness(project: Project, ref: Resolved) -> dict[str, str]:
    """Return the headers for caching an object at `ref`: `Cache-Control` for all caches, `CDN-Cache-Control` (RFC 9213)
    for the edge, and `Surrogate-Key` for purges.

    Objects that anonymous callers cannot read are private. An edge may store them, but revalidates for each request.
    """
    headers = {"Surrogate-Key": f"{edges.project_key(project.id)} {ref_key(project.id, ref.name)}"}
    if not project.shows_repository_to_everybody:
        return headers | {
            "Cache-Control": "private, max-age=0, must-revalidate",
            "CDN-Cache-Control": "private, max-age=0, must-revalidate",
        }
    lifetime = FIXED_SECONDS if ref.is_fixed else MOVING_SECONDS
    at_edge = FIXED_AT_EDGE_SECONDS if ref.is_fixed else MOVING_SECONDS
    return headers | {
        "Cache-Control": f"public, max-age={lifetime}, must-revalidate, stale-while-revalidate=60, "
        f"stale-if-error=300, s-maxage={MOVING_SECONDS}",
        "CDN-Cache-Control": f"max-age={at_edge}",
    }


#: Number of bytes of a file from which its media type is derived.
SNIFFED_BYTES: Final = 512

_TEXT: Final = "text/plain; charset=utf-8"
_SVG: Final = "image/svg+xml"
#: The beginning of an SVG; an XML declaration, comments and a document type may precede the root element.
_BETWEEN: Final = rb"(?:[\t\n\f\r ]++|<!--.*?-->)*+"
_BEGINS_SVG = re.compile(
    rb"(?si)(?:\xef\xbb\xbf)?+%b(?:<\?xml[^>]*+>%b)?+(?:<!doctype svg[^>]*+>%b)?+<svg" % ((_BETWEEN,) * 3)
)
#: Tags with which HTML can begin.
_HTML: Final = rb"!DOCTYPE HTML|HTML|HEAD|SCRIPT|IFRAME|H1|DIV|FONT|TABLE|A|STYLE|TITLE|BODY|BR?|P|!--"


def _is_mp4(head: bytes) -> bool:
    """Return whether the first box is complete and names an `mp4` brand. Its minor version (byte 12) is not a brand."""
    size = int.from_bytes(head[:4])
    if len(head) < 12 or head[4:8] != b"ftyp" or size > len(head) or size % 4:
        return False
    return any(head[offset : offset + 3] == b"mp4" for offset in range(8, size, 4) if offset != 12)


#: The beginnings of files of other types, in the order of Go's `net/http`. HTML and XML are served as text.
_SIGNATURES: Final = tuple(
    (beginning if callable(beginning) else re.compile(beginning, re.DOTALL).match, media_type)
    for beginning, media_type in (
        (rb"[\t\n\f\r ]*+<(?:(?i:%b)[ >]|\?xml)" % _HTML, _TEXT),
        (rb"%PDF-", "application/pdf"),
        (rb"%!PS-Adobe-", "application/postscript"),
        # Byte order marks, which browsers interpret themselves.
        (rb"\xfe\xff..|\xff\xfe..|\xef\xbb\xbf.", _TEXT),
        (rb"\x00\x00[\x01\x02]\x00", "image/x-icon"),
        (rb"BM", "image/bmp"),
        (rb"GIF8[79]a", "image/gif"),
        (rb"RIFF....WEBPVP", "image/webp"),
        (rb"\x89PNG\r\n\x1a\n", "image/png"),
        (rb"\xff\xd8\xff", "image/jpeg"),
        (rb"FORM....AIFF", "audio/aiff"),
        (rb"ID3", "audio/mpeg"),
        (rb"OggS\x00", "application/ogg"),
        (rb"MThd\x00\x00\x00\x06", "audio/midi"),
        (rb"RIFF....AVI ", "video/avi"),
        (rb"RIFF....WAVE", "audio/wave"),
        (_is_mp4, "video/mp4"),
        (rb"\x1aE\xdf\xa3", "video/webm"),
        (rb".{34}LP", "application/vnd.ms-fontobject"),
        (rb"\x00\x01\x00\x00", "font/ttf"),
        (rb"OTTO", "font/otf"),
        (rb"ttcf", "font/collection"),
        (rb"wOFF", "font/woff"),
        (rb"wOF2", "font/woff2"),
        (rb"\x1f\x8b\x08", "application/x-gzip"),
        (rb"PK\x03\x04", "application/zip"),
        (rb"Rar!\x1a\x07\x01?\x00", "application/x-rar-compressed"),
        (rb"\x00asm", "application/wasm"),
    )
)
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_SHOWN = re.compile(r"(?:image|text|video)/|application/pdf")


@attrs.frozen
class Label:
    """A media type, and whether a browser may display such a file instead of saving it."""

    media_type: str
    inline: bool


def label(head: bytes) -> Label:
    """Return the label of a file by its first `SNIFFED_BYTES`. HTML and scripts are plain text, too; SVG is not
    displayed."""
    media_type = _type(head[:SNIFFED_BYTES])
    return Label(media_type, inline=media_type != _SVG and _SHOWN.match(media_type) is not None)


def _type(head: bytes) -> str:
    if _BEGINS_SVG.match(head):
        return _SVG
    for begins, media_type in _SIGNATURES:
        if begins(head):
            return media_type
    return "application/octet-stream" if _CONTROL.search(head) else _TEXT


#: The bytes come from users: nothing in them may be executed, and their address, which may contain a token, must not
#: be sent to other sites.
SAFETY = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


async def serve(
    request: web.Request, path: StaticPath, project: Project, reader: Reader, *, from_storage: bool
) -> web.StreamResponse:
    """Answer with the file (200 or 206), or with 304 before it is read. Raise 404 for an unknown ref or path."""
    services = context.services(request)
    repository, ref, entry = _find(services, path, project)
    digest = hashlib.sha256(f"raw {entry.id}".encode()).hexdigest()
    headers = SAFETY | freshness(project, ref) | {hdrs.ETAG: f'"{digest[:32]}"'}
    inline = dict(path.query).get("inline") != "false"
    slot = streaming(services, caller_or_anonymous(request), user_id=reader.id, from_storage=from_storage)
    return await file_answers.send_raw(
        request, repository, entry, headers, slot, lambda head: _labelled(label(head), entry, inline)
    )


def _find(services: Services, path: StaticPath, project: Project) -> tuple[Repository, Resolved, Entry]:
    if not services[REPOSITORIES].exists(project.id):
        raise web.HTTPNotFound(text="404 Not Found\n")
    repository = services[REPOSITORIES].open(project.id)
    split = references.split_ref_and_path(repository, path.rest)
    entry = trees.find_entry(repository, split[0].commit, split[1]) if split else None
    if split is None or entry is None or not entry.is_blob:
        raise web.HTTPNotFound(text="404 Not Found\n")
    return repository, split[0], entry


def _labelled(label_: Label, entry: Entry, wants_inline: bool) -> dict[str, str]:
    """Return the headers with the media type and the disposition. A file that should be saved is never displayed."""
    name = entry.path.rpartition("/")[2]
    if label_.inline and wants_inline and not name.lower().endswith(".xhtml"):
        disposition = "inline"
    else:
        disposition = attachment(name)
    return {hdrs.CONTENT_TYPE: label_.media_type, hdrs.CONTENT_DISPOSITION: disposition}
