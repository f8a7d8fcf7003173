"""The form of a backup: one tar file, written and read as a stream.

    header.json               format and versions, and the secret key, sealed
    database/<table>.<n>.gz   PostgreSQL's COPY text, in pieces
    repositories/<id>/...     files of bare repositories
    objects/<key>             stored objects
    manifest.json             what there has to be, with a digest of each part, signed; a file without it was cut off

A part is a folder at the top; its digest is SHA-256 over the name, size and content of its members, in their order.
"""

import contextlib
import hashlib
import io
import tarfile
from collections.abc import Iterator, Mapping
from typing import IO, Any, Protocol

import attrs
import orjson

from common.mistakes import Mistake
from forgelet.backup.sealing import Seal

#: Goes up when older programs could no longer read what is written.
FORMAT = 1
HEADER, MANIFEST = "header.json", "manifest.json"
DATABASE, REPOSITORIES, OBJECTS = PARTS = ("database", "repositories", "objects")
_LARGEST_DOCUMENT = 64 * 2**20
PIECE = 1024 * 1024
CUT_OFF = "The backup is cut off: it does not end as a backup does, take another one"


def damaged(where: str) -> Mistake:
    return Mistake(f"The backup is damaged ({where}): take another one")


class Source(Protocol):
    """Bytes that are read once, from the beginning to the end."""

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes, fewer only at the end; all without it."""
        ...


@attrs.define
class Part:
    """What was written to a part, or read of it."""

    members: int = 0
    size: int = 0
    _digest: Any = attrs.field(factory=hashlib.sha256)

    def begin(self, name: str, size: int) -> None:
        self.members += 1
        self.size += size
        self._digest.update(f"{name}\0{size}\0".encode(errors="surrogateescape"))

    def add(self, piece: bytes) -> None:
        self._digest.update(piece)

    def told(self) -> dict[str, Any]:
        return {"members": self.members, "bytes": self.size, "sha256": self._digest.hexdigest()}


class Writer:
    """Writes members to a stream."""

    def __init__(self, stream: IO[bytes]) -> None:
        # Not mode `w|`: such a one writes once more when it is given up.
        self._tar = tarfile.TarFile(fileobj=_Counted(stream), mode="w", format=tarfile.PAX_FORMAT)  # type: ignore[arg-type]
        self._tar.copybufsize = PIECE  # type: ignore[attr-defined]
        self.parts = {name: Part() for name in PARTS}

    def add(self, name: str, content: bytes) -> None:
        self.copy(name, len(content), io.BytesIO(content))

    def copy(self, name: str, size: int, source: Source) -> None:
        """Adds `size` bytes of `source`. Raises OSError where it has fewer."""
        part = self.parts.get(name.partition("/")[0])
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = size, 0o600
        if part is not None:
            part.begin(name, size)
            source = _Watched(source, part)
        self._tar.addfile(entry, source)

    def close(self) -> None:
        self._tar.close()


@attrs.define
class _Counted:
    """A stream that knows how much was written to it, as tarfile asks."""

    _stream: IO[bytes]
    _written: int = 0

    def write(self, piece: bytes) -> int:
        self._stream.write(piece)
        self._written += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._written


@attrs.frozen
class _Watched:
    """Tells a part of all that is read through it."""

    source: Source
    part: Part

    def read(self, size: int = -1) -> bytes:
        piece = self.source.read(size)
        self.part.add(piece)
        return piece


@attrs.frozen
class _Content:
    """What is read of a member, whoever reads it. Raises `Mistake` where the backup is cut off."""

    _file: Source

    def read(self, size: int = -1) -> bytes:
        with _readable():
            return self._file.read(size)


@attrs.frozen
class Member:
    """A member of a backup; its content is there until the next one is asked for."""

    name: str
    size: int
    content: Source

    @property
    def part(self) -> str:
        return self.name.partition("/")[0]

    @property
    def path(self) -> str:
        """Its name within the part."""
        return self.name.partition("/")[2]


class Reader:
    """Reads the members of a stream in their order. Raises `Mistake` where it is no backup, damaged or cut off."""

    def __init__(self, stream: IO[bytes]) -> None:
        with _readable():
            try:
                self._tar = tarfile.open(fileobj=stream, mode="r|", bufsize=PIECE)  # noqa: SIM115
            except tarfile.ReadError:
                raise Mistake("This is no backup of forgelet") from None
        self.parts = {name: Part() for name in PARTS}
        first = self._next()
        if first is None or first.name != HEADER:
            raise Mistake("This is no backup of forgelet")
        self.header_text = _document(first)
        self.header: Mapping[str, Any] = _parsed(self.header_text)
        #: After the last member: what there had to be.
        self.manifest: Mapping[str, Any] = {}
        self._manifest_text = b""
        self._signature = ""

    def members(self) -> Iterator[Member]:
        """All between header and manifest, each read to its end before the next one."""
        while (found := self._next()) is not None:
            if found.name == MANIFEST:
                signed = _parsed(_document(found))
                self._manifest_text = str(signed.get("manifest")).encode()
                self._signature = str(signed.get("signature"))
                self.manifest = _parsed(self._manifest_text)
                return
            part = self.parts.get(found.part)
            if part is None or not is_plain(found.name):
                raise damaged(f"{found.name!r} does not belong there")
            part.begin(found.name, found.size)
            content = _Watched(found.content, part)
            yield attrs.evolve(found, content=content)
            while content.read(PIECE):
                pass
        raise Mistake(CUT_OFF)

    def check(self, seal: Seal | None) -> None:
        """After the last member: each part is what the manifest says, and with the passphrase's seal, that what it says
        was written by whoever had that. Raises `Mistake`."""
        told = self.manifest.get("parts", {})
        for name, part in self.parts.items():
            if told.get(name) != part.told():
                raise damaged(f"its {name} is not what was written")
        if seal is not None and not seal.is_signature(self._signature, self.header_text, self._manifest_text):
            raise damaged("it was changed by somebody who has not its passphrase")

    def _next(self) -> Member | None:
        with _readable():
            entry = self._tar.next()
            if entry is None:
                return None
            is_file = entry.isreg() and not entry.issparse()  # a sparse one may say any size
            content = self._tar.extractfile(entry) if is_file else None
            if content is None:
                raise damaged(f"{entry.name!r} is no file")
            return Member(entry.name, entry.size, _Content(content))


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, ValueError):  # ValueError: numbers in its headers that are none
        raise Mistake(CUT_OFF) from None


def is_plain(name: str) -> bool:
    """Whether `name` stays below the folder that it is put into."""
    return not {"", ".", ".."} & set(name.split("/")) and "\0" not in name


def _document(member: Member) -> bytes:
    if member.size > _LARGEST_DOCUMENT:
        raise damaged(f"{member.name} is too large")
    return member.content.read()


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise damaged("its header or manifest cannot be read")
    return found
