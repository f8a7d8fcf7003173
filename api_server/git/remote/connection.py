"""Lists, pushes and changes of a remote repository's refs. Nothing is ever fetched."""

import ast
import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Literal, cast
from urllib.parse import urlsplit

import attrs

from api_server.git.processes import Child, once, run
from api_server.git.remote.access import (
    DEFAULT_PORTS,
    Remote,
    RemoteError,
    RemoteGit,
    prepare_access,
    remote_error,
)

FAILURE = "The push to the target failed"
#: Maximum number of bytes of leases on one command line. Linux allows 2 MiB with the usual stack limit.
ARGUMENT_BYTES = 128 * 1024
_OPTIONS = (b"option verbosity 0\n", b"option progress false\n")


@attrs.frozen
class Change:
    """A move of one of the target's refs from `old` (None: it must not exist) to `new` (None: it is deleted)."""

    name: str
    old: str | None
    new: str | None

    @property
    def refspec(self) -> str:
        """The refspec. It names an object id, so that nothing is pushed that was not compared."""
        return f"{self.new or ''}:{self.name}"


@attrs.frozen
class Result:
    """The result of one change. `stale` means that the ref was not at `old` any more and has been left as it is."""

    name: str
    status: Literal["done", "stale", "rejected"]
    reason: str = ""


@attrs.frozen
class PushReport:
    """One result for each change, and what else the target and git have printed."""

    results: tuple[Result, ...]
    messages: str

    @property
    def takes_nothing(self) -> bool:
        """Whether the target refused all that it was asked for."""
        statuses = {result.status for result in self.results}
        return "rejected" in statuses and "done" not in statuses


#: A function that makes changes, independently of each other. It raises `RemoteError` if the target could not be
#: reached or has not reported the result of each change.
Push = Callable[[Sequence[Change]], Awaitable[PushReport]]


@asynccontextmanager
async def pushing(git: RemoteGit, repository: Path) -> AsyncIterator[Push]:
    """Yield a function that pushes from `repository`. Over HTTP, a first connection is opened at once, and used by the
    first push."""
    if urlsplit(git.access.url).scheme in ("http", "https"):
        async with _helper(git, repository) as child:
            yield _HelperPushes(git, repository, child).push
    else:
        yield _SendPackPushes(git, repository).push


class _HelperPushes:
    """Pushes with git's remote helper for HTTP, which `git push` would start as well (gitremote-helpers(7)).

    The helper lists the target's refs when it connects, and its pushes are based on that list: the target itself
    refuses to change a ref that has moved since (its `old-id`, gitprotocol-pack(5)), so no lease has to be sent.
    """

    def __init__(self, git: RemoteGit, repository: Path, connected: Child) -> None:
        self._git = git
        self._repository = repository
        self._connected: Child | None = connected

    async def push(self, changes: Sequence[Change]) -> PushReport:
        with self._git.errors_as(FAILURE):
            if self._connected is not None:
                child, self._connected = self._connected, None
                return await self._push(child, changes)
            async with _helper(self._git, self._repository) as child:
                return await self._push(child, changes)

    async def _push(self, child: Child, changes: Sequence[Change]) -> PushReport:
        refs = await _advertised(child)
        results = {change.name: _before_push(change, refs.get(change.name)) for change in changes}
        pending = [change for change in changes if results[change.name] is None]
        output = b""
        if pending:
            lines = "".join(f"push +{change.refspec}\n" for change in pending)
            child.feed(once(f"{lines}\n".encode(errors="surrogateescape")))
            output = await child.whole_output()
            await child.end()
        decided = {name: result for name, result in results.items() if result is not None}
        return _report(self._git, changes, decided | parse_statuses(output, self._git.clean), child)


@asynccontextmanager
async def _helper(git: RemoteGit, repository: Path) -> AsyncIterator[Child]:
    """Yield a helper that is connecting. `_advertised` reads the list that it prints then."""
    url = git.access.url
    command = [f"remote-{urlsplit(url).scheme}", url, url]
    async with git.start(command, repository=repository, with_stdin=True) as child:
        child.write(b"".join(_OPTIONS) + b"list for-push\n")
        yield child


async def _advertised(child: Child) -> dict[str, str]:
    """Return the target's refs and the objects that they point to."""
    output = (await child.read_until(b"\n\n")).decode(errors="surrogateescape")
    # The list begins after an answer to each option.
    pairs = [line.split(" ") for line in output.split("\n")[len(_OPTIONS) : -2]]
    return {name: sha for sha, name in pairs}


def _before_push(change: Change, current: str | None) -> Result | None:
    """Return the result of a change that is not needed or, because somebody else has moved the ref, not allowed any
    more. Return None if the change has to be tried."""
    if current == change.new:
        return Result(change.name, "done")
    return None if current == change.old else Result(change.name, "stale")


class _SendPackPushes:
    """Pushes with `git send-pack`, for ssh and git://. A lease for each ref says where it was when it was listed.

    A forced refspec (`+`) would override its lease; with a lease, it needs no force.
    """

    def __init__(self, git: RemoteGit, repository: Path) -> None:
        self._git = git
        self._repository = repository

    async def push(self, changes: Sequence[Change]) -> PushReport:
        reports = [await self._push(part) for part in _parts(changes)]
        messages = "\n".join(report.messages for report in reports if report.messages)
        return PushReport(tuple(result for report in reports for result in report.results), messages)

    async def _push(self, changes: Sequence[Change]) -> PushReport:
        command = ["send-pack", "--helper-status", "--thin", "--quiet", "--stdin"]
        leases = [_lease(change) for change in changes]
        refspecs = "".join(f"{change.refspec}\n" for change in changes)
        arguments = [*command, *leases, "--", self._git.access.url]
        with self._git.errors_as(FAILURE):
            async with self._git.start(arguments, repository=self._repository, with_stdin=True) as child:
                child.feed(once(refspecs.encode(errors="surrogateescape")))
                output = await child.whole_output()
                await child.end()
        return _report(self._git, changes, parse_statuses(output, self._git.clean), child)


def _lease(change: Change) -> str:
    return f"--force-with-lease={change.name}:{change.old or ''}"


def _parts(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """Yield the changes in parts whose leases fit on a command line."""
    start = size = 0
    for number, change in enumerate(changes):
        size += len(_lease(change))
        if size > ARGUMENT_BYTES and number > start:
            yield changes[start:number]
            start, size = number, len(_lease(change))
    yield changes[start:]


def _report(
    git: RemoteGit, changes: Sequence[Change], results: dict[str, Result], child: Child
) -> PushReport:
    messages = git.clean(child.stderr)
    if missing := [change.name for change in changes if change.name not in results]:
        raise remote_error(FAILURE, messages or f"no answer about {missing[0]}")
    return PushReport(tuple(results[change.name] for change in changes), messages)


def parse_statuses(output: bytes, clean: Callable[[str], str] = str) -> dict[str, Result]:
    """Parse what `git send-pack --helper-status` prints about each of the target's refs after a push.

    These are lines `ok <ref>` or `error <ref> <reason>`, and `no match` for refs that were not to be pushed.
    """
    lines = output.decode(errors="surrogateescape").split("\n")
    fields = [line.split(" ", 2) for line in lines if " " in line and not line.endswith(" no match")]
    return {
        name: Result(name, "done") if word == "ok" else _refusal(name, clean(_unquoted("".join(reason))))
        for word, name, *reason in fields
    }


def _refusal(name: str, why: str) -> Result:
    if why == "stale info":
        return Result(name, "stale")
    return Result(name, "rejected", f"[remote rejected] ({why})" if why else "[remote rejected]")


def _unquoted(text: str) -> str:
    """Return the text without the quotes and escapes of a C string, which git uses for special characters."""
    if not text.startswith('"'):
        return text
    return cast("bytes", ast.literal_eval(f"b{text}")).decode(errors="replace")


LISTING_FAILURE = "The refs of the target could not be listed"
#: Maximum number of bytes of a list, about 500,000 refs. A target with more is no mirror.
LISTING_BYTES = 64 * 1024 * 1024
#: Seconds in which each of several addresses has to accept a connection.
ANSWER_SECONDS = 10.0
_LISTING = re.compile(rb"(?:(?:[0-9a-f]{40}(?:[0-9a-f]{24})?|ref: [^\t\n]+)\t[^\t\n]+\n)*+")


@attrs.frozen
class Refs:
    """Branches and tags of a repository by full name (`refs/heads/x`). Bytes that are not UTF-8 are surrogate escapes.

    `ids` are the objects to which they point, `peeled` the commits of annotated tags as far as they are known, and
    `symbolic` the names of those that stand for another ref.
    """

    ids: Mapping[str, str]
    peeled: Mapping[str, str] = attrs.field(factory=dict)
    symbolic: frozenset[str] = frozenset()

    def commit(self, name: str) -> str:
        """Return the commit to which the ref peels, or the object to which it points if that is not known."""
        return self.peeled.get(name) or self.ids[name]


class Connection:
    """A remote repository that git can reach for a while. `connect` creates it."""

    def __init__(self, git: RemoteGit) -> None:
        self._git = git

    async def list_refs(self) -> Refs:
        """Return the target's branches and tags. Raise `RemoteError`."""
        command = ["ls-remote", "--symref", "--heads", "--tags", "--", self._git.access.url]
        with self._git.errors_as(LISTING_FAILURE):
            async with self._git.start(command) as child:
                listing = await child.whole_output(LISTING_BYTES)
                await child.check()
        return parse_listing(listing)

    def pushing(self, repository: Path) -> AbstractAsyncContextManager[Push]:
        """Return a context manager that yields a function that pushes from `repository`. Enter it early, because it
        connects."""
        return pushing(self._git, repository)

    def learnt_host_keys(self) -> tuple[str, ...]:
        """Return the known_hosts lines of a server that had no pinned key. They are to be pinned from now on."""
        return self._git.access.learnt_host_keys()


@asynccontextmanager
async def connect(
    remote: Remote, *, time_limit: float, folder: Path | None = None
) -> AsyncIterator[Connection]:
    """Yield git's access to `remote` for the duration of the block. `time_limit` is in seconds for all of it together.

    Credentials are in files that only this user can read, in a new folder below `folder` (default: the temporary
    folder; one in memory is better). They are removed at the end.
    """
    with prepare_access(await _with_one_address(remote), folder) as access:
        yield Connection(RemoteGit(remote, access, time_limit))


async def _with_one_address(remote: Remote) -> Remote:
    """Return `remote` with the first of its addresses that answers, for programs that accept one only (ssh, git://)."""
    parts = urlsplit(remote.url)
    port = parts.port or DEFAULT_PORTS.get(parts.scheme)
    if port is None or len(remote.addresses) < 2:
        return remote
    for address in remote.addresses:
        with suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(ANSWER_SECONDS):
                _, writer = await asyncio.open_connection(address, port)
            writer.close()
            return attrs.evolve(remote, addresses=(address,))
    return remote


def parse_listing(output: bytes) -> Refs:
    """Parse the output of `git ls-remote --symref`. Raise `RemoteError` for anything else."""
    if not _LISTING.fullmatch(output):
        raise RemoteError(f"{LISTING_FAILURE}: the answer is not a list of refs.")
    pairs = [line.split("\t") for line in output.decode(errors="surrogateescape").split("\n")[:-1]]
    return Refs(
        {name: sha for sha, name in pairs if sha[0] != "r" and not name.endswith("^{}")},
        {name.removesuffix("^{}"): sha for sha, name in pairs if name.endswith("^{}")},
        frozenset(name for target, name in pairs if target[0] == "r"),
    )


#: Format of git-for-each-ref. The last field is a blank for most refs, an asterisk for the default branch, and longer
#: for symbolic refs.
_FORMAT = "%(objectname) %(refname) %(HEAD)%(symref)"


@attrs.frozen
class Source:
    """Branches and tags, and the full name of the default branch if that has a commit."""

    refs: Refs
    default_branch: str | None


async def read_source(repository: Path) -> Source:
    """Return all branches and tags of a bare repository, by one `git for-each-ref`. There are none if there is no
    repository."""
    if not (repository / "HEAD").is_file():
        return Source(Refs({}), None)
    command = ["for-each-ref", f"--format={_FORMAT}", "refs/heads/", "refs/tags/"]
    output = (await run(command, repository=repository)).stdout.decode(errors="surrogateescape")
    fields = [line.split(" ", 2) for line in output.split("\n")[:-1]]
    marks = {name: mark for _, name, mark in fields if mark != " "}
    return Source(
        Refs(
            {name: sha for sha, name, _ in fields},
            symbolic=frozenset(name for name, mark in marks.items() if len(mark) > 1),
        ),
        next((name for name, mark in marks.items() if mark.startswith("*")), None),
    )


async def descents_that_hold(repository: Path, questions: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return those of the pairs (old, new) in which `new` is `old` or descends from it.

    Both may be tags of commits. A pair with an old commit that the repository lacks is left out.
    """
    pairs = set(questions)
    if not pairs:
        return set()
    commits = await _commits(repository, sorted({sha for pair in pairs for sha in pair}))
    answerable = {pair for pair in pairs if pair[0] in commits and pair[1] in commits}
    ancestors_of: dict[str, set[str]] = defaultdict(set)
    for old, new in answerable:
        ancestors_of[commits[new]].add(commits[old])
    for new, olds in ancestors_of.items():
        ancestors_of[new] = olds - await _not_contained(repository, olds, new)
    return {(old, new) for old, new in answerable if commits[old] in ancestors_of[commits[new]]}


async def _commits(repository: Path, shas: Iterable[str]) -> dict[str, str]:
    """Return the commit that each object is or peels to, without those that are missing or no commits."""
    names = list(shas)
    questions = "".join(f"{name}^{{commit}}\n" for name in names)
    output = await run(["cat-file", "--batch-check"], repository=repository, stdin=questions.encode())
    answers = (line.split() for line in output.stdout.decode().splitlines())
    return {name: answer[0] for name, answer in zip(names, answers, strict=True) if answer[1] == "commit"}


async def _not_contained(repository: Path, olds: Iterable[str], new: str) -> set[str]:
    """Return the commits in `olds` that are not reachable from `new`, in one walk for all of them."""
    revisions = "".join(f"{old}\n" for old in olds) + f"^{new}\n"
    output = await run(["rev-list", "--stdin"], repository=repository, stdin=revisions.encode())
    return set(output.stdout.decode().split())
