"""Git's smart HTTP protocol (gitprotocol-http(5), versions 0 to 2) over upload-pack and receive-pack.

Bodies are async iterables of bytes with any Content-Encoding already undone.
"""

import os
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import structlog

from api_server.git.errors import GitError
from api_server.git.processes import Child, once, start
from api_server.git.received_push import (
    REFLOGS,
    MalformedPushError,
    Push,
    PushParser,
    Verdict,
    reflog_identity,
    refusal_of,
)
from api_server.git.ref_names import KEEP_AROUND, MERGE_REQUESTS

log = structlog.stdlib.get_logger(__name__)

Service = Literal["git-upload-pack", "git-receive-pack"]
Decide = Callable[[Push], Awaitable[Verdict]]

HOOKS = Path(__file__).with_name("hooks")
TIME_LIMIT_SECONDS = 6 * 3600.0
#: When a client goes away, receive-pack sees its input end: it completes what it has wholly received (a pack
#: has a checksum) or throws it away. Killed by a signal it would leave the quarantined objects on disk.
PATIENCE_SECONDS = 10.0
#: Linux passes at most 128 KiB in one environment variable.
_MAX_VARIABLE_BYTES = 100_000
_PROTOCOL = re.compile(r"[a-z0-9=:.-]{1,100}")
_FLUSH = b"0000"

_READING = (
    ("uploadpack.allowFilter", "true"),
    ("uploadpack.allowAnySHA1InWant", "true"),  # a job fetches its commit, wherever its branch is by now
    ("uploadpack.hideRefs", KEEP_AROUND.rstrip("/")),
)
_WRITING = (
    ("core.hooksPath", str(HOOKS)),
    ("receive.advertisePushOptions", "true"),
    ("receive.hideRefs", KEEP_AROUND.rstrip("/")),
    ("receive.hideRefs", MERGE_REQUESTS.rstrip("/")),
    ("receive.autogc", "false"),
    *REFLOGS,
    ("receive.fsckObjects", "true"),
    # Harmless faults of old tools that live on in many histories.
    ("receive.fsck.badTimezone", "ignore"),
    ("receive.fsck.missingSpaceBeforeDate", "ignore"),
    ("receive.fsck.zeroPaddedFilemode", "ignore"),
)


def content_type(service: Service, part: Literal["advertisement", "result"]) -> str:
    """The media type of each kind of body, such as application/x-git-upload-pack-advertisement."""
    return f"application/x-{service}-{part}"


@asynccontextmanager
async def info_refs(
    repository: Path, service: Service, protocol: str | None = None
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Answers `GET /info/refs?service=...`; `protocol` is the Git-Protocol header."""
    writing = service == "git-receive-pack"
    arguments = [service.removeprefix("git-"), "--stateless-rpc", "--advertise-refs", str(repository)]
    async with start(
        arguments,
        configuration=_WRITING if writing else _READING,
        extra_environment=_protocol_environment(protocol),
        time_limit=TIME_LIMIT_SECONDS,
    ) as child:
        # Version 2 has no such line; receive-pack knows no version 2 and answers in version 0.
        heading = (
            b"" if not writing and _is_version_2(protocol) else _packet(f"# service={service}\n") + _FLUSH
        )
        yield _answer(child, heading)


@asynccontextmanager
async def upload_pack(
    repository: Path, body: AsyncIterable[bytes], protocol: str | None = None
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Answers `POST /git-upload-pack` (clone, fetch): `async with upload_pack(...) as chunks: async for ...`.

    Leaving the block, also by cancellation, ends git and all its children. Raises `GitError` when git fails
    without an answer; what git itself tells the client about a failure is an answer.
    """
    async with start(
        ["upload-pack", "--strict", "--stateless-rpc", str(repository)],
        configuration=_READING,
        extra_environment=_protocol_environment(protocol),
        with_stdin=True,
        time_limit=TIME_LIMIT_SECONDS,
    ) as child:
        child.feed(body)
        yield _answer(child)


@asynccontextmanager
async def receive_pack(
    repository: Path, body: AsyncIterable[bytes], decide: Decide
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Answers `POST /git-receive-pack` (push).

    `decide` is asked before git starts, and not at all for a probe without updates or for names that cannot be; it
    is the place to store the push for `received_push.applied_updates`, which the caller asks afterwards, however the
    block was left. Raises `MalformedPushError` for a body that is no push.
    """
    pieces = aiter(body)
    parser = PushParser()
    while not parser.feed(await _next(pieces)):
        pass
    push = parser.push()
    if not push.updates:
        yield once(b"")
        return
    if not os.access(HOOKS / "pre-receive", os.X_OK):
        raise RuntimeError(f"{HOOKS / 'pre-receive'} must be an executable file; nothing is refused without.")
    # A name that no ref may have is refused without asking: it may not even be text.
    refusal = refusal_of(push, Verdict())
    verdict = await decide(push) if refusal is None else Verdict(refusal)
    async with start(
        ["receive-pack", "--stateless-rpc", str(repository)],
        configuration=_WRITING,
        extra_environment=_hook_environment(push, verdict),
        with_stdin=True,
        time_limit=TIME_LIMIT_SECONDS,
        patience=PATIENCE_SECONDS,
    ) as child:
        child.feed(_rejoined(bytes(parser.received), pieces))
        yield _answer(child)


async def _answer(child: Child, heading: bytes = b"") -> AsyncIterator[bytes]:
    answered = False
    async for chunk in child.output():
        yield heading + chunk
        heading = b""
        answered = True
    status = await child.end()
    if status:
        # Usual when a client hangs up or a shallow fetch ends its round; the client was told what matters.
        log.info("git ended with an error", command=child.command, status=status, stderr=child.stderr)
    if status < 0 or (status and not answered):
        raise GitError(child.command, status, child.stderr)


def _hook_environment(push: Push, verdict: Verdict) -> dict[str, str]:
    guarded = [u for u in push.updates if u.kind == "update" and u.ref in verdict.fast_forward_only]
    lines = "\n".join(f"{update.old} {update.new} {update.ref}" for update in guarded)
    refusal = refusal_of(push, verdict)
    if refusal is None and len(lines.encode(errors="replace")) > _MAX_VARIABLE_BYTES:
        refusal = "The push moves too many protected refs at once; push fewer."
    return {
        "FORGELET_REFUSAL": (refusal or "").replace("\0", "")[:4000],
        "FORGELET_FAST_FORWARD_ONLY": lines if refusal is None else "",
        **reflog_identity(push),
    }


def _protocol_environment(protocol: str | None) -> dict[str, str]:
    return {"GIT_PROTOCOL": protocol} if protocol is not None and _PROTOCOL.fullmatch(protocol) else {}


def _is_version_2(protocol: str | None) -> bool:
    return protocol is not None and bool(_PROTOCOL.fullmatch(protocol)) and "version=2" in protocol.split(":")


def _packet(line: str) -> bytes:
    return f"{len(line) + 4:04x}{line}".encode()


async def _next(pieces: AsyncIterator[bytes]) -> bytes:
    piece = await anext(pieces, None)
    if piece is None:
        raise MalformedPushError("The request ended before its first flush packet.")
    return piece


async def _rejoined(head: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield head
    async for piece in rest:
        yield piece
