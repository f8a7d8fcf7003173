"""A push: git's receive-pack, and the verdict for which its pre-receive hook waits.

git runs the hook pre-receive when all objects have arrived and nothing has moved yet. A pipe has no bound on what it
carries, as the environment has; and it ends with this process, which the hook takes for a refusal. For each of several
refs git then asks its proc-receive hook, which hands on what follows in the same pipe, in the protocol of githooks(5).
"""

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import attrs

from api_server.git import at_work, repositories
from api_server.git.errors import OutputTooLargeError, told_apart
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
    """Both pipes of one push. `environment` and `childs_ends` are for git, which hands them to the hook."""

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
        """Close the child's ends here: once git has them, or is not going to."""
        self._close(*self.childs_ends)

    async def question(self) -> Path | None:
        """Wait until the hook asks: the folder of the objects that have arrived, `Path()` where there are none.

        None where git has ended without asking, because what arrived was no use.
        """
        os.set_blocking(self._questions, False)
        line = b""
        while not line.endswith(b"\n"):
            await _readable(self._questions)
            piece = os.read(self._questions, _PIECE)
            if not piece:
                return None
            line += piece
        return Path(os.fsdecode(line.removesuffix(b"\n")))

    async def refuse(self, sentence: str) -> None:
        """Have git refuse the whole push; the user reads the sentence."""
        await self._tell(b"refused\n%s\n" % _line(sentence))

    async def accept(self, report: bytes = b"") -> None:
        """Have git go on; a push in parts needs the `report_of` its refs."""
        await self._tell(b"accepted\n" + report)

    async def _tell(self, text: bytes) -> None:
        self._open.discard(self._verdicts)  # it is the thread's from here on
        await asyncio.to_thread(_write, self._verdicts, text)

    def _close(self, *descriptors: int) -> None:
        for descriptor in self._open.intersection(descriptors):
            os.close(descriptor)
            self._open.remove(descriptor)

    def close(self) -> None:
        """Close all pipes. A hook that has not been answered by now refuses the push."""
        self._close(*self._open)


async def _readable(descriptor: int) -> None:
    """Not by a transport of the loop: uvloop's closes a pipe twice, the second time perhaps what is somebody else's."""
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
    """Return what the proc-receive hook reports: of each ref its refusal, or that git is to move it.

    git refuses refs that are not reported: those of the server, and names that do not fit into a line.
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
    """Yield a gate for the length of a block."""
    gate = PushGate()
    try:
        yield gate
    finally:
        gate.close()


#: `async with judge(push, arrived) as verdict:` lasts until git has moved what it moves. `arrived` is the folder of the
#: push's new objects, if it has brought any.
Judge = Callable[[Push, Path | None], AbstractAsyncContextManager[Verdict]]

#: When a client goes away, receive-pack sees its input end: it completes what it has wholly received (a pack
#: has a checksum) or throws it away. Killed by a signal it would leave the quarantined objects on disk.
TIMEOUT_SECONDS = 10.0
#: How long git may move refs after the verdict: what the verdict depends on is held meanwhile.
MOVING_SECONDS = 120.0

#: Which git says of objects that are not there.
_NOT_THERE = 128
#: The oldest side band has packets of 1,000 bytes.
_REMARK_BYTES = 900
#: Some hundred commands.
_PARSED_AT_ONCE = 32 * 1024


@attrs.frozen
class PushRequest:
    """A push whose head has been read. `body` is the request's, from its beginning; `remarks` are lines that the user
    reads below git's answer, to which the judge adds."""

    push: Push
    body: AsyncIterator[bytes]
    remarks: list[str] = attrs.field(factory=list)


async def read_push(body: AsyncIterable[bytes], bounds: Bounds = DEFAULTS) -> PushRequest:
    """Read which refs `body` wants to move. Raise `MalformedPushError` for a body that is no push."""
    chunks = aiter(body)
    parser = PushParser(bounds.updates)
    while True:
        piece = await _next(chunks)
        if await aside(len(piece) > _PARSED_AT_ONCE, parser.feed, piece):
            break
    return PushRequest(parser.push(), rejoined(bytes(parser.received), chunks))


@asynccontextmanager
async def receive_pack(
    repository: Path, request: PushRequest, judge: Judge, bounds: Bounds = DEFAULTS
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Answer `POST /git-receive-pack` (push).

    `judge` is asked when all objects have arrived and before anything moves; not at all for a probe without updates,
    for names that cannot be, and for a pack that git does not take. It is the place to store the push for
    `received_push.applied_updates`, which says what has become of it.
    """
    push = request.push
    if not push.updates:
        yield once(b"")
        return
    _check_hooks()
    configuration = (
        *WRITING,
        ("receive.maxInputSize", str(bounds.pack_bytes)),
        # It stays the pack that it came as: less to move and to sync than loose objects.
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
            raise RuntimeError(f"{HOOKS / hook} must be an executable file; nothing is refused without.")


@attrs.frozen
class _Receiving:
    """A push that git is busy with. `moving` is inherited by git, which is at work on that once we join."""

    repository: Path
    request: PushRequest
    child: Child
    gate: PushGate
    moving: int


@asynccontextmanager
async def _written(repository: Path) -> AsyncIterator[tuple[int, int]]:
    """Is at work on "transferring", and gives that descriptor and the one for "moving"."""
    with told_apart(), ExitStack() as stack:
        moving = at_work.open_file(repository, "moving")
        stack.callback(os.close, moving)
        async with at_work.at_work(repository, "transferring") as transferring:
            at_work.note_writing(repository)
            yield transferring, moving


@asynccontextmanager
async def _judged(receiving: _Receiving, judge: Judge) -> AsyncIterator[AsyncIterator[bytes]]:
    """git's answer. It is read whether the client listens or not: one that does not must not make others wait for what
    the verdict holds."""
    said: asyncio.Queue[bytes | None] = asyncio.Queue()
    listening = asyncio.create_task(_listen(receiving.child, said))
    judging = asyncio.create_task(_judge(receiving, judge, listening))

    async def chunks() -> AsyncIterator[bytes]:
        rest = b""  # git's last word waits for the remarks
        while (chunk := await said.get()) is not None:
            whole = rest + chunk
            rest = whole[-len(FLUSH) :]
            yield whole[: -len(FLUSH)]
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
        finally:  # also when that is cancelled
            await end(judging)
            await end(listening)


async def _listen(child: Child, said: "asyncio.Queue[bytes | None]") -> None:
    size = 0
    try:
        async for chunk in answer(child):
            size += len(chunk)
            if size > OUTPUT_BYTES:
                raise OutputTooLargeError(child.command, None, f"more than {OUTPUT_BYTES} bytes of output")
            said.put_nowait(chunk)
    finally:
        said.put_nowait(None)


def _remark(text: str) -> bytes:
    """Return a line of the side band, which git shows behind `remote:`."""
    printable = "".join(character for character in text if character.isprintable())
    cut = printable.encode(errors="replace")[:_REMARK_BYTES].decode(errors="ignore")
    return packet(b"\2%s\n" % cut.encode())


async def _judge(receiving: _Receiving, judge: Judge, listening: "asyncio.Task[None]") -> None:
    """Wait for the hook's question and answer it; a hook that is not answered refuses."""
    push, gate = receiving.request.push, receiving.gate
    try:
        arrived = await gate.question()
        if arrived is None:
            return
        impossible = await asyncio.to_thread(refused_names, push)
        if (refusal := refusal_of(push, Verdict(), impossible)) is not None:
            await gate.refuse(refusal)
            return
        folders = await asyncio.to_thread(_folders, arrived) if arrived.parts else []
        # Nobody is asked about names that cannot be: they may not even be text.
        possible = attrs.evolve(push, updates=tuple(u for u in push.updates if u.ref not in impossible))
        async with judge(possible, arrived if arrived.parts else None) as verdict:
            refused = impossible | await _refused(receiving.repository, possible, verdict, arrived)
            if (refusal := refusal_of(push, verdict, refused)) is None:
                await _accept(receiving, refused, folders, listening)
            else:
                await gate.refuse(refusal)
    finally:
        gate.close()


async def _refused(repository: Path, push: Push, verdict: Verdict, arrived: Path) -> dict[str, str]:
    """Return why refs of a push do not move, also those that would have to be forced."""
    refused = await asyncio.to_thread(refused_refs, push, verdict)
    if refusal_of(push, verdict, refused) is not None:
        return refused
    quoted = str(arrived).replace("\\", "\\\\").replace('"', '\\"')
    for update in await asyncio.to_thread(fast_forwards, push, verdict):
        if update.ref in refused:
            continue
        looked = await run(
            ["merge-base", "--is-ancestor", update.old, update.new],
            repository=repository,
            extra_environment={"GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{quoted}"'} if arrived.parts else {},
            accept=(0, 1, _NOT_THERE),
        )
        if looked.returncode:
            refused[update.ref] = f"You are not allowed to force push to the protected {update.ref}."
    return refused


def _folders(arrived: Path) -> list[str]:
    """Where new objects will be, below `objects`."""
    return [entry.name for entry in os.scandir(arrived) if entry.is_dir()]


async def _accept(
    receiving: _Receiving,
    refused: Mapping[str, str],
    folders: Sequence[str],
    listening: "asyncio.Task[None]",
) -> None:
    """Return when git moves no refs any more, and what it has moved is on the disk."""
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
    finally:  # also when that is cancelled
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
