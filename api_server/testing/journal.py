"""What has been asked and answered, newest last: so much of it as has room."""

import datetime
from collections import deque
from typing import Any

import attrs
from aiohttp import web

from api_server.testing import masking
from api_server.testing.clock import written
from api_server.testing.path_patterns import fits

#: A test asks a few dozen times; a whole suite that never clears the journal finds what its last tests did.
MOST_REQUESTS = 5_000
#: Bytes of one body that are kept; of longer ones the size is.
MOST_OF_BODY = 64 * 1024
#: Bytes of everything that is kept, since the server shares a laptop's memory with those who test.
MOST_BYTES = 16 * 2**20
#: Bytes that an entry takes beside its texts.
_ENTRY = 1_000


@attrs.define
class Heard:
    """A body that passes by: its beginning, and how long it has been."""

    content_type: str
    size: int = 0
    _kept: bytearray = attrs.field(factory=bytearray)

    def __call__(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size <= MOST_OF_BODY:
            self._kept += piece
        else:
            self._kept.clear()

    def note(self, size: int, _sent: int) -> None:
        """So many bytes more, which are not kept."""
        self.size += size

    @property
    def kept(self) -> bytes | None:
        """All of it, or nothing."""
        return bytes(self._kept) if self.size <= MOST_OF_BODY else None


@attrs.define(kw_only=True, eq=False)
class Entry:
    """One request. `status` is null until there is an answer, `duration` (seconds) until all of it has been given."""

    id: str
    time: datetime.datetime
    method: str
    path: str
    query: str
    headers: Any
    body: Heard
    #: Of the request, where nobody has read it.
    content_length: int | None
    user: str | None = None
    failure: int | None = None
    status: int | None = None
    response: Heard = attrs.field(factory=lambda: Heard(""))
    duration: float | None = None
    #: Bytes, as soon as the answer has been given.
    weight: int = 0
    #: False when it has been dropped.
    listed: bool = True

    def bytes(self) -> int:
        """How many are kept of it now."""
        texts = sum(len(name) + len(text) for name, text in self.headers.items())
        bodies = len(self.body.kept or b"") + len(self.response.kept or b"")
        return _ENTRY + len(self.path) + len(self.query) + texts + bodies

    def shown(self) -> dict[str, Any]:
        """What the API says of it, without credentials."""
        return {
            "id": self.id,
            "time": written(self.time),
            "method": self.method,
            "path": masking.masked(self.path),
            "query": masking.sent(self.path, masking.query(self.query)),
            "headers": masking.headers(self.headers),
            "user": self.user,
            "body": masking.sent(self.path, masking.content(self.body.content_type, self.body.kept)),
            "body_size": self.body.size or self.content_length or 0,
            "status": self.status,
            "response": masking.content(self.response.content_type, self.response.kept),
            "response_size": self.response.size,
            "duration": self.duration,
            "failure": self.failure,
        }


@attrs.frozen(kw_only=True)
class Filter:
    """Which entries are meant: those that everything says which is not None."""

    method: str | None = None
    path: str | None = None
    status: int | None = None
    user: str | None = None

    def __call__(self, entry: Entry) -> bool:
        return (
            self.method in (None, entry.method)
            and (self.path is None or fits(self.path, entry.path))
            and self.status in (None, entry.status)
            and self.user in (None, entry.user)
        )


class Journal:
    """Entries in the order in which their requests came; the oldest make room for the newest."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        #: How many have had to go since it was last empty.
        self.dropped = 0

    def begin(self, entry: Entry) -> None:
        """Adds it, to be filled in as the request is answered."""
        self._entries.append(entry)
        self._make_room()

    def end(self, entry: Entry, duration: float) -> None:
        """All of the answer has been given."""
        entry.duration = duration
        entry.weight = entry.bytes()
        if entry.listed:
            self._bytes += entry.weight
            self._make_room()

    def matching(self, wanted: Filter) -> list[Entry]:
        return [entry for entry in self._entries if wanted(entry)]

    def forget(self, wanted: Filter) -> None:
        """Drops those that are meant."""
        for entry in self.matching(wanted):
            self._drop(entry)
        self._entries = deque(entry for entry in self._entries if entry.listed)
        if not self._entries:
            self.dropped = 0

    def _make_room(self) -> None:
        while len(self._entries) > MOST_REQUESTS or self._bytes > MOST_BYTES:
            self._drop(self._entries.popleft())
            self.dropped += 1

    def _drop(self, entry: Entry) -> None:
        entry.listed = False
        self._bytes -= entry.weight


JOURNAL = web.AppKey("journal", Journal)
