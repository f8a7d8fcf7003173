"""Real servers to which mirrors push: git's own HTTP backend, sshd and git daemon, on free loopback ports."""

import asyncio
import base64
import inspect
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import attrs
from aiohttp import web
from aiohttp.test_utils import TestServer

from api_server.git.remote.ssh_keys import KeyPair, make_key_pair
from tests.support.ports import free_port

USER = "alice"
#: A different one in each process, because the process list of the whole machine is searched for it.
PASSWORD = f"p@ss w/ord+%é!#:x{os.getpid()}"
BASIC = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


@attrs.define
class HttpTarget:
    """`git http-backend` behind Basic authentication; if `before` returns an answer, it is sent instead."""

    root: Path
    public: bool = False
    before: Callable[[web.Request], object] | None = None
    requests: list[str] = attrs.field(factory=list)
    hosts: set[str] = attrs.field(factory=set)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.rel_url}")
        self.hosts.add(request.host)
        answer = self.before(request) if self.before is not None else None
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, web.StreamResponse):
            return answer
        if not self.public and request.headers.get("Authorization") != f"Basic {BASIC}":
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="target"'})
        return await self._run_backend(request)

    async def _run_backend(self, request: web.Request) -> web.Response:
        process = await asyncio.create_subprocess_exec(
            "git",
            "http-backend",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={
                "PATH": os.environ["PATH"],
                "HOME": "/nonexistent",
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_PROJECT_ROOT": str(self.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REMOTE_USER": USER,
                "REQUEST_METHOD": request.method,
                "PATH_INFO": request.path,
                "QUERY_STRING": request.query_string,
                "CONTENT_TYPE": request.headers.get("Content-Type", ""),
                "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
            },
        )
        output, _ = await process.communicate(await request.read())
        head, _, body = output.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        status = int(headers.pop("Status", "200").split()[0])
        return web.Response(status=status, body=body, headers=headers)


#: The switches of a server and the URL of the target repository there.
Http = tuple[HttpTarget, str]


def hold_answers(http: HttpTarget) -> tuple[asyncio.Event, asyncio.Event]:
    """Let the target answer nothing until the first event is set; the second one is set when a request arrives."""
    opened, arrived = asyncio.Event(), asyncio.Event()

    async def wait(_request: web.Request) -> None:
        arrived.set()
        await opened.wait()

    http.before = wait
    return opened, arrived


@asynccontextmanager
async def serve_http(target: HttpTarget) -> AsyncIterator[TestServer]:
    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.router.add_route("*", "/{path:.*}", target.handle)
    server = TestServer(application, host="127.0.0.1")
    await server.start_server()
    try:
        yield server
    finally:
        await server.close()


@attrs.frozen
class SshTarget:
    """A running sshd on loopback."""

    port: int
    host_key: KeyPair
    user: str


@contextmanager
def serve_ssh(folder: Path, *, authorized: str = "", password: str = "") -> Iterator[SshTarget | str]:
    """Run an sshd of this user that accepts the key `authorized`; yield the reason instead if this is not possible.

    With `password`, root's sshd has an account `alice`, in files that are mounted over those of the system for it.
    """
    folder.mkdir()
    sshd = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if sshd is None or (password and os.getuid() != 0):
        yield (
            "sshd is not installed"
            if sshd is None
            else "only root can have an sshd with an account of its own"
        )
        return
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # Debian's sshd drops its rights there
    host_key = make_key_pair("host")
    _write(folder / "host_key", host_key.private)
    _write(folder / "authorized_keys", authorized + "\n")
    port = free_port()
    _write(folder / "config", _sshd_config(folder, port, "no" if password else "yes"))
    command = [sshd, "-D", "-e", "-f", str(folder / "config")]
    if password:
        command = _with_own_account(folder, password, command)
    with _running(command, folder / "log") as process:
        if not _wait_for_port(port, process):
            yield f"sshd does not run here: {(folder / 'log').read_text()[-300:]}"
            return
        me = subprocess.run(["id", "-un"], text=True, capture_output=True, check=True).stdout.strip()
        yield SshTarget(port, host_key, USER if password else me)


@contextmanager
def serve_git(root: Path, log: Path) -> Iterator[int]:
    """Run git daemon, to which everybody may push; yield its port."""
    port = free_port()
    command = [
        "git",
        "daemon",
        "--listen=127.0.0.1",
        f"--port={port}",
        "--export-all",
        "--enable=receive-pack",
    ]
    with _running([*command, "--reuseaddr", f"--base-path={root}", str(root)], log) as process:
        assert _wait_for_port(port, process), log.read_text()
        yield port


@contextmanager
def _running(command: list[str], log_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        process.wait()


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> bool:
    for _ in range(400):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.05)
    return False


def _write(path: Path, text: str) -> None:
    path.touch(0o600)
    path.write_text(text)


def _sshd_config(folder: Path, port: int, by_key: str) -> str:
    return f"""
        ListenAddress 127.0.0.1
        Port {port}
        HostKey {folder}/host_key
        PidFile none
        AuthorizedKeysFile {folder}/authorized_keys
        StrictModes no
        UsePAM no
        PermitRootLogin yes
        PubkeyAuthentication {by_key}
        PasswordAuthentication {"no" if by_key == "yes" else "yes"}
        KbdInteractiveAuthentication no
        PrintMotd no
    """


def _with_own_account(folder: Path, password: str, command: list[str]) -> list[str]:
    hashed = subprocess.run(
        ["openssl", "passwd", "-6", "-stdin"], input=password, text=True, capture_output=True, check=True
    ).stdout.strip()
    _write(folder / "passwd", f"{Path('/etc/passwd').read_text()}{USER}:x:0:0::{folder}:/bin/sh\n")
    _write(folder / "shadow", f"{USER}:{hashed}:19000:0:99999:7:::\n")
    mounts = f"mount --bind {folder}/passwd /etc/passwd && mount --bind {folder}/shadow /etc/shadow"
    return ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh", *command]


def process_list() -> list[str]:
    """Return the command line and the environment of every process that this user can see."""
    texts = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            texts += [
                (process / part).read_bytes().decode(errors="replace") for part in ("cmdline", "environ")
            ]
    return texts


def command_lines_with(*texts: str) -> list[str]:
    """Return the command lines of all processes that contain one of the texts."""
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.append(process.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in lines if any(text in line for text in texts)]
