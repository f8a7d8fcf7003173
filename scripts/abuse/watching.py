"""What the processes under attack hold and compute: memory, children, descriptors, steps (Linux)."""

import asyncio
import contextlib
import re
import threading
from pathlib import Path

import aiohttp
import attrs

SAMPLE_SECONDS = 0.05
_PING_SECONDS = 0.02
_MIB = 2**20


@attrs.frozen
class Held:
    """At one moment: child processes of a server, its open descriptors, and bytes of its memory."""

    children: int
    descriptors: int
    memory: int = 0


@attrs.define
class Peak:
    """The most that was seen while an attack went on: bytes of the server, and of its children together; and what its
    event loop computed before it answered, in seconds of the processor."""

    memory: int = 0
    step: float = 0.0
    children: int = 0
    children_memory: int = 0


class Watched:
    """A server's process, looked at for as long as a `with` block lasts."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.peak = Peak()
        self._over = threading.Event()

    def __enter__(self) -> "Watched":
        self.peak = Peak()
        self._over.clear()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def held(self) -> Held:
        """Raises ProcessLookupError when the server has gone."""
        try:
            descriptors = len(list(Path(f"/proc/{self.pid}/fd").iterdir()))
        except FileNotFoundError:
            raise ProcessLookupError(f"The server {self.pid} has ended.") from None
        return Held(len(descendants(self.pid)), descriptors, resident(self.pid))

    def _look(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            children = descendants(self.pid)
            self.peak.memory = max(self.peak.memory, resident(self.pid))
            self.peak.children = max(self.peak.children, len(children))
            self.peak.children_memory = max(self.peak.children_memory, sum(map(resident, children)))


def process_in(directory: Path) -> int:
    """The server that works in `directory`: a child of it that works there too does not count."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cwd").readlink() == directory:
                found.append(int(entry.name))
    if not found:
        raise ProcessLookupError(f"No process works in {directory}.")
    return min(found)


def megabytes(size: int) -> str:
    return f"{size / _MIB:.0f}"


def descendants(pid: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            _, _, rest = (entry / "stat").read_text().rpartition(") ")
            children.setdefault(int(rest.split()[1]), []).append(int(entry.name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        mine = children.get(waiting.pop(), [])
        found.update(mine)
        waiting.extend(mine)
    return found


def resident(pid: int) -> int:
    """Resident bytes that no file backs: what the process itself has asked for."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return sum(int(kilobytes) for kilobytes in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+)", status)) * 1024
    return 0


async def longest_step(http: aiohttp.ClientSession, url: str, pid: int) -> float:
    """Ask until cancelled; the most that the event loop has computed before an answer, in seconds of the processor."""
    longest = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            began = loop_seconds(pid)
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with http.get(url) as answer:
                    await answer.read()
                longest = max(longest, loop_seconds(pid) - began)
            await asyncio.sleep(_PING_SECONDS)
    return longest


def seconds(pid: int) -> float:
    """Seconds of the processor that a process has used."""
    return sum(map(_of_thread, Path(f"/proc/{pid}/task").iterdir()))


def loop_seconds(pid: int) -> float:
    """Those of its first thread, which runs the event loop."""
    return _of_thread(Path(f"/proc/{pid}/task/{pid}"))


def _of_thread(thread: Path) -> float:
    return int((thread / "schedstat").read_text().split()[0]) / 1e9
