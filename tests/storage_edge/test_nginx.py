"""Debian's nginx in front of the edge, as docs/edge.md prints it: HTTP/2, kept connections, who asks."""

import asyncio
import contextlib
import re
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest

from tests.storage_edge.conftest import Edge, Origin, StartEdge
from tests.storage_edge.talk import RAW
from tests.support.certificates import key_and_certificate
from tests.support.ports import free_port

PAGE = Path(__file__).parents[2] / "docs" / "edge.md"
FRAME = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr; {user}
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  {page}
}}
"""
TEXT = b"".join(b"line %d\n" % number for number in range(1000))

pytestmark = pytest.mark.skipif(
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
class Front:
    """nginx before the edge."""

    port: int
    edge: Edge

    async def get(self, path: str, *options: str) -> Answer:
        """By HTTP/2, as curl speaks it."""
        process = await asyncio.create_subprocess_exec(
            "curl", "-sk", "--http2", "-i", "-m", "20", *options, f"https://127.0.0.1:{self.port}{path}",
            stdout=subprocess.PIPE,
        )  # fmt: skip
        said, _ = await process.communicate()
        head, _, body = said.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        version, status, *_ = first.split(" ")
        return Answer(version, int(status), dict(line.lower().split(": ", 1) for line in lines), body)


@pytest.fixture
async def front(start_edge: StartEdge, tmp_path: Path) -> AsyncIterator[Front]:
    edge = await start_edge(trusted_proxies=["127.0.0.1"])
    (page,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    key, certificate = key_and_certificate()
    (tmp_path / "key").write_bytes(key)
    (tmp_path / "crt").write_bytes(certificate)
    port = free_port()
    for printed, ours in {
        "127.0.0.1:8081": f"127.0.0.1:{edge.port}",
        "listen 443 ": f"listen 127.0.0.1:{port} ",
        "/etc/ssl/static.example.org.crt": str(tmp_path / "crt"),
        "/etc/ssl/static.example.org.key": str(tmp_path / "key"),
    }.items():
        assert printed in page
        page = page.replace(printed, ours)
    user = "user root;" if Path.home() == Path("/root") else ""
    (tmp_path / "nginx.conf").write_text(FRAME.format(folder=tmp_path, user=user, page=page))
    process = await asyncio.create_subprocess_exec(
        "nginx",
        "-p",
        str(tmp_path),
        "-e",
        "stderr",
        "-c",
        str(tmp_path / "nginx.conf"),
        stderr=subprocess.PIPE,
    )
    try:
        await _listens(port, process)
        yield Front(port, edge)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


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


async def test_clients_speak_http_2_and_get_what_the_edge_has(front: Front, origin: Origin) -> None:
    origin.answers(TEXT, Content_Type="text/plain")
    first = await front.get(RAW)
    assert (first.version, first.status, first.body) == ("HTTP/2", 200, TEXT)
    await front.edge.settled()
    (request,) = origin.requests
    assert request.headers["X-Forwarded-For"] == "127.0.0.1, 127.0.0.1"  # curl and nginx
    assert re.fullmatch("[0-9a-f]{32}", request.headers["X-Request-Id"])
    assert first.fields["x-request-id"] == request.headers["X-Request-Id"]

    hit = await front.get(RAW)
    assert ("; hit" in hit.fields["cache-status"], hit.body) == (True, TEXT)
    head = await front.get(RAW, "-I")
    assert (head.status, head.fields["content-length"], head.body) == (200, str(len(TEXT)), b"")
    part = await front.get(RAW, "-H", "Range: bytes=10-19")
    assert (part.status, part.body, part.fields["content-range"]) == (
        206, TEXT[10:20], f"bytes 10-19/{len(TEXT)}"
    )  # fmt: skip
    unchanged = await front.get(RAW, "-H", f"If-None-Match: {hit.fields['etag']}")
    assert (unchanged.status, unchanged.body) == (304, b"")
    coded = await front.get(RAW, "--compressed")
    assert (coded.body, coded.fields["content-encoding"]) == (TEXT, "gzip")
    assert (await front.get("/-/status")).status == 404
    assert (await front.get("/nothing")).status == 400
    assert len(origin.requests) == 1


async def test_nginx_keeps_its_connections_and_tells_who_asks(front: Front, origin: Origin) -> None:
    origin.answers(b"hello")
    forged = await front.get(RAW, "-H", "X-Forwarded-For: 198.51.100.7", "-H", "X-Request-Id: forged-forged")
    assert forged.fields["x-request-id"] != "forged-forged"
    for number in range(5):
        await front.get(f"{RAW}{number}")
    text = (await front.edge.get("/-/metrics")).body.decode()
    accepted = re.search(r"edge_connections_accepted_total (\d+)", text)
    assert accepted is not None
    assert int(accepted[1]) <= 3  # nginx's, and those of this test
