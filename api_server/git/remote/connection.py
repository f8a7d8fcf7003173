"""Listing and changing the refs of a remote repository with git; nothing is ever fetched."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import attrs

from api_server.git.remote.access import DEFAULT_PORTS, Remote, prepare_access
from api_server.git.remote.children import RemoteGit
from api_server.git.remote.errors import RemoteError
from api_server.git.remote.pushing import Push, pushing

LISTING_FAILURE = "The refs of the target could not be listed"
#: A target that lists more than this (about 500,000 refs) is not a mirror.
LISTING_BYTES = 64 * 1024 * 1024
#: How long each of several addresses has to take a connection.
ANSWER_SECONDS = 10.0
_LISTING = re.compile(rb"(?:(?:[0-9a-f]{40}(?:[0-9a-f]{24})?|ref: [^\t\n]+)\t[^\t\n]+\n)*+")


@attrs.frozen
class Refs:
    """Branches and tags of a repository by full name (`refs/heads/x`); bytes beyond UTF-8 as surrogate escapes.

    `ids` are the objects they are at, `peeled` the commits of annotated tags as far as they are known, and
    `symbolic` the names of those that stand for another ref.
    """

    ids: Mapping[str, str]
    peeled: Mapping[str, str] = attrs.field(factory=dict)
    symbolic: frozenset[str] = frozenset()

    def commit(self, name: str) -> str:
        """What the ref peels to, or where it is when that is not known."""
        return self.peeled.get(name) or self.ids[name]


class Connection:
    """A remote repository that git can reach for a while. Made by `connect`."""

    def __init__(self, git: RemoteGit) -> None:
        self._git = git

    async def list_refs(self) -> Refs:
        """The target's branches and tags. Raises `RemoteError`."""
        command = ["ls-remote", "--symref", "--heads", "--tags", "--", self._git.access.url]
        with self._git.errors_as(LISTING_FAILURE):
            async with self._git.start(command) as child:
                listing = await child.whole_output(LISTING_BYTES)
                await child.check()
        return parse_listing(listing)

    def pushing(self, repository: Path) -> AbstractAsyncContextManager[Push]:
        """How to push from `repository`, for the length of a block; to be entered early, as it connects."""
        return pushing(self._git, repository)

    def learnt_host_keys(self) -> tuple[str, ...]:
        """The known_hosts lines learnt from the server, which had no pinned key; to be pinned from now on."""
        return self._git.access.learnt_host_keys()


@asynccontextmanager
async def connect(
    remote: Remote, *, time_limit: float, folder: Path | None = None
) -> AsyncIterator[Connection]:
    """Git's access to `remote` for the length of the block, `time_limit` seconds for all of it together.

    Credentials lie in files that only this user can read, in a new folder below `folder` (default: the
    temporary folder; better one in memory), and are gone afterwards.
    """
    with prepare_access(await _with_one_address(remote), folder) as access:
        yield Connection(RemoteGit(remote, access, time_limit))


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


def parse_listing(output: bytes) -> Refs:
    """Read `git ls-remote --symref`; raises RemoteError for what is not such a list."""
    if not _LISTING.fullmatch(output):
        raise RemoteError(f"{LISTING_FAILURE}: the answer is not a list of refs.")
    pairs = [line.split("\t") for line in output.decode(errors="surrogateescape").split("\n")[:-1]]
    return Refs(
        {name: sha for sha, name in pairs if sha[0] != "r" and not name.endswith("^{}")},
        {name.removesuffix("^{}"): sha for sha, name in pairs if name.endswith("^{}")},
        frozenset(name for target, name in pairs if target[0] == "r"),
    )
