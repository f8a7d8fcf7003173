"""The form of a backup: one tar file, written and read as a stream.

    header.json               format and versions, and the secret key, sealed
    database/<table>.<n>.gz   PostgreSQL's COPY text, in pieces
    repositories/<id>/...     files of bare repositories
    objects/<key>             stored objects
    manifest.json             the expected content with a digest of each part, signed; a file without it was cut off

A part is a folder at the top; its digest is SHA-256 over the name, size and content of its members, in their order.
A passphrase encrypts the secret key and authenticates the rest (`Seal`).
"""

import base64
import contextlib
import hashlib
import hmac
import io
import os
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any, Protocol

import attrs
import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from api_server.state.migrate import BEFORE_BASELINE, known_migrations
from api_server.state.secrets import KEY_FILE as SECRET_KEY
from common.config_errors import ConfigError

#: A derivation takes about a third of a second and 128 MiB.
_COST = {"n": 2**17, "r": 8, "p": 1}
_MAX_MEMORY = 2**30
_SALT_BYTES = 16
_NONCE_BYTES = 12


@attrs.frozen
class Seal:
    """Two keys that are derived from a passphrase: one for encryption, one for authentication."""

    #: The parameters of the derivation, which the backup contains unencrypted.
    derivation: Mapping[str, Any]
    _encrypting: bytes = attrs.field(repr=False)
    _authenticating: bytes = attrs.field(repr=False)

    @classmethod
    def new(cls, passphrase: str) -> "Seal":
        salt = base64.b64encode(os.urandom(_SALT_BYTES)).decode()
        return cls.again(passphrase, {"name": "scrypt", **_COST, "salt": salt})

    @classmethod
    def again(cls, passphrase: str, derivation: Mapping[str, Any]) -> "Seal":
        """Derive the keys again with the parameters in a backup. Raise `ConfigError` if these are not supported."""
        try:
            cost = {name: int(derivation[name]) for name in _COST}
            if derivation["name"] != "scrypt" or 128 * cost["n"] * cost["r"] * cost["p"] > _MAX_MEMORY:
                raise ValueError
            salt = base64.b64decode(derivation["salt"])
            keys = Scrypt(salt=salt, length=64, **cost).derive(passphrase.encode())
        except (KeyError, TypeError, ValueError):
            raise ConfigError("The backup is damaged: it does not say how its key is sealed") from None
        return cls(derivation, keys[:32], keys[32:])

    def close(self, values: Mapping[str, Any]) -> str:
        nonce = os.urandom(_NONCE_BYTES)
        sealed = AESGCM(self._encrypting).encrypt(nonce, orjson.dumps(values), None)
        return base64.b64encode(nonce + sealed).decode()

    def open(self, sealed: str) -> dict[str, Any]:
        """Decrypt and return sealed values. Raise `ConfigError` if the passphrase is wrong."""
        try:
            data = base64.b64decode(sealed)
            text = AESGCM(self._encrypting).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], None)
        except (InvalidTag, ValueError):
            raise ConfigError(
                "The passphrase is not the one that the backup was made with (or its beginning is damaged)"
            ) from None
        return dict(orjson.loads(text))

    def signature(self, *texts: bytes) -> str:
        """Return the signature of `texts`, which can only be computed with the passphrase."""
        mac = hmac.new(self._authenticating, digestmod="sha256")
        for text in texts:
            mac.update(len(text).to_bytes(8, "big") + text)
        return mac.hexdigest()

    def is_signature(self, signature: str, *texts: bytes) -> bool:
        return hmac.compare_digest(signature.encode(), self.signature(*texts).encode())


#: The version of the form. Increase it if older programs cannot read new backups.
FORMAT = 1
HEADER, MANIFEST = "header.json", "manifest.json"
DATABASE, REPOSITORIES, OBJECTS = PARTS = ("database", "repositories", "objects")
_LARGEST_DOCUMENT = 64 * 2**20
PIECE = 1024 * 1024
CUT_OFF = "The backup is cut off: it does not end as a backup does, take another one"


def damaged(location: str) -> ConfigError:
    return ConfigError(f"The backup is damaged ({location}): take another one")


class Source(Protocol):
    """A source of bytes that is read once, from beginning to end."""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes, fewer only at the end. Without `size`, return all."""
        ...


@attrs.define
class Part:
    """The number, size and digest of the members of a part that have been written or read so far."""

    members: int = 0
    size: int = 0
    _digest: Any = attrs.field(factory=hashlib.sha256)

    def begin(self, name: str, size: int) -> None:
        self.members += 1
        self.size += size
        self._digest.update(f"{name}\0{size}\0".encode(errors="surrogateescape"))

    def add(self, chunk: bytes) -> None:
        self._digest.update(chunk)

    def as_manifest(self) -> dict[str, Any]:
        return {"members": self.members, "bytes": self.size, "sha256": self._digest.hexdigest()}


class Writer:
    """A writer of the members of a backup to a stream."""

    def __init__(self, stream: IO[bytes]) -> None:
        # Mode `w|` would write once more if it is not closed.
        self._tar = tarfile.TarFile(fileobj=_Counted(stream), mode="w", format=tarfile.PAX_FORMAT)  # type: ignore[arg-type]
        self._tar.copybufsize = PIECE  # type: ignore[attr-defined]
        self.parts = {name: Part() for name in PARTS}

    def add(self, name: str, content: bytes) -> None:
        self.copy(name, len(content), io.BytesIO(content))

    def copy(self, name: str, size: int, source: Source) -> None:
        """Add a member with `size` bytes of `source`. Raise `OSError` if the source has fewer."""
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
    """A stream that counts the written bytes, because tarfile asks for the position."""

    _stream: IO[bytes]
    _position: int = 0

    def write(self, chunk: bytes) -> int:
        self._stream.write(chunk)
        self._position += len(chunk)
        return len(chunk)

    def tell(self) -> int:
        return self._position


@attrs.frozen
class _Watched:
    """A source that adds all bytes that are read to the digest of a part."""

    source: Source
    part: Part

    def read(self, size: int = -1) -> bytes:
        chunk = self.source.read(size)
        self.part.add(chunk)
        return chunk


@attrs.frozen
class _Content:
    """The content of a member. Reading raises `ConfigError` if the backup is cut off."""

    _file: Source

    def read(self, size: int = -1) -> bytes:
        with _readable():
            return self._file.read(size)


@attrs.frozen
class Member:
    """A member of a backup. Its content can be read until the next member is requested."""

    name: str
    size: int
    content: Source

    @property
    def part(self) -> str:
        return self.name.partition("/")[0]

    @property
    def path(self) -> str:
        """The name within the part."""
        return self.name.partition("/")[2]


class Reader:
    """A reader of a backup's members in order. It raises `ConfigError` if the stream is no backup, damaged or cut
    off."""

    def __init__(self, stream: IO[bytes]) -> None:
        with _readable():
            try:
                self._tar = tarfile.open(fileobj=stream, mode="r|", bufsize=PIECE)  # noqa: SIM115
            except tarfile.ReadError:
                raise ConfigError("This is no backup of forgelet") from None
        self.parts = {name: Part() for name in PARTS}
        first = self._next()
        if first is None or first.name != HEADER:
            raise ConfigError("This is no backup of forgelet")
        self.header_text = _document(first)
        self.header: Mapping[str, Any] = _parsed(self.header_text)
        #: The expected content of the backup, which is known after the last member.
        self.manifest: Mapping[str, Any] = {}
        self._manifest_text = b""
        self._signature = ""

    def members(self) -> Iterator[Member]:
        """Yield all members between header and manifest. Each is read to its end before the next one."""
        while (member := self._next()) is not None:
            if member.name == MANIFEST:
                signed = _parsed(_document(member))
                self._manifest_text = str(signed.get("manifest")).encode()
                self._signature = str(signed.get("signature"))
                self.manifest = _parsed(self._manifest_text)
                return
            part = self.parts.get(member.part)
            if part is None or not is_plain(member.name):
                raise damaged(f"{member.name!r} does not belong there")
            part.begin(member.name, member.size)
            content = _Watched(member.content, part)
            yield attrs.evolve(member, content=content)
            while content.read(PIECE):
                pass
        raise ConfigError(CUT_OFF)

    def check(self, seal: Seal | None) -> None:
        """Compare the parts with the manifest, after the last member. With a seal, also check the manifest's signature.
        Raise `ConfigError` if something does not match."""
        parts = self.manifest.get("parts", {})
        for name, part in self.parts.items():
            if parts.get(name) != part.as_manifest():
                raise damaged(f"its {name} differs from what was written")
        if seal is not None and not seal.is_signature(self._signature, self.header_text, self._manifest_text):
            raise damaged("it was changed by somebody who has not its passphrase")

    def _next(self) -> Member | None:
        with _readable():
            entry = self._tar.next()
            if entry is None:
                return None
            is_file = entry.isreg() and not entry.issparse()  # a sparse file may claim any size
            content = self._tar.extractfile(entry) if is_file else None
            if content is None:
                raise damaged(f"{entry.name!r} is no file")
            return Member(entry.name, entry.size, _Content(content))


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, ValueError):  # ValueError: invalid numbers in headers
        raise ConfigError(CUT_OFF) from None


def is_plain(name: str) -> bool:
    """Return whether a file of this name stays below the folder in which it is created."""
    return not {"", ".", ".."} & set(name.split("/")) and "\0" not in name


def _document(member: Member) -> bytes:
    if member.size > _LARGEST_DOCUMENT:
        raise damaged(f"{member.name} is too large")
    return member.content.read()


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise damaged("its header or manifest cannot be read")
    return document


_PIECE_OF_TABLE = re.compile(r"(?P<table>\w+)\.(?P<number>\d{6})\.gz")


def opened(stream: IO[bytes], passphrase: str | None) -> tuple[Reader, Seal | None, dict[str, str]]:
    """Return the reader of a backup and, with the passphrase, its seal and the small files that are sealed in it.

    Raise `ConfigError` if this program cannot restore the backup, or if the passphrase is wrong.
    """
    reader = Reader(stream)
    version = reader.header.get("format")
    if not isinstance(version, int) or version > FORMAT:
        raise ConfigError(
            f"The backup is of format {version}, this program knows {FORMAT}: restore it with forgelet"
            f" {reader.header.get('forgelet')} or newer"
        )
    migrations = set(reader.header.get("migrations", ()))
    if BEFORE_BASELINE in migrations:
        raise ConfigError(
            "The backup is of a commit before version 1.0.0: restore it with that commit, start this version on the"
            " database, and back it up again"
        )
    if newer := sorted(migrations - known_migrations()):
        raise ConfigError(
            f"The backup is newer than this program, its database has {newer[-1]}: restore it with forgelet"
            f" {reader.header.get('forgelet')} or newer"
        )
    if passphrase is None:
        return reader, None, {}
    seal = Seal.again(passphrase, reader.header.get("key", {}))
    files = dict(seal.open(str(reader.header.get("sealed"))).get("files", {}))
    if SECRET_KEY not in files or not all(map(is_plain, files)):
        raise damaged("its sealed files are not those of an instance")
    return reader, seal, files


@attrs.frozen
class Verified:
    """The result of checking a complete backup. `passphrase_fits` is None if no passphrase was given."""

    made_at: str
    forgelet: str
    projects: int
    objects: int
    rows: int
    missing: list[str]
    passphrase_fits: bool | None


def verify(stream: IO[bytes], passphrase: str | None) -> Verified:
    """Read the whole backup and describe it. Raise `ConfigError` if it could not be restored."""
    reader, seal, _ = opened(stream, passphrase)
    for member in reader.members():
        if member.part == DATABASE and member.name.endswith(".gz"):
            for _ in unpacked(member):
                continue
    reader.check(seal)
    manifest = reader.manifest
    return Verified(
        str(reader.header.get("made_at")),
        str(reader.header.get("forgelet")),
        manifest["projects"],
        manifest["objects"],
        sum(manifest["rows"].values()),
        manifest["missing"],
        None if seal is None else True,
    )


def unpacked(member: Member) -> Iterator[bytes]:
    """Yield the unpacked content of one piece of a table, in chunks."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        while chunk := member.content.read(PIECE):
            while chunk:
                yield unpacker.decompress(chunk, PIECE)
                chunk = unpacker.unconsumed_tail
        yield unpacker.flush()
    except zlib.error:
        raise damaged(f"{member.name} cannot be unpacked") from None
    if not unpacker.eof:
        raise damaged(f"{member.name} is too short")


class Members:
    """The members of a backup in order. `next` is the next one, until `skip` is called."""

    def __init__(self, reader: Reader) -> None:
        self._members = reader.members()
        self._next = next(self._members, None)

    @property
    def next(self) -> Member | None:
        return self._next

    def skip(self) -> None:
        self._next = next(self._members, None)

    def rows_of_next_table(self) -> "tuple[str, Rows] | None":
        """Return the next table and its rows, or None if the next member is not part of a table."""
        table = _table_of(self._next)
        return None if table is None else (table, Rows(self, table))


class Rows:
    """The rows of one table as a file that COPY reads."""

    def __init__(self, members: Members, table: str) -> None:
        self._chunks = self._all(members, table)
        self._buffer = b""

    @staticmethod
    def _all(members: Members, table: str) -> Iterator[bytes]:
        while members.next is not None and _table_of(members.next) == table:
            yield from unpacked(members.next)
            members.skip()

    def read(self, size: int = -1) -> bytes:
        target = PIECE if size < 0 else size
        while len(self._buffer) < target:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._buffer += chunk
        chunk_read, self._buffer = self._buffer[:target], self._buffer[target:]
        return chunk_read


def _table_of(member: Member | None) -> str | None:
    if member is None or member.part != DATABASE:
        return None
    match = _PIECE_OF_TABLE.fullmatch(member.path)
    return match["table"] if match is not None else None
