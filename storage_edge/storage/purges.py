"""Purges of responses that must not be served any more, the order of purges and stores, and the file that records them.

All processes of a data directory map the file: a counter and slots for the newest purges. Its space is allocated when
it is created, so a purge is recorded in place even on a full disk. An unreadable purge counts as a purge of everything,
and so does a missing file, which is created again with a higher number.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import tempfile
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import attrs
import cattrs
import orjson

from common import static_paths

#: Number of purges in memory. A response whose request began before the oldest of them is not stored.
REMEMBERED: Final = 4096

#: The limits of one purge: every stored response is compared with each prefix, and URLs are parsed.
MAX_NAMES: Final = {"keys": 10_000, "urls": 1_000, "prefixes": 100}


class PurgeRequestError(ValueError):
    """The body of a purge is invalid. The text says why."""


class Purgeable(Protocol):
    """The properties of a response on which purges depend."""

    @property
    def target(self) -> str:
        """The target URI."""

    @property
    def status(self) -> int:
        """The status code."""

    @property
    def surrogate_keys(self) -> frozenset[str]:
        """The origin's names for it."""


@attrs.frozen
class Purge:
    """A purge of the responses with given surrogate keys, target URIs, or prefixes of target URIs.

    A soft purge makes responses stale instead of removing them.
    """

    keys: frozenset[str] = frozenset()
    urls: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    soft: bool = False

    def concerns(self, response: Purgeable) -> bool:
        """Return whether a response must not be used any more as it is.

        A response like "not found" without keys may be about anything that is purged, so every purge concerns it.
        """
        keys = response.surrogate_keys
        return (
            response.target in self.urls
            or response.target.startswith(self.prefixes)
            or not self.keys.isdisjoint(keys)
            or (response.status != 200 and not keys)
        )


#: The purge that replaces those that are no longer known.
EVERYTHING: Final = Purge(prefixes=("",))


@attrs.frozen
class _PurgeBody:
    keys: list[str] = attrs.field(factory=list)
    urls: list[str] = attrs.field(factory=list)
    prefixes: list[str] = attrs.field(factory=list)
    soft: bool = False


_converter = cattrs.Converter(forbid_extra_keys=True)


@_converter.register_structure_hook
def _strict_str(value: object, _type: type[str]) -> str:
    if not isinstance(value, str) or not value or "\0" in value or not value.isprintable():
        raise ValueError
    return value


@_converter.register_structure_hook
def _strict_bool(value: object, _type: type[bool]) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def parse(document: object, origin: str) -> Purge:
    """Read the JSON document of `POST /-/purge`. Raise `PurgeRequestError`.

    URLs may be full URLs or paths, with the parameters that have an effect; prefixes are paths that begin with a
    slash. Both concern responses of `origin` (scheme, host and port). Keys concern all responses that have them, of
    any origin.
    """
    if not isinstance(document, dict) or any(
        not isinstance(document.get(name, []), list) for name in ("keys", "urls", "prefixes")
    ):
        raise PurgeRequestError(
            "The body has to be a JSON object with the lists keys, urls and prefixes and the boolean soft."
        )
    for name, limit in MAX_NAMES.items():
        if len(document.get(name, ())) > limit:
            raise PurgeRequestError(f"A purge names {limit} {name} at most.")
    try:
        body = _converter.structure(document, _PurgeBody)
    except Exception as error:
        raise PurgeRequestError(
            "The body has to be a JSON object with the lists of strings keys, urls and prefixes and the boolean soft."
        ) from error
    if any(not prefix.startswith("/") for prefix in body.prefixes):
        raise PurgeRequestError("A prefix has to be a path that begins with a slash.")
    return Purge(
        keys=frozenset(body.keys),
        urls=frozenset(origin + _target(url) for url in body.urls),
        prefixes=tuple(origin + prefix for prefix in body.prefixes),
        soft=body.soft,
    )


def _target(url: str) -> str:
    try:
        return static_paths.parse(url).target
    except static_paths.StaticPathError as error:
        raise PurgeRequestError(f"A URL cannot be purged: {error}.") from None


class Ledger:
    """The purges of this edge in their order. `epoch` counts them.

    A response has the epoch at which its origin request began. It may be stored or joined only if no purge since
    then concerns it.
    """

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self._recent: deque[tuple[int, Purge]] = deque(maxlen=REMEMBERED)

    def record(self, epoch: int, purge: Purge) -> None:
        """Add the purge that made `epoch`."""
        self.epoch = epoch
        self._recent.append((epoch, purge))

    def since(self, epoch: int) -> list[Purge] | None:
        """Return the purges after `epoch`, or None if some of them are no longer in memory."""
        if epoch >= self.epoch:
            return []
        if not self._recent or self._recent[0][0] > epoch + 1:
            return None
        return [purge for number, purge in self._recent if number > epoch]

    def is_concerned(self, epoch: int, response: Purgeable) -> bool:
        """Return whether a purge since `epoch` concerns a response, or might."""
        purges = self.since(epoch)
        return purges is None or any(purge.concerns(response) for purge in purges)


#: The number of purges in the file, for processes that look only now and then and for the index, and the bytes of
#: each.
SLOTS: Final = 1024
SLOT_BYTES: Final = 1024
#: Maximum number of bytes of a name, each of which may need two in JSON. For a longer path, its beginning is purged.
LONGEST_NAME: Final = 400

#: Seconds to wait for a file that another process writes when it is opened.
TIMEOUT: Final = 0.01

_MAGIC: Final = b"purges 2"
_EPOCH = struct.Struct("=Q")
_EPOCH_AT: Final = len(_MAGIC)
#: The position of the inode number of the index.
_INDEX_AT: Final = _EPOCH_AT + _EPOCH.size
_HEADER_BYTES: Final = 4096
_SLOT = struct.Struct("=QII")  # number, bytes, CRC-32 of both
#: Bytes of a slot for names. The rest is the document around them.
_CONTENT_BYTES: Final = SLOT_BYTES - _SLOT.size - len(b'{"keys":[],"urls":[],"prefixes":[],"soft":false}')

Numbered = tuple[int, Purge]


class PurgeFile:
    """The open file at `path`. A missing file is created, beginning with the number `first`. Afterwards, its number is
    above `last`. The constructor raises `OSError`."""

    def __init__(self, path: Path, last: int, first: int) -> None:
        self._path = str(path)
        with contextlib.ExitStack() as stack:
            self.descriptor = _open(path, max(last + 1, first))
            stack.callback(os.close, self.descriptor)
            self._identity = _identity(os.fstat(self.descriptor))
            self._map = mmap.mmap(self.descriptor, self._identity[2], access=mmap.ACCESS_READ)
            stack.callback(self._map.close)
            self._slots = (self._identity[2] - _HEADER_BYTES) // SLOT_BYTES
            self._raise_above(last)
            stack.pop_all()

    def close(self) -> None:
        self._map.close()
        os.close(self.descriptor)

    def is_whole(self) -> bool:
        """Return whether the file has its full length, because reading missing bytes would kill the process."""
        return self._map.size() == self._identity[2]

    def is_current(self) -> bool:
        """Return whether `path` still names this file."""
        try:
            return _identity(os.stat(self._path)) == self._identity  # noqa: PTH116 - called often
        except OSError:
            return False

    @property
    def epoch(self) -> int:
        return int(_EPOCH.unpack_from(self._map, _EPOCH_AT)[0])

    @property
    def index(self) -> int:
        return int(_EPOCH.unpack_from(self._map, _INDEX_AT)[0])

    @index.setter
    def index(self, inode: int) -> None:
        os.pwrite(self.descriptor, _EPOCH.pack(inode), _INDEX_AT)

    def _raise_above(self, last: int) -> None:
        """Raise the number above those of an earlier file, which must not be used again. Raise `OSError`."""
        with self._exclusive(timeout=TIMEOUT) as is_ours:
            if not is_ours:
                raise BlockingIOError
            newest = max(self._slot(number)[0] for number in range(self._slots))
            epoch = max(self.epoch, last + 1, newest)
            if epoch != self.epoch:
                os.pwrite(self.descriptor, _EPOCH.pack(epoch), _EPOCH_AT)

    def since(self, epoch: int) -> list[Numbered]:
        current = self.epoch
        numbered: list[Numbered] = []
        for number in range(epoch + 1, current + 1) if current - epoch <= self._slots else ():
            stored_number, content = self._slot(number)
            if stored_number != number:
                break
            numbered.append((number, _purge(content)))
        return numbered if len(numbered) == current - epoch else [(current, EVERYTHING)]

    def add(self, purge: Purge) -> bool:
        """Record a purge. Return False while another process writes. Raise `OSError`."""
        entries = _entries(purge)
        with self._exclusive() as is_ours:
            if not is_ours:
                return False
            if len(entries) > self._slots // 2:
                entries = [_content(EVERYTHING)]
            epoch = self.epoch
            for content in entries:
                epoch += 1
                head = _SLOT.pack(epoch, len(content), _checksum(epoch, content))
                os.pwrite(self.descriptor, head + content, self._offset(epoch))
            os.pwrite(self.descriptor, _EPOCH.pack(epoch), _EPOCH_AT)
        return True

    def _slot(self, number: int) -> tuple[int, bytes]:
        """Return the purge in the slot of `number` and its number, which is 0 if the slot cannot be read."""
        offset = self._offset(number)
        stored_number, length, checksum = _SLOT.unpack_from(self._map, offset)
        content = self._map[offset + _SLOT.size : offset + min(_SLOT.size + length, SLOT_BYTES)]
        return (stored_number, content) if _checksum(stored_number, content) == checksum else (0, b"")

    def _offset(self, number: int) -> int:
        return _HEADER_BYTES + number % self._slots * SLOT_BYTES

    @contextlib.contextmanager
    def _exclusive(self, timeout: float = 0.0) -> Iterator[bool]:
        """Yield whether no other process writes during the block, after waiting for up to `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not _is_locked(self.descriptor):
            if time.monotonic() >= deadline:
                yield False
                return
            time.sleep(0.0005)
        try:
            yield True
        finally:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path, first: int) -> int:
    while True:
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            if os.pread(descriptor, len(_MAGIC), 0) == _MAGIC and _is_whole(os.fstat(descriptor).st_size):
                return descriptor
            os.close(descriptor)
            path.unlink(missing_ok=True)
        _make(path, first)


def _make(path: Path, first: int) -> None:
    """Create the file with all of its space, unless another process has just done so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".purges-")
    try:
        os.posix_fallocate(descriptor, 0, _HEADER_BYTES + SLOTS * SLOT_BYTES)
        os.pwrite(descriptor, _MAGIC + _EPOCH.pack(first), 0)
        os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(name, path)
    finally:
        os.close(descriptor)
        Path(name).unlink()


def _is_whole(size: int) -> bool:
    return size > _HEADER_BYTES and (size - _HEADER_BYTES) % SLOT_BYTES == 0


def _identity(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_ino, stat.st_dev, stat.st_size


def _checksum(number: int, content: bytes) -> int:
    return zlib.crc32(content, number & 0xFFFF_FFFF)


def _entries(purge: Purge) -> list[bytes]:
    """Split a purge into pieces that fit into slots. A name that is too long purges more than requested, never less."""
    if any(len(key.encode()) > LONGEST_NAME for key in purge.keys):
        return [_content(EVERYTHING)]
    exact = {url for url in purge.urls if len(url.encode()) <= LONGEST_NAME}
    prefixes = [*purge.prefixes, *(purge.urls - exact)]
    names = [
        *(("keys", key) for key in sorted(purge.keys)),
        *(("urls", url) for url in sorted(exact)),
        *(("prefixes", prefix.encode()[:LONGEST_NAME].decode(errors="ignore")) for prefix in prefixes),
    ]
    entries: list[bytes] = []
    document: dict[str, list[str]] = {}
    available = _CONTENT_BYTES
    for kind, name in names:
        needed = len(orjson.dumps(name)) + 1
        if needed > available:
            entries.append(orjson.dumps({**document, "soft": purge.soft}))
            document, available = {}, _CONTENT_BYTES
        document.setdefault(kind, []).append(name)
        available -= needed
    return [*entries, orjson.dumps({**document, "soft": purge.soft})]


def _content(purge: Purge) -> bytes:
    (content,) = _entries(purge)
    return content


def _purge(content: bytes) -> Purge:
    document = orjson.loads(content)
    return Purge(
        keys=frozenset(document.get("keys", ())),
        urls=frozenset(document.get("urls", ())),
        prefixes=tuple(document.get("prefixes", ())),
        soft=document["soft"],
    )


#: Seconds between two attempts to create a file that could not be created.
RETRY_SECONDS: Final = 1.0
#: Seconds between two checks whether the path still names the file. A check costs a tenth of a hit.
LOOK_SECONDS: Final = 0.05


class NoLogError(OSError):
    """The file does not exist and could not be created."""

    def __init__(self) -> None:
        super().__init__(errno.ENOENT, "there is no purge log")


class OldLogError(OSError):
    """There is another file now, which the calling thread has not noticed yet."""

    def __init__(self) -> None:
        super().__init__(errno.ESTALE, "there is another purge log")


class PurgeLog:
    """The numbered purges in the file at `path`. `clock` returns seconds since 1970.

    Use it in one thread that reads and adds, and in one more that only reads.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._file: PurgeFile | None = None
        self._retry_at = self._look_at = self._confirmed_until = 0.0
        self._lock = threading.Lock()

    def epoch(self, last: int) -> int:
        """Return a number that grows with each purge of any process. `last` is its value when the caller last
        asked.

        Without a file, no process would notice others' purges, so the number grows with each call.
        """
        file = self._file
        if file is not None and file.is_whole() and (time.monotonic() < self._look_at or self._check(file)):
            epoch = file.epoch
            if epoch >= last:
                return epoch
        return self._reopen(last)

    def since(self, epoch: int) -> list[Numbered]:
        """Return the purges after `epoch` in their order, or one of everything if some are no longer known."""
        with self._lock:
            return [(epoch + 1, EVERYTHING)] if self._file is None else self._file.since(epoch)

    def add(self, purge: Purge, last: int) -> bool:
        """Announce a purge to all processes. Return False while another process adds one. Raise `OSError`. `last`
        as for `epoch`."""
        self._retry_at = self._look_at = 0.0
        self.epoch(last)
        with self._lock:
            if self._file is None:
                raise NoLogError
            return self._file.add(purge) and self._file.is_current()

    @property
    def unknown_for(self) -> float:
        """Return the seconds until all processes have noticed that the file was replaced or removed."""
        return max(0.0, self._confirmed_until - time.monotonic())

    def sync(self) -> None:
        """Return when all purges survive a crash of the machine. Raise `OSError`."""
        with self._lock:
            descriptor = None if self._file is None else os.dup(self._file.descriptor)
        if descriptor is not None:
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)

    def discard(self) -> None:
        """Remove the file, which all processes notice: everything is purged. Raise `OSError`."""
        self.close()
        self._confirmed_until = time.monotonic() + LOOK_SECONDS
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
            directory = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    @property
    def index(self) -> int:
        """Return the inode number of the file that is the index of this directory, or 0 if there is none. Raise
        `OSError` if there is no log."""
        with self._lock:
            if self._file is None:
                raise NoLogError
            return self._file.index

    @index.setter
    def index(self, inode: int) -> None:
        with self._lock:
            if self._file is None:
                raise NoLogError
            self._file.index = inode

    def check_current(self) -> None:
        """Raise `OldLogError` if the path names another file, because this file's entry for the index is then
        outdated."""
        with self._lock:
            if self._file is not None and not self._file.is_current():
                raise OldLogError

    def close(self) -> None:
        """Close the file. The next request for the epoch opens it again."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                file.close()

    def _check(self, file: PurgeFile) -> bool:
        self._look_at = time.monotonic() + LOOK_SECONDS
        return file.is_current()

    def _reopen(self, last: int) -> int:
        file = self._file
        is_damaged = file is not None and file.is_current()
        self.close()
        if time.monotonic() < self._retry_at:
            return last + 1
        try:
            if is_damaged:
                self._path.unlink(missing_ok=True)
            new = PurgeFile(self._path, last, int(self._clock() * 1e6))
        except OSError:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            return last + 1
        self._look_at = self._confirmed_until = time.monotonic() + LOOK_SECONDS
        with self._lock:
            self._file = new
        return new.epoch
