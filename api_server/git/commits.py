"""Commits as GitLab shows them: their text, which is decoded and encoded only here, and their ancestry.

git stores a commit as bytes. They are read as leniently as git reads them: with an `encoding` header, without one even
if they are not UTF-8, and with dates in the forms of old tools. The server writes only UTF-8, so its own commits have
no `encoding` header.
"""

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from encodings import normalize_encoding
from encodings.aliases import aliases
from pathlib import Path
from typing import Any, Literal

import attrs
import pygit2
from pygit2.enums import ObjectType

from api_server.git.errors import NotFoundError
from api_server.git.processes import run
from api_server.git.ref_names import BRANCHES, FULL_SHA
from api_server.git.repositories import Repository

#: Python's codecs that decode text in linear time. `punycode` takes quadratic time, and `idna` raises other errors.
_CODECS = frozenset(
    name
    for name in {*aliases.values(), "cp737", "cp874", "iso8859_1", "koi8_t", "koi8_u"}
    if re.match("ascii|big5|cp|euc|gb|hp_|iso|johab|koi8|kz|latin|mac|ptcp|shift|tis|utf_8", name)
)
#: The most undecodable bytes that are decoded one by one.
_MAX_REPAIRED = 32 * 1024
_LATIN_1 = {0xDC00 + byte: byte for byte in range(0x80, 0x100)}

_HEADER = re.compile(rb"^(object|author|committer|tagger|encoding) (.*)$", re.MULTILINE)
_PARENT = re.compile("^parent (.*)$", re.MULTILINE)
_PERSON = re.compile(rb"([^<]*)(?:<([^>]*))?")
_DATE = re.compile(rb"\s*(\d+)(?:\s*([+-])(\d{1,9})\b)?")
_DATE_DIGITS = 18
_MINUTES_OF_DAY = 24 * 60

#: The characters that git strips from both ends of names and addresses.
_CUT_OFF = "".join(map(chr, range(33))) + ".,:;<>\"\\'"


@attrs.frozen
class Person:
    """Author or committer. `time` is in seconds since 1970, `offset` in minutes east of Greenwich."""

    name: str
    email: str
    time: int
    offset: int = 0

    def signature(self) -> pygit2.Signature:
        """Return this person as the signature that libgit2 writes into a commit."""
        return pygit2.Signature(_clean(self.name), _clean(self.email), self.time, self.offset, "utf-8")


@attrs.frozen
class CommitText:
    """The decoded fields of a commit. `parents` are full SHAs."""

    parents: list[str]
    author: Person
    committer: Person
    message: str


def read_text(repository: Repository, sha: str) -> CommitText:
    """Return the text of the commit with this full SHA, whichever tool wrote it. Raise like `repository[sha]`."""
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
    """Return when a commit or tag was made, in seconds since 1970. For a tag without a date, return its target's."""
    kind, raw = repository.read(object_id)
    headers, _ = _parts(raw)
    if kind == ObjectType.TAG and b"tagger" not in headers:
        return time_of(repository, headers[b"object"].decode())
    line = headers.get(b"tagger" if kind == ObjectType.TAG else b"committer", b"")
    return _read_date(line)[0] if kind in (ObjectType.TAG, ObjectType.COMMIT) else 0


def _parts(raw: bytes) -> tuple[dict[bytes, bytes], bytes]:
    """Return the headers and the message of a commit or tag. Of headers with the same name, the first counts, as in
    git."""
    head, _, message = raw.partition(b"\n\n")
    return dict(reversed(_HEADER.findall(head))), message


def _codec(encoding: bytes | None) -> str:
    """Return Python's name of a declared encoding. An unknown encoding counts as none."""
    if encoding is None:
        return "utf_8"
    name = normalize_encoding(encoding[:40].decode("ascii", "ignore")).lower()
    codec = aliases.get(name, name)
    return codec if codec in _CODECS else "utf_8"


def decode(raw: bytes, codec: str = "utf_8") -> str:
    """Decode text of any age and tool, without NUL characters, which PostgreSQL refuses.

    Bytes that are not the UTF-8 they should be are read as Latin-1, as git does when it rewrites a commit.
    """
    try:
        text = raw.decode(codec)
    except UnicodeDecodeError:
        text = _repaired(raw, codec)
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _repaired(raw: bytes, codec: str) -> str:
    if len(raw) > _MAX_REPAIRED:
        return raw.decode(errors="replace")
    if codec != "utf_8":
        return raw.decode(codec, "replace")
    return raw.decode(errors="surrogateescape").translate(_LATIN_1)


def _person(line: bytes, codec: str) -> Person:
    """Parse a line `name <address> seconds zone` as git-log does. A missing date is 1970, a missing zone UTC."""
    match = _PERSON.match(line)
    name, email = match.groups(b"") if match else (b"", b"")
    time, offset = _read_date(line)
    return Person(decode(name.strip(), codec), decode(email, codec), time, offset)


def _read_date(line: bytes) -> tuple[int, int]:
    match = _DATE.match(line.rpartition(b">")[2])
    if match is None or len(match[1]) > _DATE_DIGITS:
        return 0, 0
    hours, minutes = divmod(int(match[3] or 0), 100)
    offset = hours * 60 + minutes
    if offset >= _MINUTES_OF_DAY:
        return int(match[1]), 0
    return int(match[1]), -offset if match[2] == b"-" else offset


def _clean(text: str) -> str:
    """Return a name or address without the characters that git allows nowhere in it, and not empty: git refuses an
    empty one."""
    text = "".join(c for c in text if c not in "<>\n\0").strip()
    return text if text.strip(_CUT_OFF) else "unknown"


SHORT_ID_DIGITS = 8
_TITLE_CHARACTERS = 80
#: The largest number that git's int options take; no repository has so many commits.
_MAX_SKIPPED = 2**31 - 1
#: The empty tree, which git knows even if it is not stored.
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_MAX_COUNTED_BYTES = 10 * 1024 * 1024
_COUNT = re.compile(r"(\d+) (insertion|deletion)s?\(")
_FULL_OR_RANGE = re.compile(rf"{FULL_SHA.pattern}(?:\.\.\.?{FULL_SHA.pattern})?")
_LAST_SECOND = 253402300799  # the end of the year 9999


def commit_data(repository: Repository, sha: str) -> dict[str, Any]:
    """Return the commit with this full SHA in GitLab's shape, without `web_url`. Raise `NotFoundError`."""
    try:
        text = read_text(repository, sha)
    except (KeyError, ValueError, pygit2.GitError) as problem:
        raise NotFoundError(f"The commit {sha} does not exist.") from problem
    committed = _date(text.committer)
    return {
        "id": sha,
        "short_id": sha[:SHORT_ID_DIGITS],
        "created_at": committed,
        "parent_ids": text.parents,
        "title": _title(text.message),
        "message": text.message,
        "author_name": text.author.name,
        "author_email": text.author.email,
        "authored_date": _date(text.author),
        "committer_name": text.committer.name,
        "committer_email": text.committer.email,
        "committed_date": committed,
    }


def signature_type(repository: Repository, sha: str) -> Literal["PGP", "SSH", "X509"] | None:
    """Return the kind of signature of the commit with this full SHA, or None. The signature is not verified, because
    no public keys are known here."""
    signature = repository[sha].peel(pygit2.Commit).gpg_signature[0] or b""
    if not signature:
        return None
    return "SSH" if b"SSH SIGNATURE" in signature else "PGP" if b"PGP " in signature else "X509"


def tree_of(repository: Repository, commit: str) -> pygit2.Tree:
    """Return the root folder of the commit with this full SHA. Raise `NotFoundError`."""
    try:
        return repository[commit].peel(pygit2.Tree)
    except (KeyError, ValueError, pygit2.GitError) as problem:
        raise NotFoundError(f"The commit {commit} does not exist.") from problem


async def commits_between(repository: Repository, old: str | None, new: str, limit: int) -> list[str]:
    """Return at most `limit` SHAs of commits reachable from `new` but not from `old`, newest first."""
    exclude = [f"^{_full(old)}"] if old is not None else []
    return await _shas(repository, ["rev-list", f"--max-count={limit}", _full(new), *exclude, "--"])


@attrs.frozen(kw_only=True)
class History:
    """A query for commits: those reachable from `start` that match all the other fields given.

    `start` is a full SHA, `A..B` or `A...B` with two of them, or None for all branches and tags. `path` is a file or
    folder, `author` a part of `name <address>`.
    """

    start: str | None
    path: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    author: str | None = None
    first_parent: bool = False
    topological: bool = False


async def history(repository: Repository, query: History, *, skip: int, limit: int) -> list[str]:
    """Return the SHAs of at most `limit` commits after the first `skip`, newest first."""
    options = {
        f"--since={query.since.isoformat()}" if query.since else "",
        f"--until={query.until.isoformat()}" if query.until else "",
        f"--author={query.author}" if query.author else "",
        "--fixed-strings" if query.author else "",
        "--first-parent" if query.first_parent else "",
        "--topo-order" if query.topological else "",
    }
    starts = ["--branches", "--tags"] if query.start is None else [_full(query.start, _FULL_OR_RANGE)]
    skip = min(skip, _MAX_SKIPPED)
    arguments = ["rev-list", f"--skip={skip}", f"--max-count={limit}", *sorted(options - {""}), *starts, "--"]
    return await _shas(repository, [*arguments, *([query.path] if query.path else [])])


async def line_counts(repository: Repository, shas: Sequence[str]) -> dict[str, dict[str, int]]:
    """Count the lines that each of these commits added and removed, compared with its first parent. Binary files and
    files above 10 MiB count as no lines."""
    counts = {sha: {"additions": 0, "deletions": 0, "total": 0} for sha in shas}
    lines = "".join(" ".join([sha, *_first_parent(repository, sha)]) + "\n" for sha in counts)
    arguments = ["diff-tree", "--stdin", "-r", "--root", "--shortstat", "--no-renames", "--no-ext-diff"]
    threshold = ("core.bigFileThreshold", str(_MAX_COUNTED_BYTES))
    completed = await run(
        arguments, repository=Path(repository.path), stdin=lines.encode(), configuration=[threshold]
    )
    sha = ""
    for line in completed.stdout.decode().splitlines():
        if FULL_SHA.fullmatch(line):
            sha = line
        elif totals := {kind: int(number) for number, kind in _COUNT.findall(line)}:
            added, removed = totals.get("insertion", 0), totals.get("deletion", 0)
            counts[sha] = {"additions": added, "deletions": removed, "total": added + removed}
    return counts


def _first_parent(repository: Repository, sha: str) -> list[str]:
    return [str(parent) for parent in repository[_full(sha)].peel(pygit2.Commit).parent_ids[:1]]


async def merge_base(repository: Repository, *shas: str) -> str | None:
    """Return the best common ancestor of these commits, or None if their histories are unrelated. Of more than two
    commits, it is that of the first and a hypothetical merge of the others."""
    ancestors = await _shas(repository, ["merge-base", *map(_full, shas)], accept=(0, 1))
    return ancestors[0] if ancestors else None


async def refs_containing(repository: Repository, sha: str, *patterns: str) -> list[str]:
    """Return the full names of the refs that match the patterns (`refs/heads/`, `refs/merge-requests/*/head`) and
    contain the commit, sorted. Names that are not UTF-8 are left out, because JSON cannot hold them."""
    arguments = ["for-each-ref", f"--contains={_full(sha)}", "--format=%(refname)", *patterns]
    names = []
    for line in (await run(arguments, repository=Path(repository.path))).stdout.splitlines():
        with suppress(UnicodeDecodeError):
            names.append(line.decode())
    return names


async def descendants(repository: Repository, sha: str, among: Collection[str]) -> set[str]:
    """Return the commits in `among` from which `sha` can be reached, including `sha` itself."""
    stdin = "".join(f"{line}\n" for line in [f"^{_full(sha)}", *map(_full, among)]).encode()
    arguments = ["rev-list", "--ancestry-path", "--ignore-missing", "--stdin"]
    completed = await run(arguments, repository=Path(repository.path), stdin=stdin)
    return {sha, *completed.stdout.decode().split()}.intersection(among)


async def is_ancestor(repository: Repository, ancestor: str, descendant: str) -> bool:
    """Return whether `ancestor` is `descendant` or reachable from it, so that the move is a fast-forward."""
    arguments = ["merge-base", "--is-ancestor", _full(ancestor), _full(descendant)]
    return (await run(arguments, repository=Path(repository.path), accept=(0, 1))).returncode == 0


async def merged_branches(repository: Repository, names: Sequence[str], into: str) -> set[str]:
    """Return those of the named branches, at least one, whose commits all belong to the commit `into` too."""
    refs = [BRANCHES + name for name in names]
    arguments = ["for-each-ref", f"--merged={_full(into)}", "--format=%(refname)", *refs]
    output = (await run(arguments, repository=Path(repository.path))).stdout.decode(errors="replace")
    return {ref.removeprefix(BRANCHES) for ref in output.splitlines()}


async def branch_with(repository: Repository, sha: str) -> str | None:
    """Return the first branch by name that contains the commit with this full SHA, or None."""
    arguments = ["for-each-ref", "--count=1", f"--contains={_full(sha)}", "--format=%(refname)", BRANCHES]
    completed = await run(arguments, repository=Path(repository.path))
    return completed.stdout.decode(errors="replace").strip().removeprefix(BRANCHES) or None


async def _shas(repository: Repository, arguments: Sequence[str], accept: Sequence[int] = (0,)) -> list[str]:
    # In a child: libgit2 would hold the interpreter's lock for the whole walk.
    return (await run(arguments, repository=Path(repository.path), accept=accept)).stdout.decode().split()


def _full(sha: str, form: re.Pattern[str] = FULL_SHA) -> str:
    if not form.fullmatch(sha):
        raise NotFoundError(f"{sha!r} is not the full SHA of a commit.")
    return sha


def _title(message: str) -> str:
    """Return the first line. One of 100 or more characters is cut at a word's end near 80, as in GitLab."""
    first = message.lstrip("\n").split("\n", 1)[0].rstrip("\r")
    if len(first) < 100:
        return first
    max_length = _TITLE_CHARACTERS + 1 - len("...")
    stop = first.rfind(" ", 0, max_length + 1)
    return first[: stop if stop > 0 else max_length] + "..."


def _date(person: Person) -> str:
    """Return the date in ISO 8601 with milliseconds and the person's own offset. Impossible dates are clamped."""
    try:
        zone = timezone(timedelta(minutes=person.offset))
        moment = datetime.fromtimestamp(person.time, zone)
    except (ValueError, OverflowError, OSError):
        moment = datetime.fromtimestamp(min(max(person.time, 0), _LAST_SECOND), UTC)
    return moment.isoformat(timespec="milliseconds")
