"""Debian's nginx in front of the edge, as in the documents: kept connections, addresses of clients."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest

from tests.storage_edge.conftest import RAW, Edge, Origin, StartEdge
from tests.support.nginx import Answer, Nginx, needs_nginx, nginx_before

TEXT = b"".join(b"line %d\n" % number for number in range(1000))

pytestmark = needs_nginx


@attrs.frozen
class Front:
    """nginx in front of the edge."""

    nginx: Nginx
    edge: Edge

    async def get(self, path: str, *options: str) -> Answer:
        return await self.nginx.get("static.example.org", path, *options)


@pytest.fixture
async def front(start_edge: StartEdge, tmp_path: Path) -> AsyncIterator[Front]:
    edge = await start_edge(trusted_proxies=["127.0.0.1"])
    async with nginx_before(tmp_path, edge_port=edge.port) as nginx:
        yield Front(nginx, edge)


async def test_clients_get_what_the_edge_has(front: Front, origin: Origin) -> None:
    origin.answers(TEXT, Content_Type="text/plain")
    first = await front.get(RAW)
    assert (first.version, first.status, first.body) == ("HTTP/1.1", 200, TEXT)
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


async def test_nginx_writes_no_tokens_of_urls_into_its_access_log(front: Front, tmp_path: Path) -> None:
    await front.get(f"{RAW}?token=flso-secret")
    await front.nginx.get("forge.example.org", "/api/v4/user?private_token=glpat-secret")
    assert "secret" not in (tmp_path / "access.log").read_text()


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
