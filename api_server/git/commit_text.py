"""The text of a commit: who wrote it and when, and its message, decoded and encoded here only.

git keeps bytes. They are read as leniently as git reads them: with a header `encoding`, without one though they are not
UTF-8, with dates as old tools wrote them. The server writes UTF-8 only, so its own commits have no header `encoding`.
"""

import re
from encodings import normalize_encoding
from encodings.aliases import aliases

import attrs
import pygit2
from pygit2.enums import ObjectType

from api_server.git.repositories import Repository

#: Python's codecs that decode text in linear time; `punycode` takes quadratic time, `idna` has errors of its own.
_CODECS = frozenset(
    name
    for name in {*aliases.values(), "cp737", "cp874", "iso8859_1", "koi8_t", "koi8_u"}
    if re.match("ascii|big5|cp|euc|gb|hp_|iso|johab|koi8|kz|latin|mac|ptcp|shift|tis|utf_8", name)
)
#: So many bytes that are not in their encoding are read one by one.
_MOST_REPAIRED = 32 * 1024
_LATIN_1 = {0xDC00 + byte: byte for byte in range(0x80, 0x100)}

_HEADER = re.compile(rb"^(object|author|committer|tagger|encoding) (.*)$", re.MULTILINE)
_PARENT = re.compile("^parent (.*)$", re.MULTILINE)
_PERSON = re.compile(rb"([^<]*)(?:<([^>]*))?")
_DATE = re.compile(rb"\s*(\d+)(?:\s*([+-])(\d{1,9})\b)?")
_DATE_DIGITS = 18
_MINUTES_OF_DAY = 24 * 60

#: What git cuts off from both ends of names and addresses.
_CUT_OFF = "".join(map(chr, range(33))) + ".,:;<>\"\\'"


@attrs.frozen
class Person:
    """Author or committer. `time` is in seconds since 1970, `offset` in minutes east of Greenwich."""

    name: str
    email: str
    time: int
    offset: int = 0

    def signature(self) -> pygit2.Signature:
        """Return what libgit2 writes into a commit."""
        return pygit2.Signature(_kept(self.name), _kept(self.email), self.time, self.offset, "utf-8")


@attrs.frozen
class CommitText:
    """What a commit says of itself. `parents` are full SHAs."""

    parents: list[str]
    author: Person
    committer: Person
    message: str


def read_text(repository: Repository, sha: str) -> CommitText:
    """Return the text of the commit with this full SHA, whichever tool wrote it. Raises as `repository[sha]`."""
    kind, raw = repository.read(sha)
    if kind != ObjectType.COMMIT:
        raw = repository[sha].peel(pygit2.Commit).read_raw()
    headers, message = _parts(raw)
    codec = _codec(headers.get(b"encoding"))
    return CommitText(
        parents=_PARENT.findall(raw.partition(b"\nauthor ")[0].decode("ascii", "ignore")),
        author=_person(headers.get(b"author", b""), codec),
        committer=_person(headers.get(b"committer", b""), codec),
        message=decode(message.lstrip(b"\n"), codec),
    )


def time_of(repository: Repository, object_id: str) -> int:
    """Return when a commit or tag was made, in seconds since 1970; of a tag that does not say, when its target was."""
    kind, raw = repository.read(object_id)
    headers, _ = _parts(raw)
    if kind == ObjectType.TAG and b"tagger" not in headers:
        return time_of(repository, headers[b"object"].decode())
    line = headers.get(b"tagger" if kind == ObjectType.TAG else b"committer", b"")
    return _date(line)[0] if kind in (ObjectType.TAG, ObjectType.COMMIT) else 0


def _parts(raw: bytes) -> tuple[dict[bytes, bytes], bytes]:
    """Return the headers of a commit or tag, of several with one name the first as git does, and its message."""
    head, _, message = raw.partition(b"\n\n")
    return dict(reversed(_HEADER.findall(head))), message


def _codec(encoding: bytes | None) -> str:
    """Return Python's name of a declared encoding; an unknown one counts as none."""
    if encoding is None:
        return "utf_8"
    name = normalize_encoding(encoding[:40].decode("ascii", "ignore")).lower()
    codec = aliases.get(name, name)
    return codec if codec in _CODECS else "utf_8"


def decode(raw: bytes, codec: str = "utf_8") -> str:
    """Return text of any age and tool, without the NUL that PostgreSQL refuses.

    Bytes that should be UTF-8 and are not are read as Latin-1, as git reads them where it makes a new commit of an old
    one.
    """
    try:
        text = raw.decode(codec)
    except UnicodeDecodeError:
        text = _repaired(raw, codec)
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _repaired(raw: bytes, codec: str) -> str:
    if len(raw) > _MOST_REPAIRED:
        return raw.decode(errors="replace")
    if codec != "utf_8":
        return raw.decode(codec, "replace")
    return raw.decode(errors="surrogateescape").translate(_LATIN_1)


def _person(line: bytes, codec: str) -> Person:
    """Read a line `name <address> seconds zone` as git-log does; 1970 where it has no date, UTC without a zone."""
    found = _PERSON.match(line)
    name, email = found.groups(b"") if found else (b"", b"")
    time, offset = _date(line)
    return Person(decode(name.strip(), codec), decode(email, codec), time, offset)


def _date(line: bytes) -> tuple[int, int]:
    found = _DATE.match(line.rpartition(b">")[2])
    if found is None or len(found[1]) > _DATE_DIGITS:
        return 0, 0
    hours, minutes = divmod(int(found[3] or 0), 100)
    offset = hours * 60 + minutes
    if offset >= _MINUTES_OF_DAY:
        return int(found[1]), 0
    return int(found[1]), -offset if found[2] == b"-" else offset


def _kept(text: str) -> str:
    """A name or address without what git takes nowhere in it; git refuses one of which it would keep nothing."""
    text = "".join(c for c in text if c not in "<>\n\0").strip()
    return text if text.strip(_CUT_OFF) else "unknown"
