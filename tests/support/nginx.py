"""The machine's nginx with the configuration of the documents, and curl."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import attrs
import pytest

from tests.support.certificates import key_and_certificate
from tests.support.checkout import CHECKOUT
from tests.support.ports import free_port

CONFIGURATION = CHECKOUT / "docs/nginx/forgelet.conf"
_FRAME = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr; {user}
events {{ worker_connections 256; }}
http {{
  access_log {folder}/access.log;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  {configuration}
}}
"""

needs_nginx = pytest.mark.skipif(
    shutil.which("nginx") is None or shutil.which("curl") is None,
    reason="nginx and curl are not both installed",
)


@attrs.frozen
class Answer:
    version: str
    status: int
    fields: dict[str, str]
    body: bytes


@attrs.frozen
class Nginx:
    """A running nginx with several hosts, which are chosen by name."""

    port: int

    async def get(self, host: str, path: str, *options: str) -> Answer:
        """Send a request with curl, which uses HTTP/2 if it is offered."""
        process = await asyncio.create_subprocess_exec(
            "curl", "-sk", "--http2", "-i", "-m", "20", *options,
            "--resolve", f"{host}:{self.port}:127.0.0.1", f"https://{host}:{self.port}{path}",
            stdout=subprocess.PIPE,
        )  # fmt: skip
        said, _ = await process.communicate()
        head, _, body = said.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        version, status, *_ = first.split(" ")
        return Answer(version, int(status), dict(line.lower().split(": ", 1) for line in lines), body)


@contextlib.asynccontextmanager
async def nginx_before(
    folder: Path, *, api_port: int | None = None, edge_port: int | None = None
) -> AsyncIterator[Nginx]:
    """Run nginx with the documents' configuration, except for ports and paths of certificates."""
    key, certificate = key_and_certificate()
    (folder / "key").write_bytes(key)
    (folder / "crt").write_bytes(certificate)
    port = free_port()
    configuration = _changed(
        {
            "127.0.0.1:8080": f"127.0.0.1:{api_port or free_port()}",
            "127.0.0.1:8081": f"127.0.0.1:{edge_port or free_port()}",
            "listen 443 ": f"listen 127.0.0.1:{port} ",
            "listen 80;": f"listen 127.0.0.1:{free_port()};",
            "/etc/ssl/forge.example.org.crt": str(folder / "crt"),
            "/etc/ssl/forge.example.org.key": str(folder / "key"),
            "/etc/ssl/static.example.org.crt": str(folder / "crt"),
            "/etc/ssl/static.example.org.key": str(folder / "key"),
        }
    )
    user = "user root;" if Path.home() == Path("/root") else ""
    file = folder / "nginx.conf"
    file.write_text(_FRAME.format(folder=folder, user=user, configuration=configuration))
    process = await asyncio.create_subprocess_exec(
        "nginx", "-p", str(folder), "-e", "stderr", "-c", str(file), stderr=subprocess.PIPE
    )
    try:
        await _listens(port, process)
        yield Nginx(port)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


def _changed(ours: Mapping[str, str]) -> str:
    text = CONFIGURATION.read_text()
    for printed, our in ours.items():
        assert printed in text
        text = text.replace(printed, our)
    return text


async def _listens(port: int, process: asyncio.subprocess.Process) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with asyncio.timeout(20):
        while True:
            assert process.returncode is None, process.stderr and await process.stderr.read()
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
                writer.close()
                return
            await asyncio.sleep(0.02)
