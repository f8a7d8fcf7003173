"""The programs that make load: wrk for HTTP, pgbench for PostgreSQL."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from forgelet.local import postgres_binaries
from scripts.bench.rows import SkippedError

CONNECTIONS = 16


def http_requests(url: str, headers: dict[str, str], seconds: int, script: Path | None = None) -> float:
    """Requests a second that `url` answers with 2xx or 3xx, over kept-alive connections.

    `script` is Lua that makes the requests, in wrk's manner.
    """
    if shutil.which("wrk") is None:
        raise SkippedError("the program wrk is not installed")
    options = [option for name, value in headers.items() for option in ("-H", f"{name}: {value}")]
    if script is not None:
        options += ["-s", str(script)]
    said = _said(["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", *options, url])
    if "Non-2xx" in said:
        raise RuntimeError(f"Not every answer was a success: {said}")
    return _figure(r"Requests/sec:\s+([\d.]+)", said)


def statements(script: str, connection: dict[str, str], seconds: int, clients: int) -> float:
    """Times a second that pgbench gets through `script`, whose variable `prepared` is 0 at first."""
    pgbench = postgres_binaries.preferred().directory / "pgbench"
    if not pgbench.exists():
        raise SkippedError(f"there is no pgbench in {pgbench.parent}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "script.sql")
        file.write_text(script)
        options = ["--no-vacuum", "--define=prepared=0", "--protocol=simple", "--jobs=2"]
        amount = [f"--client={clients}", f"--time={seconds}"]
        said = _said([str(pgbench), *options, *amount, f"--file={file}"], **connection)
    return _figure(r"tps = ([\d.]+)", said)


def _said(command: list[str], **environment: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()}")
    return done.stdout


def _figure(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"No figure in: {text}")
    return float(found[1])
