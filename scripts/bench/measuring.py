"""Measure load with wrk and pgbench, and describe the machine."""

import contextlib
import itertools
import os
import platform
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from forgelet.local import embedded_postgres
from forgelet.local.processes import Child, reason_in_log
from forgelet.testing.api import answers
from scripts.bench.runs import TINY, NotMeasured, Sample
from scripts.harness.processes import descendants
from tests.support.ports import free_port, is_listened_on


def describe_machine() -> dict[str, str]:
    """Return processor, Python, PostgreSQL and git, but no names of hosts."""
    match = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "processor": f"{len(os.sched_getaffinity(0))} x {match[1].strip() if match else platform.machine()}",
        "load before": f"{os.getloadavg()[0]:.2f}",
        "Python": platform.python_version(),
        "PostgreSQL": _last_word([str(embedded_postgres.preferred().postgres), "--version"]),
        "git": _last_word(["git", "--version"]),
    }


def _last_word(command: list[str]) -> str:
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    match = re.search(r"\d[\d.]*", output)
    return match[0] if match else output.strip()


_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pids: Iterable[int]) -> float:
    """Return the processor time of these processes, of their running descendants, and of the children that they have
    waited for."""
    return sum(_ticks(process) for pid in pids for process in {pid, *descendants(pid)}) / _TICKS


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    # user, system, and both of children that were waited for
    return sum(int(field) for field in fields[11:15])


#: Seconds within which a program has to start on a busy machine; the API server migrates its database first.
START_SECONDS = 120.0
STOP_SECONDS = 10.0


def need(*programs: str) -> None:
    """Raise `NotMeasured` if one of the programs is not installed."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        raise NotMeasured(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed.")


@contextlib.contextmanager
def started(
    command: list[str],
    log: Path,
    is_ready: Callable[[], bool],
    environment: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """Run a program, with all processes that it starts, for the duration of the block; yield its process id when it is
    ready."""
    child = Child(Path(command[0]).name, command, log=log, environment=environment)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready():
            if child.has_ended() or time.monotonic() > deadline:
                raise NotMeasured(f"{child.name} does not start: {reason_in_log(log) or 'it says nothing'}")
            time.sleep(0.02)
        yield child.process.pid
    finally:
        child.stop(STOP_SECONDS)


def listening(
    command: list[str],
    port: int,
    log: Path,
    environment: Mapping[str, str] | None = None,
    *,
    path: str | None = None,
) -> contextlib.AbstractContextManager[int]:
    """Run a program as `started` does. It is ready when it listens on `port`, or answers `path` with 200."""
    url = f"http://127.0.0.1:{port}{path}"
    is_ready = partial(is_listened_on, port) if path is None else partial(answers, url)
    return started(command, log, is_ready, environment)


@contextlib.contextmanager
def small_server(*arguments: str) -> Iterator[tuple[int, int]]:
    """Run one of `small_servers.py`; yield its port and its process id."""
    port = free_port()
    command = [sys.executable, "-m", "scripts.bench.small_servers", str(port), *arguments]
    with listening(command, port, Path(os.devnull)) as pid:
        yield port, pid


NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log; {user}
events {{ worker_connections 4096; }}
http {{
  access_log {log}; client_body_temp_path {folder}/b; fastcgi_temp_path {folder}/f; proxy_temp_path {folder}/p;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  {http}
  server {{ listen 127.0.0.1:{port}; location / {{ {location} }} }}
}}
"""


@contextlib.contextmanager
def nginx(folder: Path, http: str, location: str, *, logs: bool = True) -> Iterator[tuple[int, int]]:
    """Run nginx with these directives of `http` and `location /`; yield its port and its process id."""
    need("nginx")
    port, configuration = free_port(), folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    log = folder / "access.log" if logs else "off"
    text = NGINX.format(folder=folder, port=port, user=user, log=log, http=http, location=location)
    configuration.write_text(text)
    with listening(["nginx", "-p", str(folder), "-c", str(configuration)], port, folder / "log") as pid:
        yield port, pid


CONNECTIONS = 16
#: Seconds within which a server has to answer a first request.
SLOWEST = 10.0
#: wrk accepts only whole seconds, so a signal ends each round, after which wrk prints its results.
_LONGEST = 3600
END_SECONDS = 60


def http_requests(
    url: str,
    seconds: float,
    headers: dict[str, str] | None = None,
    *,
    script: Path | None = None,
    pids: Sequence[int] = (),
) -> Sample:
    """Measure the requests per second that `url` answers with 2xx or 3xx, on kept-alive connections.

    `script` is Lua that creates the requests, as wrk defines it; `pids` are the processes whose processor time counts.
    """
    options = [option for name, value in (headers or {}).items() for option in ("-H", f"{name}: {value}")]
    if script is not None:
        options += ["-s", str(script)]
    while True:
        output, cpu_seconds = _wrk([*options, url], CONNECTIONS, seconds, pids)
        if "Non-2xx" in output or "Socket errors" in output:
            raise RuntimeError(f"Not every answer was a success: {output}")
        if requests := _figure(r"(\d+) requests in", output):
            rate = _figure(r"Requests/sec:\s+([\d.]+)", output)
            return Sample(rate, cpu_seconds / requests * 1e6 if pids else None)
        if seconds > SLOWEST:
            raise RuntimeError(f"{url} has not answered in {seconds:.0f} s.")
        seconds *= 4


def http_bytes(url: str, seconds: float, *, connections: int, pids: Sequence[int] = ()) -> Sample:
    """Measure megabytes per second of a large body, including answers that are cut off at the end. The processor time
    is that of one megabyte."""
    output, cpu_seconds = _wrk([url], connections, seconds, pids)
    rate, read = (
        _megabytes(pattern, output) for pattern in (r"Transfer/sec: +([\d.]+)(.)?B", r"([\d.]+)(.)?B read")
    )
    return Sample(rate, cpu_seconds / read * 1e6 if pids else None)


def _wrk(arguments: list[str], connections: int, seconds: float, pids: Sequence[int]) -> tuple[str, float]:
    """Run wrk for this many seconds; return its output, and the processor time of these processes."""
    need("wrk")
    limits = [f"-c{connections}", f"-d{_LONGEST}s", f"--timeout={SLOWEST:.0f}s"]
    before = processor_seconds(pids)
    output = _run_for(["wrk", "-t1", *limits, *arguments], seconds)
    return output, processor_seconds(pids) - before


CROWD_SECONDS = 300.0  # seconds
_CHUNK_BYTES = 1 << 20


def read_by_crowd(port: int, path: str, clients: int, length: int) -> None:
    """Let `clients` clients read a body of `length` bytes to its end; raise `RuntimeError` if one of them does not
    succeed."""
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    connections = {}
    poller = select.epoll()
    try:
        for _ in range(clients):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(head)
            connection.setblocking(False)
            connections[connection.fileno()] = connection
            poller.register(connection, select.EPOLLIN)
        received = dict.fromkeys(connections, 0)
        _drain(poller, connections, received)
    finally:
        poller.close()
        for connection in connections.values():
            connection.close()
    if not all(length < count < length + 4096 for count in received.values()):  # the head is included
        raise RuntimeError(
            f"Between {min(received.values())} and {max(received.values())} bytes have been received."
        )


def _drain(poller: select.epoll, connections: dict[int, socket.socket], received: dict[int, int]) -> None:
    """Read all bodies to their ends. The kernel discards the bytes without copying them (MSG_TRUNC)."""
    nowhere, remaining, deadline = bytearray(_CHUNK_BYTES), len(connections), time.monotonic() + CROWD_SECONDS
    while remaining:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{remaining} clients have not been served after {CROWD_SECONDS:.0f} s.")
        for number, _ in poller.poll(1):
            try:
                count = connections[number].recv_into(nowhere, _CHUNK_BYTES, socket.MSG_TRUNC)
            except BlockingIOError:
                continue
            received[number] += count
            if count == 0:
                poller.unregister(number)
                remaining -= 1


def statements(script: str, connection: dict[str, str], seconds: float, clients: int) -> Sample:
    """Measure how often per second pgbench runs `script`, whose variable `prepared` is 0 at first."""
    pgbench = embedded_postgres.preferred().directory / "pgbench"
    if not pgbench.exists():
        raise NotMeasured("pgbench does not belong to the PostgreSQL that is used.")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "script.sql")
        file.write_text(script)
        options = ["--no-vacuum", "--define=prepared=0", "--protocol=simple", "--jobs=2"]
        # Time is in whole seconds.
        amount = f"--time={round(seconds) or 1}" if seconds > TINY.seconds else "--transactions=10"
        command = [str(pgbench), *options, f"--client={clients}", amount, f"--file={file}"]
        result = subprocess.run(
            command, env={**os.environ, **connection}, capture_output=True, text=True, check=False
        )
    if result.returncode != 0:
        raise RuntimeError(f"pgbench failed: {result.stderr.strip()}")
    return Sample(_figure(r"tps = ([\d.]+)", result.stdout))


def _run_for(command: list[str], seconds: float) -> str:
    """Run a program, interrupt it after this many seconds, and return its output. wrk misses a signal that comes
    before it has begun to wait, so the signal is repeated; if the first one has killed it, run it again for longer."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for timeout in (seconds, *itertools.repeat(1.0, END_SECONDS)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, _ = process.communicate(timeout=timeout)
                break
            process.send_signal(signal.SIGINT)
        else:
            process.kill()
            raise RuntimeError(f"{command[0]} does not end.")
    if process.returncode == -signal.SIGINT and seconds < SLOWEST:
        return _run_for(command, 4 * seconds)
    if process.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {output.strip()}")
    return output


def _megabytes(pattern: str, text: str) -> float:
    """Return a number of bytes that wrk has printed, in megabytes: units such as in `1.50G` are powers of 1,024."""
    match = re.search(pattern, text)
    if match is None:
        raise RuntimeError(f"There is no number of bytes in: {text}")
    return float(match[1]) * 1024.0 ** " KMGT".index(match[2] or " ") / 1e6


def _figure(pattern: str, text: str) -> float:
    match = re.search(pattern, text)
    if match is None:
        raise RuntimeError(f"There is no figure in: {text}")
    return float(match[1])
