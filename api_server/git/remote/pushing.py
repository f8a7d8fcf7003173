"""Pushing refs to a remote repository: each moves only from where it was listed, and has a result of its own."""

import ast
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, cast
from urllib.parse import urlsplit

import attrs

from api_server.git.processes import Child, once
from api_server.git.remote.children import RemoteGit
from api_server.git.remote.errors import remote_error

FAILURE = "The push to the target failed"
#: Of leases on one command line; Linux takes 2 MiB with the usual stack limit.
ARGUMENT_BYTES = 128 * 1024
_OPTIONS = (b"option verbosity 0\n", b"option progress false\n")


@attrs.frozen
class Change:
    """One ref of the target to move from `old` (None: it must not exist) to `new` (None: it goes away)."""

    name: str
    old: str | None
    new: str | None

    @property
    def refspec(self) -> str:
        """By object id, so that nothing is pushed that was not compared."""
        return f"{self.new or ''}:{self.name}"


@attrs.frozen
class Result:
    """What became of one change. `stale`: the ref was not at `old` any more and has been left as it is."""

    name: str
    status: Literal["done", "stale", "rejected"]
    reason: str = ""


@attrs.frozen
class PushReport:
    """One result for each change, and what the target and git said beside that."""

    results: tuple[Result, ...]
    messages: str

    @property
    def takes_nothing(self) -> bool:
        """Whether the target refused whatever it was asked for."""
        statuses = {result.status for result in self.results}
        return "rejected" in statuses and "done" not in statuses


#: Makes changes, independently of each other. Raises `RemoteError` when the target could not be reached, or
#: has not said what became of each of them.
Push = Callable[[Sequence[Change]], Awaitable[PushReport]]


@asynccontextmanager
async def pushing(git: RemoteGit, repository: Path) -> AsyncIterator[Push]:
    """How to push from `repository`. Over HTTP a first connection is made at once, for the first push to use."""
    if urlsplit(git.access.url).scheme in ("http", "https"):
        async with _helper(git, repository) as child:
            yield _HelperPushes(git, repository, child).push
    else:
        yield _SendPackPushes(git, repository).push


class _HelperPushes:
    """Pushes by git's remote helper for HTTP, which `git push` would start (gitremote-helpers(7)).

    The helper lists the target's refs when it connects, and pushes upon that list: the target itself refuses
    a change of a ref that has moved since (its `old-id`, gitprotocol-pack(5)), so no lease has to be sent.
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
        wanted = [change for change in changes if results[change.name] is None]
        output = b""
        if wanted:
            lines = "".join(f"push +{change.refspec}\n" for change in wanted)
            child.feed(once(f"{lines}\n".encode(errors="surrogateescape")))
            output = await child.whole_output()
            await child.end()
        decided = {name: result for name, result in results.items() if result is not None}
        return _report(self._git, changes, decided | parse_statuses(output, self._git.clean), child)


@asynccontextmanager
async def _helper(git: RemoteGit, repository: Path) -> AsyncIterator[Child]:
    """A helper that is connecting; `_advertised` reads what it lists then."""
    url = git.access.url
    command = [f"remote-{urlsplit(url).scheme}", url, url]
    async with git.start(command, repository=repository, with_stdin=True) as child:
        child.write(b"".join(_OPTIONS) + b"list for-push\n")
        yield child


async def _advertised(child: Child) -> dict[str, str]:
    """The target's refs and the objects they are at."""
    output = (await child.read_until(b"\n\n")).decode(errors="surrogateescape")
    pairs = [
        line.split(" ") for line in output.split("\n")[len(_OPTIONS) : -2]
    ]  # an answer to each option first
    return {name: sha for sha, name in pairs}


def _before_push(change: Change, at: str | None) -> Result | None:
    """The result of a change that need not or must not be tried any more: somebody else has moved the ref."""
    if at == change.new:
        return Result(change.name, "done")
    return None if at == change.old else Result(change.name, "stale")


class _SendPackPushes:
    """Pushes by `git send-pack`, for ssh and git://; a lease for each ref says where it was listed.

    A refspec that is forced (`+`) would override its lease, and with its lease needs no force.
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
    """The changes in pieces whose leases a command line takes."""
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
        raise remote_error(FAILURE, messages or f"no word about {missing[0]}")
    return PushReport(tuple(results[change.name] for change in changes), messages)


def parse_statuses(output: bytes, clean: Callable[[str], str] = str) -> dict[str, Result]:
    """Read what `git send-pack --helper-status` says of each of the target's refs after a push.

    That is `ok <ref>` or `error <ref> <why>`, and `no match` for those that were not to be pushed.
    """
    lines = output.decode(errors="surrogateescape").split("\n")
    words = [line.split(" ", 2) for line in lines if " " in line and not line.endswith(" no match")]
    return {
        name: Result(name, "done") if word == "ok" else _refusal(name, clean(_unquoted("".join(why))))
        for word, name, *why in words
    }


def _refusal(name: str, why: str) -> Result:
    if why == "stale info":
        return Result(name, "stale")
    return Result(name, "rejected", f"[remote rejected] ({why})" if why else "[remote rejected]")


def _unquoted(text: str) -> str:
    """Without the quotes and escapes of a C string, which git puts around a text with special characters."""
    if not text.startswith('"'):
        return text
    return cast("bytes", ast.literal_eval(f"b{text}")).decode(errors="replace")
