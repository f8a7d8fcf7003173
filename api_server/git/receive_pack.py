"""Pushes: git's receive-pack, and the verdict for which its pre-receive hook waits.

git runs the pre-receive hook when all objects have arrived and nothing has moved yet. The hook asks this process and
gets its verdict through two pipes. A pipe has no limit on the amount of data, unlike the environment; and it ends with
this process, which the hook treats as a refusal. If refs may be refused one by one, git then asks its proc-receive
hook about each of them. This hook passes on the rest of the same pipe, in the protocol of githooks(5).
"""

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import attrs

from api_server.git import at_work, repositories
from api_server.git.errors import OutputTooLargeError, classified_errors
from api_server.git.processes import OUTPUT_BYTES, Child, once, run, start
from api_server.git.received_push import (
    FLUSH,
    MalformedPushError,
    Push,
    PushParser,
    RefUpdate,
    Verdict,
    fast_forwards,
    packet,
    reflog_identity,
    refusal_of,
    refused_names,
    refused_refs,
)
from api_server.git.ref_moves import make_way
from api_server.git.ref_names import MAX_NAME_BYTES, is_hidden
from api_server.git.smart_http import DEFAULTS, HOOKS, WRITING, Bounds, answer
from common.concurrency import aside, end
from common.http_fields import rejoined

_PIECE = 4096


class PushGate:
    """The two pipes between this process and the hooks of one push. git gets `environment` and `childs_ends`, and
    hands them to the hooks."""

    def __init__(self) -> None:
        self._questions, question = os.pipe()
        verdict, self._verdicts = os.pipe()
        self.childs_ends = (question, verdict)
        self.environment = {
            "FORGELET_QUESTION": f"/dev/fd/{question}",
            "FORGELET_VERDICT": f"/dev/fd/{verdict}",
        }
        self._open = {self._questions, self._verdicts, *self.childs_ends}

    def let_go(self) -> None:
        """Close this process's copies of the child's ends. Call it once git has inherited them."""
        self._close(*self.childs_ends)

    async def question(self) -> Path | None:
        """Wait until the hook asks. Return the folder of the objects that have arrived, or `Path()` if there are none.

        Return None if git has ended without asking, because it could not use what arrived.
        """
        os.set_blocking(self._questions, False)
        line = b""
        while not line.endswith(b"\n"):
            await _readable(self._questions)
            chunk = os.read(self._questions, _PIECE)
            if not chunk:
                return None
            line += chunk
        return Path(os.fsdecode(line.removesuffix(b"\n")))

    async def refuse(self, sentence: str) -> None:
        """Make git refuse the whole push. The user reads the sentence."""
        await self._write_verdict(b"refused\n%s\n" % _line(sentence))

    async def accept(self, report: bytes = b"") -> None:
        """Let git continue. A push in parts needs a report on its refs (`report_of`)."""
        await self._write_verdict(b"accepted\n" + report)

    async def _write_verdict(self, text: bytes) -> None:
        self._open.discard(self._verdicts)  # from here on, the thread closes it
        await asyncio.to_thread(_write, self._verdicts, text)

    def _close(self, *descriptors: int) -> None:
        for descriptor in self._open.intersection(descriptors):
            os.close(descriptor)
            self._open.remove(descriptor)

    def close(self) -> None:
        """Close all pipes. A hook that has not been answered by now refuses the push."""
        self._close(*self._open)


async def _readable(descriptor: int) -> None:
    """Wait until the descriptor can be read. This does not use a transport of the event loop: uvloop's transports
    close a pipe twice, and the second time the descriptor may belong to another file."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


def _settle(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


def _write(descriptor: int, text: bytes) -> None:
    with suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as pipe:  # git may have ended meanwhile
        pipe.write(text)


def _line(sentence: str) -> bytes:
    return " ".join(sentence.split()).encode(errors="replace")


def report_of(updates: Iterable[RefUpdate], refused: Mapping[str, str]) -> bytes:
    """Return the report of the proc-receive hook, which says for each ref why it is refused, or that git is to move
    it.

    git refuses refs that are missing from the report: those of the server, and names that do not fit into a line.
    """
    lines = [packet(b"version=1"), FLUSH]
    for update in updates:
        ref = update.ref.encode(errors="surrogateescape")
        if b" " in ref or len(ref) > MAX_NAME_BYTES or not ref.startswith(b"refs/") or is_hidden(update.ref):
            continue
        if (sentence := refused.get(update.ref)) is not None:
            lines.append(packet(b"ng %s %s" % (ref, _line(sentence))))
        else:
            lines += [packet(b"ok %s" % ref), packet(b"option fall-through")]
    return b"".join([*lines, FLUSH])


@contextmanager
def push_gate() -> Iterator[PushGate]:
    """Yield a gate for the duration of the block."""
    gate = PushGate()
    try:
        yield gate
    finally:
        gate.close()


#: `async with judge(push, quarantine) as verdict:` lasts until git has moved the refs. `quarantine` has the
#: push's new objects, or None if it has brought none.
Judge = Callable[[Push, Path | None], AbstractAsyncContextManager[Verdict]]

#: Seconds in which receive-pack may finish after its client has gone. It sees the end of its input, and either
#: completes a push that has arrived whole (a pack has a checksum) or discards it. Killed by a signal, it would leave
#: the quarantined objects on disk.
TIMEOUT_SECONDS = 10.0
#: Maximum number of seconds for which git may move refs after the verdict: what the verdict depends on is locked
#: meanwhile.
MOVING_SECONDS = 120.0

#: Status of git-merge-base if an object does not exist.
_NOT_THERE = 128
#: Maximum number of bytes of a remark: packets of the oldest side band have 1,000 bytes.
_REMARK_BYTES = 900
#: Bytes, some hundred commands. Larger pieces are parsed in a thread.
_PARSED_AT_ONCE = 32 * 1024


@attrs.frozen
class PushRequest:
    """A push whose head has been read. `body` is the request's body from its beginning. `remarks` are lines that the
    user reads below git's answer; the judge adds to them."""

    push: Push
    body: AsyncIterator[bytes]
    remarks: list[str] = attrs.field(factory=list)


async def read_push(body: AsyncIterable[bytes], bounds: Bounds = DEFAULTS) -> PushRequest:
    """Read from `body` which refs the client wants to move. Raise `MalformedPushError` if the body is no push."""
    chunks = aiter(body)
    parser = PushParser(bounds.updates)
    while True:
        chunk = await _next(chunks)
        if await aside(len(chunk) > _PARSED_AT_ONCE, parser.feed, chunk):
            break
    return PushRequest(parser.push(), rejoined(bytes(parser.received), chunks))


@asynccontextmanager
async def receive_pack(
    repository: Path, request: PushRequest, judge: Judge, bounds: Bounds = DEFAULTS
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Answer `POST /git-receive-pack` (push).

    `judge` is called when all objects have arrived and before anything moves. It is not called for a probe without
    updates, for impossible names of refs, and for a pack that git rejects. The judge is the place to store the push
    for `received_push.applied_updates`, which finds out which of its updates happened.
    """
    push = request.push
    if not push.updates:
        yield once(b"")
        return
    _check_hooks()
    configuration = (
        *WRITING,
        ("receive.maxInputSize", str(bounds.pack_bytes)),
        # The objects stay in the pack in which they came: this is less to move and to sync than loose objects.
        ("transfer.unpackLimit", "1"),
        *((("receive.procReceiveRefs", "refs"),) if push.in_parts else ()),
    )
    with push_gate() as gate:
        async with (
            _written(repository) as (transferring, moving),
            start(
                ["receive-pack", "--stateless-rpc", str(repository)],
                configuration=configuration,
                extra_environment={**gate.environment, **reflog_identity(push)},
                with_stdin=True,
                time_limit=bounds.time_limit,
                exit_timeout=TIMEOUT_SECONDS,
                pass_fds=(*gate.childs_ends, transferring, moving),
            ) as child,
        ):
            gate.let_go()
            child.feed(request.body)
            receiving = _Receiving(repository, request, child, gate, moving)
            async with _judged(receiving, judge) as chunks:
                yield chunks


def _check_hooks() -> None:
    for hook in ("pre-receive", "proc-receive"):
        if not os.access(HOOKS / hook, os.X_OK):
            raise RuntimeError(
                f"{HOOKS / hook} must be an executable file: without it, no push would be refused."
            )


@attrs.frozen
class _Receiving:
    """A push that git is working on. git inherits the descriptor `moving`, and so holds the lock for "moving" as soon
    as this process joins it."""

    repository: Path
    request: PushRequest
    child: Child
    gate: PushGate
    moving: int


@asynccontextmanager
async def _written(repository: Path) -> AsyncIterator[tuple[int, int]]:
    """Hold the lock for "transferring" during the block, and mark the repository as written to. Yield the descriptor
    of this lock, and that of the file for "moving", which is not locked yet."""
    with classified_errors(), ExitStack() as stack:
        moving = at_work.open_file(repository, "moving")
        stack.callback(os.close, moving)
        async with at_work.at_work(repository, "transferring") as transferring:
            at_work.note_writing(repository)
            yield transferring, moving


@asynccontextmanager
async def _judged(receiving: _Receiving, judge: Judge) -> AsyncIterator[AsyncIterator[bytes]]:
    """Yield git's answer. It is read even if the client does not read: such a client must not make others wait for
    what the verdict holds."""
    output: asyncio.Queue[bytes | None] = asyncio.Queue()
    listening = asyncio.create_task(_listen(receiving.child, output))
    judging = asyncio.create_task(_judge(receiving, judge, listening))

    async def chunks() -> AsyncIterator[bytes]:
        rest = b""  # the last four bytes: remarks go before the final flush packet
        while (chunk := await output.get()) is not None:
            data = rest + chunk
            rest = data[-len(FLUSH) :]
            yield data[: -len(FLUSH)]
        await judging
        await listening
        if receiving.request.push.sideband and rest == FLUSH:
            yield b"".join(map(_remark, receiving.request.remarks))
        yield rest

    try:
        yield chunks()
    finally:
        try:
            await asyncio.wait({judging}, timeout=TIMEOUT_SECONDS)
        finally:  # also if this is cancelled
            await end(judging)
            await end(listening)


async def _listen(child: Child, output: "asyncio.Queue[bytes | None]") -> None:
    size = 0
    try:
        async for chunk in answer(child):
            size += len(chunk)
            if size > OUTPUT_BYTES:
                raise OutputTooLargeError(child.command, None, f"more than {OUTPUT_BYTES} bytes of output")
            output.put_nowait(chunk)
    finally:
        output.put_nowait(None)


def _remark(text: str) -> bytes:
    """Return a packet with a line of the side band, which git shows after `remote:`."""
    printable = "".join(character for character in text if character.isprintable())
    truncated = printable.encode(errors="replace")[:_REMARK_BYTES].decode(errors="ignore")
    return packet(b"\2%s\n" % truncated.encode())


async def _judge(receiving: _Receiving, judge: Judge, listening: "asyncio.Task[None]") -> None:
    """Wait for the hook's question and answer it. A hook that gets no answer refuses the push."""
    push, gate = receiving.request.push, receiving.gate
    try:
        quarantine = await gate.question()
        if quarantine is None:
            return
        impossible = await asyncio.to_thread(refused_names, push)
        if (refusal := refusal_of(push, Verdict(), impossible)) is not None:
            await gate.refuse(refusal)
            return
        folders = await asyncio.to_thread(_folders, quarantine) if quarantine.parts else []
        # The judge is not asked about impossible names, which may not even be text.
        possible = attrs.evolve(push, updates=tuple(u for u in push.updates if u.ref not in impossible))
        async with judge(possible, quarantine if quarantine.parts else None) as verdict:
            refused = impossible | await _refused(receiving.repository, possible, verdict, quarantine)
            if (refusal := refusal_of(push, verdict, refused)) is None:
                await _accept(receiving, refused, folders, listening)
            else:
                await gate.refuse(refusal)
    finally:
        gate.close()


async def _refused(repository: Path, push: Push, verdict: Verdict, quarantine: Path) -> dict[str, str]:
    """Return the reason for each ref of a push that does not move, including those that would have to be forced."""
    refused = await asyncio.to_thread(refused_refs, push, verdict)
    if refusal_of(push, verdict, refused) is not None:
        return refused
    quoted = str(quarantine).replace("\\", "\\\\").replace('"', '\\"')
    for update in await asyncio.to_thread(fast_forwards, push, verdict):
        if update.ref in refused:
            continue
        completed = await run(
            ["merge-base", "--is-ancestor", update.old, update.new],
            repository=repository,
            extra_environment={"GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{quoted}"'} if quarantine.parts else {},
            accept=(0, 1, _NOT_THERE),
        )
        if completed.returncode:
            refused[update.ref] = f"You are not allowed to force push to the protected {update.ref}."
    return refused


def _folders(arrived: Path) -> list[str]:
    """Return the names of the folders below `objects` that get new objects."""
    return [entry.name for entry in os.scandir(arrived) if entry.is_dir()]


async def _accept(
    receiving: _Receiving,
    refused: Mapping[str, str],
    folders: Sequence[str],
    listening: "asyncio.Task[None]",
) -> None:
    """Accept the push. Return when git moves no refs any more, and those that it has moved are on the disk."""
    repository, push, child = receiving.repository, receiving.request.push, receiving.child
    refs = [update.ref for update in push.updates if update.ref not in refused]
    try:
        report = await asyncio.to_thread(report_of, push.updates, refused) if push.in_parts else b""
        await make_way(repository, refs)
        await at_work.join(receiving.moving)
        await receiving.gate.accept(report)
        done, _ = await asyncio.wait({listening}, timeout=MOVING_SECONDS)
        if not done:
            child.expire()
    finally:  # also if this is cancelled
        await child.stop()
    await asyncio.to_thread(_sync, repository, folders, refs)


def _sync(repository: Path, folders: Sequence[str], refs: Sequence[str]) -> None:
    repositories.sync_objects(repository, folders)
    repositories.sync_refs(repository, refs)


async def _next(chunks: AsyncIterator[bytes]) -> bytes:
    chunk = await anext(chunks, None)
    if chunk is None:
        raise MalformedPushError("The request ended before its first flush packet.")
    return chunk
