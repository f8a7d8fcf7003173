"""The programs that make load: wrk for HTTP, pgbench for PostgreSQL."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from forgelet.local import postgres_binaries
from scripts.bench.harness import processor
from scripts.bench.harness.rows import NotMeasured, Sample

CONNECTIONS = 16
#: Seconds in which a server must have answered once.
SLOWEST = 10.0
#: wrk takes whole seconds only: rounds are ended by a signal, after which it prints what it has counted.
_LONGEST = 3600


def http_requests(
    url: str,
    seconds: float,
    headers: dict[str, str] | None = None,
    *,
    script: Path | None = None,
    pids: Iterable[int] = (),
) -> Sample:
    """Requests a second that `url` answers with 2xx or 3xx, over kept-alive connections.

    `script` is Lua that makes the requests, in wrk's manner; `pids` are the processes whose processor time counts.
    """
    if shutil.which("wrk") is None:
        raise NotMeasured("the program wrk is not installed.")
    options = [option for name, value in (headers or {}).items() for option in ("-H", f"{name}: {value}")]
    if script is not None:
        options += ["-s", str(script)]
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{_LONGEST}s", f"--timeout={SLOWEST:.0f}s", *options, url]
    watched = list(pids)
    while True:
        before = processor.seconds(watched)
        said = _until(command, seconds)
        used = processor.seconds(watched) - before
        if "Non-2xx" in said or "Socket errors" in said:
            raise RuntimeError(f"Not every answer was a success: {said}")
        if requests := _figure(r"(\d+) requests in", said):
            rate = _figure(r"Requests/sec:\s+([\d.]+)", said)
            return Sample(rate, used / requests * 1e6 if watched else None)
        if seconds > SLOWEST:
            raise RuntimeError(f"{url} has not answered in {seconds:.0f} s.")
        seconds *= 4


def http_bytes(url: str, seconds: float, *, connections: int, pids: Iterable[int] = ()) -> Sample:
    """Megabytes a second of a large body, answers that are cut off at the end included; processor time is that of a
    megabyte."""
    if shutil.which("wrk") is None:
        raise NotMeasured("the program wrk is not installed.")
    command = ["wrk", "-t1", f"-c{connections}", f"-d{_LONGEST}s", f"--timeout={SLOWEST:.0f}s", url]
    watched = list(pids)
    before = processor.seconds(watched)
    said = _until(command, seconds)
    used = processor.seconds(watched) - before
    read, unit = re.search(r"([\d.]+)(KB|MB|GB) read", said).groups()  # type: ignore[union-attr]
    megabytes = float(read) * {"KB": 2**10, "MB": 2**20, "GB": 2**30}[unit] / 1e6
    return Sample(megabytes / seconds, used / megabytes * 1e6 if watched else None)


def statements(script: str, connection: dict[str, str], seconds: float, clients: int) -> Sample:
    """Times a second that pgbench gets through `script`, whose variable `prepared` is 0 at first."""
    pgbench = postgres_binaries.preferred().directory / "pgbench"
    if not pgbench.exists():
        raise NotMeasured("pgbench does not belong to the PostgreSQL that is used.")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "script.sql")
        file.write_text(script)
        options = ["--no-vacuum", "--define=prepared=0", "--protocol=simple", "--jobs=2"]
        amount = [f"--client={clients}", f"--time={max(1, round(seconds))}"]
        command = [str(pgbench), *options, *amount, f"--file={file}"]
        done = subprocess.run(
            command, env={**os.environ, **connection}, capture_output=True, text=True, check=False
        )
    if done.returncode != 0:
        raise RuntimeError(f"pgbench failed: {done.stderr.strip()}")
    return Sample(_figure(r"tps = ([\d.]+)", done.stdout))


def _until(command: list[str], seconds: float) -> str:
    """What the program says that is asked to end after so long."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(2)  # SIGINT
            said, _ = process.communicate(timeout=60)
    if process.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {said.strip()}")
    return said


def _figure(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"No figure in: {text}")
    return float(found[1])
