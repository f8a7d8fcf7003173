"""How the bytes of a file that users made are labelled, so that no browser runs them."""

import attrs

#: How much of a file is looked at.
SNIFFED_BYTES = 512

#: Leading bytes of what a browser may show in place.
_SHOWN = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"%PDF-", "application/pdf"),
    (b"\x1aE\xdf\xa3", "video/webm"),
    (b"OggS\0", "application/ogg"),
)
#: Leading bytes of what is only ever saved.
_SAVED = (
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b\x08", "application/gzip"),
    (b"BZh", "application/x-bzip2"),
)
_CONTROL = frozenset(range(0x20)) - frozenset(b"\t\n\r\x0c\x1b")


@attrs.frozen
class Label:
    """A media type, and whether a browser may show such a file in place."""

    media_type: str
    inline: bool


def label(head: bytes) -> Label:
    """From the first `SNIFFED_BYTES`. Text of any kind, HTML and scripts too, is plain text; SVG is only saved."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return Label("image/webp", inline=True)
    if head[4:8] == b"ftyp":
        return Label("video/mp4", inline=True)
    for known, inline in ((_SHOWN, True), (_SAVED, False)):
        for start, media_type in known:
            if head.startswith(start):
                return Label(media_type, inline)
    if not _CONTROL.isdisjoint(head[:SNIFFED_BYTES]):
        return Label("application/octet-stream", inline=False)
    if b"<svg" in head[:SNIFFED_BYTES].lower():
        return Label("image/svg+xml", inline=False)
    return Label("text/plain; charset=utf-8", inline=True)
