"""Request heads that ask for a whole object and nothing else, told by their bytes.

Reading a request the ordinary way is most of what a hit costs. What is read here aiohttp would read alike: the rest, of
which there is much that two readers could understand differently, is left to it.
"""

from typing import Final

import attrs

from common.connections import is_host

#: Fields, by lower-case name, that change neither the answer nor the connection, or that are read here; each may come
#: once. Not among them: conditions, ranges, directives, credentials and cookies, what announces a body or asks for
#: another protocol, and whatever is unknown.
HARMLESS: Final = frozenset(
    {
        b"accept",
        b"accept-charset",
        b"accept-encoding",
        b"accept-language",
        b"connection",
        b"device-memory",
        b"dnt",
        b"downlink",
        b"ect",
        b"from",
        b"host",
        b"origin",
        b"priority",
        b"referer",
        b"rtt",
        b"save-data",
        b"sec-ch-ua",
        b"sec-ch-ua-arch",
        b"sec-ch-ua-mobile",
        b"sec-ch-ua-platform",
        b"sec-fetch-dest",
        b"sec-fetch-mode",
        b"sec-fetch-site",
        b"sec-fetch-user",
        b"sec-gpc",
        b"upgrade-insecure-requests",
        b"user-agent",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"x-real-ip",
        b"x-request-id",
    }
)
_METHODS: Final = {b"GET": "GET", b"HEAD": "HEAD"}
_VISIBLE: Final = bytes(range(0x20, 0x7F))


@attrs.define(eq=False)
class PlainHead:
    """What a plain head says. `fields` are its values by lower-case name, with the spaces around them. It never
    changes, but freezing is dear where each request makes one.
    """

    method: str
    target: str
    fields: dict[bytes, bytes]

    def value(self, name: bytes) -> str | None:
        """A field's value, None where there is none."""
        value = self.fields.get(name)
        return None if value is None else value.strip(b" ").decode()


def read(data: bytes, most_bytes: int, most_fields: int) -> PlainHead | None:
    """What these bytes ask for if they are one plain head and no more, at most so long; otherwise None.

    A plain head is a GET or HEAD in origin form of HTTP/1.1, on a connection that stays open, with one Host. It is
    made of visible ASCII, spaces, and CRLF where a line ends: nothing is folded, spelled otherwise, or cut off.
    """
    if len(data) > most_bytes or not data.endswith(b"\r\n\r\n"):
        return None
    request_line, *lines, _, _ = data.split(b"\r\n")
    if len(lines) > most_fields or data.translate(None, _VISIBLE) != b"\r\n" * (len(lines) + 2):
        return None
    method, _, rest = request_line.partition(b" ")
    target, _, version = rest.partition(b" ")
    if method not in _METHODS or version != b"HTTP/1.1" or not target.startswith(b"/") or b"#" in target:
        return None
    fields = _fields(lines)
    return None if fields is None else PlainHead(_METHODS[method], target.decode(), fields)


def _fields(lines: list[bytes]) -> dict[bytes, bytes] | None:
    fields: dict[bytes, bytes] = {}
    for line in lines:  # an empty one, behind which another request begins, has no name
        name, colon, value = line.partition(b":")
        name = name.lower()
        if name not in HARMLESS or name in fields or not colon:
            return None
        fields[name] = value
    connection = fields.get(b"connection")
    stays_open = connection is None or connection.strip(b" ").lower() == b"keep-alive"
    return fields if stays_open and is_host(fields.get(b"host", b"/").strip(b" ")) else None
