"""One file of purges: a counter and a place for each of the newest, which processes write in turn and map to read."""

import contextlib
import fcntl
import mmap
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import orjson

from storage_edge.tiers.purges import EVERYTHING, Purge

#: Purges that are kept, for processes that look but now and then and for the index; and bytes of each.
SLOTS: Final = 1024
SLOT_BYTES: Final = 1024
#: Bytes of one name, of which each may need two in JSON; of longer paths the beginning is purged.
LONGEST_NAME: Final = 400

#: Seconds for which a file is waited for that another process writes when it is opened.
PATIENCE: Final = 0.01

_MAGIC: Final = b"purges 2"
_EPOCH = struct.Struct("=Q")
_EPOCH_AT: Final = len(_MAGIC)
#: Where it stands which file the index is.
_INDEX_AT: Final = _EPOCH_AT + _EPOCH.size
_HEADER_BYTES: Final = 4096
_SLOT = struct.Struct("=QII")  # number, bytes, CRC-32 of number and bytes
#: What a slot holds of names; the rest is the document around them.
_CONTENT_BYTES: Final = SLOT_BYTES - _SLOT.size - len(b'{"keys":[],"urls":[],"prefixes":[],"soft":false}')

Numbered = tuple[int, Purge]


class PurgeFile:
    """The file at `path`, opened; where there is none it is made, and begins with the number `least`. Its number is
    above `known` afterwards. Raises OSError.
    """

    def __init__(self, path: Path, known: int, least: int) -> None:
        self._path = str(path)
        with contextlib.ExitStack() as opened:
            self.descriptor = _open(path, max(known + 1, least))
            opened.callback(os.close, self.descriptor)
            self._identity = _identity(os.fstat(self.descriptor))
            self._map = mmap.mmap(self.descriptor, self._identity[2], access=mmap.ACCESS_READ)
            opened.callback(self._map.close)
            self._slots = (self._identity[2] - _HEADER_BYTES) // SLOT_BYTES
            self._raise_above(known)
            opened.pop_all()

    def close(self) -> None:
        self._map.close()
        os.close(self.descriptor)

    def is_whole(self) -> bool:
        """Whether the file has not been cut short: the kernel kills whoever reads what is not there any more."""
        return self._map.size() == self._identity[2]

    def is_current(self) -> bool:
        """Whether the path still leads to this file."""
        try:
            return _identity(os.stat(self._path)) == self._identity  # noqa: PTH116 - asked often
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

    def _raise_above(self, known: int) -> None:
        """Another file was here before, whose numbers must not come again. Raises OSError."""
        with self._exclusive(patience=PATIENCE) as is_ours:
            if not is_ours:
                raise BlockingIOError
            newest = max(self._slot(number)[0] for number in range(self._slots))
            epoch = max(self.epoch, known + 1, newest)
            if epoch != self.epoch:
                os.pwrite(self.descriptor, _EPOCH.pack(epoch), _EPOCH_AT)

    def since(self, epoch: int) -> list[Numbered]:
        current = self.epoch
        found: list[Numbered] = []
        for number in range(epoch + 1, current + 1) if current - epoch <= self._slots else ():
            written, content = self._slot(number)
            if written != number:
                break
            found.append((number, _purge(content)))
        return found if len(found) == current - epoch else [(current, EVERYTHING)]

    def add(self, purge: Purge) -> bool:
        """Writes a purge down; False while another process writes. Raises OSError."""
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
        """The purge that is in the place of `number`, and its number; 0 when that cannot be read."""
        offset = self._offset(number)
        written, length, checksum = _SLOT.unpack_from(self._map, offset)
        content = self._map[offset + _SLOT.size : offset + min(_SLOT.size + length, SLOT_BYTES)]
        return (written, content) if _checksum(written, content) == checksum else (0, b"")

    def _offset(self, number: int) -> int:
        return _HEADER_BYTES + number % self._slots * SLOT_BYTES

    @contextlib.contextmanager
    def _exclusive(self, patience: float = 0.0) -> Iterator[bool]:
        """Whether no other process writes meanwhile, which is waited for so many seconds."""
        deadline = time.monotonic() + patience
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


def _open(path: Path, least: int) -> int:
    while True:
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            if os.pread(descriptor, len(_MAGIC), 0) == _MAGIC and _is_whole(os.fstat(descriptor).st_size):
                return descriptor
            os.close(descriptor)
            path.unlink(missing_ok=True)
        _make(path, least)


def _make(path: Path, least: int) -> None:
    """Makes the file with all of its room, unless another process is quicker."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".purges-")
    try:
        os.posix_fallocate(descriptor, 0, _HEADER_BYTES + SLOTS * SLOT_BYTES)
        os.pwrite(descriptor, _MAGIC + _EPOCH.pack(least), 0)
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
    """A purge in pieces that fit into slots; what is too long becomes more than was asked for, never less."""
    if any(len(key.encode()) > LONGEST_NAME for key in purge.keys):
        return [_content(EVERYTHING)]
    short = {url for url in purge.urls if len(url.encode()) <= LONGEST_NAME}
    prefixes = [*purge.prefixes, *(purge.urls - short)]
    names = [
        *(("keys", key) for key in sorted(purge.keys)),
        *(("urls", url) for url in sorted(short)),
        *(("prefixes", prefix.encode()[:LONGEST_NAME].decode(errors="ignore")) for prefix in prefixes),
    ]
    entries: list[bytes] = []
    document: dict[str, list[str]] = {}
    room = _CONTENT_BYTES
    for kind, name in names:
        needed = len(orjson.dumps(name)) + 1
        if needed > room:
            entries.append(orjson.dumps({**document, "soft": purge.soft}))
            document, room = {}, _CONTENT_BYTES
        document.setdefault(kind, []).append(name)
        room -= needed
    return [*entries, orjson.dumps({**document, "soft": purge.soft})]


def _content(purge: Purge) -> bytes:
    (content,) = _entries(purge)
    return content


def _purge(content: bytes) -> Purge:
    kept = orjson.loads(content)
    return Purge(
        keys=frozenset(kept.get("keys", ())),
        urls=frozenset(kept.get("urls", ())),
        prefixes=tuple(kept.get("prefixes", ())),
        soft=kept["soft"],
    )
