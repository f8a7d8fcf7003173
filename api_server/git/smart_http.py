"""Git's smart HTTP protocol (gitprotocol-http(5), versions 0 to 2) over upload-pack and receive-pack.

Bodies are async iterables of bytes with any Content-Encoding already undone.
"""

import re
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import attrs
import structlog

from api_server.git.at_work import transferring
from api_server.git.errors import RepositoryError, git_error
from api_server.git.processes import Child, start
from api_server.git.received_push import FLUSH, MAX_UPDATES, REFLOGS, packet
from api_server.git.ref_names import KEEP_AROUND, MERGE_REQUESTS

log = structlog.stdlib.get_logger(__name__)

Service = Literal["git-upload-pack", "git-receive-pack"]

HOOKS = Path(__file__).with_name("hooks")
_PROTOCOL = re.compile(r"[a-z0-9=:.-]{1,100}")
#: What git prints about a request that it does not understand.
_NOT_UNDERSTOOD = re.compile(
    r"protocol error|hung up unexpectedly|no command requested|unknown capability|invalid command"
)

_READING = (
    ("uploadpack.allowFilter", "true"),
    ("uploadpack.allowAnySHA1InWant", "true"),  # a job fetches its commit even if its branch has moved
    ("uploadpack.hideRefs", KEEP_AROUND.rstrip("/")),
)
WRITING = (
    ("core.hooksPath", str(HOOKS)),
    ("receive.advertisePushOptions", "true"),
    ("receive.hideRefs", KEEP_AROUND.rstrip("/")),
    ("receive.hideRefs", MERGE_REQUESTS.rstrip("/")),
    ("receive.autogc", "false"),
    *REFLOGS,
    ("receive.fsckObjects", "true"),
    # Harmless faults of old tools, which many histories contain.
    ("receive.fsck.badTimezone", "ignore"),
    ("receive.fsck.missingSpaceBeforeDate", "ignore"),
    ("receive.fsck.zeroPaddedFilemode", "ignore"),
)


class MalformedRequestError(RepositoryError):
    """git does not understand a client's request to fetch."""


@attrs.frozen(kw_only=True)
class Bounds:
    """Limits of one request: seconds from its beginning to its end, bytes of a pushed pack, and refs that a push may
    move."""

    time_limit: float = 7200.0
    pack_bytes: int = 2 * 2**30
    updates: int = MAX_UPDATES


DEFAULTS = Bounds()


def content_type(service: Service, part: Literal["advertisement", "result"]) -> str:
    """Return the media type of a kind of body, such as application/x-git-upload-pack-advertisement."""
    return f"application/x-{service}-{part}"


@asynccontextmanager
async def info_refs(
    repository: Path, service: Service, protocol: str | None = None, bounds: Bounds = DEFAULTS
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Answer `GET /info/refs?service=...`. `protocol` is the value of the header Git-Protocol."""
    writing = service == "git-receive-pack"
    arguments = [service.removeprefix("git-"), "--stateless-rpc", "--advertise-refs", str(repository)]
    async with start(
        arguments,
        configuration=WRITING if writing else _READING,
        extra_environment=_protocol_environment(protocol),
        time_limit=bounds.time_limit,
    ) as child:
        # Version 2 has no such line. receive-pack does not support version 2 and answers in version 0.
        heading = (
            b""
            if not writing and _is_version_2(protocol)
            else packet(f"# service={service}\n".encode()) + FLUSH
        )
        yield answer(child, heading)


@asynccontextmanager
async def upload_pack(
    repository: Path, body: AsyncIterable[bytes], protocol: str | None = None, bounds: Bounds = DEFAULTS
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Answer `POST /git-upload-pack` (clone, fetch): `async with upload_pack(...) as chunks: async for ...`.

    At the end of the block, also by cancellation, git and all its children are ended. Raise `GitError` if git fails
    without an answer, and `MalformedRequestError` if the request is the reason. A failure that git itself reports to
    the client is an answer.
    """
    async with (
        transferring(repository) as inherited,
        start(
            ["upload-pack", "--strict", "--stateless-rpc", str(repository)],
            configuration=_READING,
            extra_environment=_protocol_environment(protocol),
            with_stdin=True,
            time_limit=bounds.time_limit,
            pass_fds=inherited,
        ) as child,
    ):
        child.feed(body)
        yield answer(child)


async def answer(child: Child, heading: bytes = b"") -> AsyncIterator[bytes]:
    """Yield `heading` and git's output. Raise `MalformedRequestError` and `GitError` if git ends without output."""
    answered = False
    async for chunk in child.output():
        yield heading + chunk
        heading = b""
        answered = True
    status = await child.end()
    if status:
        # This is usual if a client hangs up or a shallow fetch ends its round. The client has got what matters.
        log.info("git ended with an error", command=child.command, status=status, stderr=child.stderr)
    if status > 0 and not answered and _NOT_UNDERSTOOD.search(child.stderr):
        raise MalformedRequestError("The request is not one of git's smart protocol.")
    if status < 0 or (status and not answered):
        raise git_error(child.command, status, child.stderr)


def _protocol_environment(protocol: str | None) -> dict[str, str]:
    return {"GIT_PROTOCOL": protocol} if protocol is not None and _PROTOCOL.fullmatch(protocol) else {}


def _is_version_2(protocol: str | None) -> bool:
    return protocol is not None and bool(_PROTOCOL.fullmatch(protocol)) and "version=2" in protocol.split(":")
