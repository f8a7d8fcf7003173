"""How the bytes of a file that users made are labelled, so that no browser runs them: by the rules of GitLab Workhorse,
which are those of Go's `http.DetectContentType` (the MIME Sniffing Standard, mostly) and a few of its own."""

import re
from typing import Final

import attrs

#: How much of a file is looked at.
SNIFFED_BYTES: Final = 512

_TEXT: Final = "text/plain; charset=utf-8"
_SVG: Final = "image/svg+xml"
#: How an SVG begins: what XML has before the root element may come first.
_BETWEEN: Final = rb"(?:[\t\n\f\r ]++|<!--.*?-->)*+"
_BEGINS_SVG = re.compile(
    rb"(?si)(?:\xef\xbb\xbf)?+%b(?:<\?xml[^>]*+>%b)?+(?:<!doctype svg[^>]*+>%b)?+<svg" % ((_BETWEEN,) * 3)
)
#: Tags that HTML begins with.
_HTML: Final = rb"!DOCTYPE HTML|HTML|HEAD|SCRIPT|IFRAME|H1|DIV|FONT|TABLE|A|STYLE|TITLE|BODY|BR?|P|!--"


def _is_mp4(head: bytes) -> bool:
    """Whether the first box, which has to be whole, names an `mp4` brand; its minor version is none."""
    size = int.from_bytes(head[:4])
    if len(head) < 12 or head[4:8] != b"ftyp" or size > len(head) or size % 4:
        return False
    return any(head[at : at + 3] == b"mp4" for at in range(8, size, 4) if at != 12)


#: How files of other types begin, in the order of Go's. HTML and XML are text here.
_SIGNATURES: Final = tuple(
    (beginning if callable(beginning) else re.compile(beginning, re.DOTALL).match, media_type)
    for beginning, media_type in (
        (rb"[\t\n\f\r ]*+<(?:(?i:%b)[ >]|\?xml)" % _HTML, _TEXT),
        (rb"%PDF-", "application/pdf"),
        (rb"%!PS-Adobe-", "application/postscript"),
        (
            rb"\xfe\xff..|\xff\xfe..|\xef\xbb\xbf.",
            _TEXT,
        ),  # byte order marks, which browsers heed by themselves
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
    """A media type, and whether a browser may show such a file in place."""

    media_type: str
    inline: bool


def label(head: bytes) -> Label:
    """From the first `SNIFFED_BYTES`. Text of any kind, HTML and scripts too, is plain text; SVG is only saved."""
    media_type = _type(head[:SNIFFED_BYTES])
    return Label(media_type, inline=media_type != _SVG and _SHOWN.match(media_type) is not None)


def _type(head: bytes) -> str:
    if _BEGINS_SVG.match(head):
        return _SVG
    for begins, media_type in _SIGNATURES:
        if begins(head):
            return media_type
    return "application/octet-stream" if _CONTROL.search(head) else _TEXT
