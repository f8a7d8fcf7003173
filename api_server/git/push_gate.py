"""Where a push waits for its verdict: our pre-receive hook asks through one pipe and is told through another.

git runs the hook when all objects have arrived and nothing has moved yet. A pipe has no bound on what it carries, as
the environment has; and it ends with this process, which the hook takes for a refusal. For each of several refs git
then asks its proc-receive hook, which hands on what follows in the same pipe, in the protocol of githooks(5).
"""

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from api_server.git.received_push import FLUSH, RefUpdate, packet
from api_server.git.ref_names import MAX_NAME_BYTES, is_hidden

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
        """Closes the child's ends here: once git has them, or is not going to."""
        self._close(*self.childs_ends)

    async def question(self) -> Path | None:
        """Waits until the hook asks: the folder of the objects that have arrived, `Path()` where there are none.

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
        """What was not told by now is a refusal."""
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
    """A gate for the length of a block."""
    gate = PushGate()
    try:
        yield gate
    finally:
        gate.close()
