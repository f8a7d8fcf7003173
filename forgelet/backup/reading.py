"""Reading a backup: whether it can be restored at all, and the rows of one table after the other."""

import re
import zlib
from collections.abc import Iterator
from typing import IO

import attrs

from api_server.state.migrate import known_migrations
from api_server.state.secrets import KEY_FILE as SECRET_KEY
from common.mistakes import Mistake
from forgelet.backup import form
from forgelet.backup.form import PIECE, Member, Reader
from forgelet.backup.sealing import Seal

_PIECE_OF_TABLE = re.compile(r"(?P<table>\w+)\.(?P<number>\d{6})\.gz")


def opened(stream: IO[bytes], passphrase: str | None) -> tuple[Reader, Seal | None, dict[str, str]]:
    """The backup, its seal, and with the passphrase the small files that are sealed in it.

    Raises `Mistake` where this program cannot restore it, or the passphrase is another one.
    """
    reader = Reader(stream)
    given = reader.header.get("format")
    if not isinstance(given, int) or given > form.FORMAT:
        raise Mistake(
            f"The backup is of format {given}, this program knows {form.FORMAT}: restore it with forgelet"
            f" {reader.header.get('forgelet')} or newer"
        )
    if newer := sorted(set(reader.header.get("migrations", ())) - known_migrations()):
        raise Mistake(
            f"The backup is newer than this program, its database has {newer[-1]}: restore it with forgelet"
            f" {reader.header.get('forgelet')} or newer"
        )
    if passphrase is None:
        return reader, None, {}
    seal = Seal.again(passphrase, reader.header.get("key", {}))
    files = dict(seal.open(str(reader.header.get("sealed"))).get("files", {}))
    if SECRET_KEY not in files or not all(map(form.is_plain, files)):
        raise form.damaged("its sealed files are not those of an instance")
    return reader, seal, files


@attrs.frozen
class Verified:
    """A whole backup: when and by which version it was made, how much it has; whether the passphrase was tried."""

    made_at: str
    forgelet: str
    projects: int
    objects: int
    rows: int
    missing: list[str]
    passphrase_fits: bool | None


def verify(stream: IO[bytes], passphrase: str | None) -> Verified:
    """Reads all of it. Raises `Mistake` where it could not be restored."""
    reader, seal, _ = opened(stream, passphrase)
    for member in reader.members():
        if member.part == form.DATABASE and member.name.endswith(".gz"):
            for _ in unpacked(member):
                continue
    reader.check(seal)
    told = reader.manifest
    return Verified(
        str(reader.header.get("made_at")),
        str(reader.header.get("forgelet")),
        told["projects"],
        told["objects"],
        sum(told["rows"].values()),
        told["missing"],
        None if seal is None else True,
    )


def unpacked(member: Member) -> Iterator[bytes]:
    """What is in one piece of a table, little by little."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        while piece := member.content.read(PIECE):
            while piece:
                yield unpacker.decompress(piece, PIECE)
                piece = unpacker.unconsumed_tail
        yield unpacker.flush()
    except zlib.error:
        raise form.damaged(f"{member.name} cannot be unpacked") from None
    if not unpacker.eof:
        raise form.damaged(f"{member.name} is too short")


class Members:
    """The members of a backup in their order, of which the next one can be looked at before it is taken."""

    def __init__(self, reader: Reader) -> None:
        self._members = reader.members()
        self._next = next(self._members, None)

    @property
    def next(self) -> Member | None:
        return self._next

    def skip(self) -> None:
        self._next = next(self._members, None)

    def rows_of_next_table(self) -> "tuple[str, Rows] | None":
        """The table whose rows come next, and these; None where no table comes."""
        table = _table_of(self._next)
        return None if table is None else (table, Rows(self, table))


class Rows:
    """The rows of one table, as COPY reads them."""

    def __init__(self, members: Members, table: str) -> None:
        self._pieces = self._all(members, table)
        self._left = b""

    @staticmethod
    def _all(members: Members, table: str) -> Iterator[bytes]:
        while members.next is not None and _table_of(members.next) == table:
            yield from unpacked(members.next)
            members.skip()

    def read(self, size: int = -1) -> bytes:
        wanted = PIECE if size < 0 else size
        while len(self._left) < wanted:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._left += piece
        given, self._left = self._left[:wanted], self._left[wanted:]
        return given


def _table_of(member: Member | None) -> str | None:
    if member is None or member.part != form.DATABASE:
        return None
    match = _PIECE_OF_TABLE.fullmatch(member.path)
    return match["table"] if match is not None else None
