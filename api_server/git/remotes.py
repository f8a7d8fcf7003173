"""Listing and changing the refs of a remote repository with git; nothing is ever fetched."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import attrs

from api_server.git.processes import GitError, GitTimeoutError, Output, OutputTooLargeError, run
from api_server.git.redaction import sanitize
from api_server.git.remote_access import DEFAULT_PORTS, Access, Remote, prepare_access
from api_server.git.remote_errors import RemoteError, RemoteTimeoutError, remote_error

#: A target that lists more than this (about 500,000 refs) is not a mirror.
LISTING_BYTES = 64 * 1024 * 1024
#: How long each of several addresses has to take a connection.
ANSWER_SECONDS = 10.0
_FULL_ID = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_PEELED = "^{}"


@attrs.frozen
class Ref:
    """Where a ref points: `sha` may be an annotated tag, `commit` is what that peels to, else the same."""

    sha: str
    commit: str
    symbolic: bool = False


#: Full names (`refs/heads/x`, `refs/tags/y`) and where they point; bytes beyond UTF-8 as surrogate escapes.
Refs = Mapping[str, Ref]


@attrs.frozen
class Change:
    """One ref of the target to move from `old` (None: it must not exist) to `new` (None: it goes away)."""

    name: str
    old: str | None
    new: str | None


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


class Connection:
    """A remote repository that git can reach for a while. Made by `connect`."""

    def __init__(self, remote: Remote, access: Access, time_limit: float) -> None:
        self._remote = remote
        self._access = access
        self._deadline = asyncio.get_running_loop().time() + time_limit

    async def list_refs(self) -> dict[str, Ref]:
        """The target's branches and tags. Raises `RemoteError`."""
        command = ["ls-remote", "--symref", "--heads", "--tags", "--", self._access.url]
        output = await self._git(command, "The refs of the target could not be listed")
        return parse_listing(output.stdout)

    async def push(self, repository: Path, changes: Sequence[Change]) -> PushReport:
        """Make `changes`, each if the ref still is at `old` and independently of the others.

        Raises `RemoteError` when the target could not be reached or none of the changes was tried.
        """
        command = ["push", "--porcelain", "--no-verify", "--no-follow-tags", "--recurse-submodules=no"]
        leases = [f"--force-with-lease={change.name}:{change.old or ''}" for change in changes]
        refspecs = [f"{change.new or ''}:{change.name}" for change in changes]
        output = await self._git(
            [*command, *leases, "--", self._access.url, *refspecs],
            "The push to the target failed",
            repository=repository,
            accept=(0, 1),
        )
        messages = self._clean(output.stderr)
        results = parse_push(output.stdout, self._clean)
        if missing := [change.name for change in changes if change.name not in results]:
            raise RemoteError(f"The push to the target failed: {messages or f'no word about {missing[0]}'}")
        return PushReport(tuple(results[change.name] for change in changes), messages)

    def learnt_host_keys(self) -> tuple[str, ...]:
        """The known_hosts lines learnt from the server, which had no pinned key; to be pinned from now on."""
        return self._access.learnt_host_keys()

    async def _git(
        self,
        arguments: list[str],
        failure: str,
        *,
        repository: Path | None = None,
        accept: Sequence[int] = (0,),
    ) -> Output:
        try:
            return await run(
                arguments,
                repository=repository,
                extra_environment=self._access.environment,
                configuration=self._access.configuration,
                time_limit=max(0.0, self._deadline - asyncio.get_running_loop().time()),
                accept=accept,
                output_limit=LISTING_BYTES,
            )
        except GitTimeoutError as problem:
            raise RemoteTimeoutError(f"{failure}: the target took too long.") from problem
        except OutputTooLargeError as problem:
            raise RemoteError(f"{failure}: the target has too many refs.") from problem
        except GitError as problem:
            text = self._clean(problem.stderr)
            raise remote_error(failure, text) from None

    def _clean(self, text: str) -> str:
        printable = "".join(character for character in text if character.isprintable() or character == "\n")
        return sanitize(printable, user=self._remote.user, password=self._remote.password).strip()


@asynccontextmanager
async def connect(
    remote: Remote, *, time_limit: float, folder: Path | None = None
) -> AsyncIterator[Connection]:
    """Git's access to `remote` for the length of the block, `time_limit` seconds for all of it together.

    Credentials lie in files that only this user can read, in a new folder below `folder` (default: the
    temporary folder; better one in memory), and are gone afterwards.
    """
    with prepare_access(await _with_one_address(remote), folder) as access:
        yield Connection(remote, access, time_limit)


async def _with_one_address(remote: Remote) -> Remote:
    """`remote` at the first of its addresses that answers, for the programs that are told one only (ssh, git://)."""
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


def parse_listing(output: bytes) -> dict[str, Ref]:
    """Read `git ls-remote --symref`; raises RemoteError for what is not such a list."""
    shas: dict[str, str] = {}
    symbolic: set[str] = set()
    for line in output.splitlines():
        target, tab, raw_name = line.partition(b"\t")
        name = raw_name.decode(errors="surrogateescape")
        if target.startswith(b"ref: "):
            symbolic.add(name)
        elif tab and _FULL_ID.fullmatch(target):
            shas[name] = target.decode()
        else:
            raise RemoteError("The refs of the target could not be listed: the answer is not a list of refs.")
    return {
        name: Ref(sha, shas.get(name + _PEELED, sha), name in symbolic)
        for name, sha in shas.items()
        if not name.endswith(_PEELED)
    }


def parse_push(output: bytes, clean: Callable[[str], str] = str) -> dict[str, Result]:
    """Read `git push --porcelain`: the result of each ref by its full name on the target."""
    results = {}
    for line in output.decode(errors="surrogateescape").splitlines():
        flag, _, rest = line.partition("\t")
        refspec, tab, summary = rest.partition("\t")
        if not tab or len(flag) != 1:
            continue  # "To <url>", "Done"
        name = refspec.rpartition(":")[2]
        results[name] = _result(name, flag, clean(summary))
    return results


def _result(name: str, flag: str, summary: str) -> Result:
    if flag != "!":
        return Result(name, "done")
    return Result(name, "stale" if "(stale info)" in summary else "rejected", summary)
