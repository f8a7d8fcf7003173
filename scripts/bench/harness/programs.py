"""Programs that listen while something is measured, and end with it."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from forgelet.local.api_client import answers
from scripts.bench.harness.rows import NotMeasured

SECONDS = 30.0


def need(*programs: str) -> None:
    """Raises `NotMeasured` where one of them is not installed."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        raise NotMeasured(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed.")


@contextlib.contextmanager
def listening(
    command: list[str],
    port: int,
    log: Path,
    environment: dict[str, str] | None = None,
    *,
    asked: str | None = None,
) -> Iterator[int]:
    """Runs a program until it listens on `port`, or answers `asked` with 200, and gives its process id."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        deadline = time.monotonic() + SECONDS
        while not (_listens(port) if asked is None else answers(f"http://127.0.0.1:{port}{asked}")):
            if process.poll() is not None or time.monotonic() > deadline:
                last = (log.read_text(errors="replace").strip().splitlines() or ["it says nothing"])[-1]
                raise NotMeasured(f"{Path(command[0]).name} does not start: {last}")
            time.sleep(0.02)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
