"""Bodies of requests: how much of one is read, from whom, and what its Content-Encoding says."""

import asyncio
import base64
import gzip
import hashlib
import io
import json
import secrets
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from api_server.web.context import SERVICES
from api_server.web.request_data import HELD
from api_server.web.routes import Role
from tests.support.forge import ROOT_TOKEN, Forge, running_forge
from tests.support.waiting import until
from tests.support.wire import request, talk

JSON = "Content-Type: application/json"
ROOT = f"PRIVATE-TOKEN: {ROOT_TOKEN}"
GROUPS = "/api/v4/groups"
#: Of what `gzip` and `deflate` say.
ASKED = b'{"nothing": "asked"}'
MISSING = (400, {"error": "name is missing, path is missing"})
UNAUTHORIZED = (401, {"message": "401 Unauthorized"})


def _deflated(data: bytes, wbits: int) -> bytes:
    packer = zlib.compressobj(wbits=wbits)
    return packer.compress(data) + packer.flush()


ZLIB, RAW, GZIP = (_deflated(ASKED, wbits) for wbits in (15, -15, 31))


async def _ask(forge: Forge, *fields: str, body: bytes = b"", path: str = GROUPS) -> tuple[int, Any]:
    async with talk(forge.settings.port) as client:
        await client.send(request("POST", path, JSON, f"Content-Length: {len(body)}", *fields))
        for piece in (body[: len(body) // 2], body[len(body) // 2 :]):
            client.writer.write(piece)
            await asyncio.sleep(0.02)  # two packets
        return await client.answer()


@pytest.mark.parametrize(
    ("coding", "body", "answer"),
    [
        ("gzip", GZIP, MISSING),
        ("x-gzip", GZIP, MISSING),
        ("GZIP", GZIP, MISSING),
        ("deflate", ZLIB, MISSING),
        ("deflate", RAW, MISSING),
        ("identity", ASKED, MISSING),
        ("", ASKED, MISSING),
        ("gzip", b"", MISSING),
        ("gzip", ASKED, (400, {"error": "The body is not valid gzip."})),
        ("gzip", GZIP[:-9], (400, {"error": "The body is not valid gzip."})),
        ("gzip", GZIP[:-1] + b"x", (400, {"error": "The body is not valid gzip."})),
        ("gzip", GZIP + GZIP, (400, {"error": "The body is not valid gzip."})),
        ("deflate", ASKED, (400, {"error": "The body is not valid deflate."})),
        ("deflate", ZLIB[:-6], (400, {"error": "The body is not valid deflate."})),
        ("deflate", RAW[:-3], (400, {"error": "The body is not valid deflate."})),
        *(
            (coding, ASKED, (415, {"error": "The Content-Encoding is not supported; gzip and deflate are."}))
            for coding in ("br", "zstd", "gzip, gzip", "nonsense")
        ),
    ],
)
async def test_a_content_encoding_is_undone_or_refused(
    forge: Forge, coding: str, body: bytes, answer: tuple[int, Any]
) -> None:
    assert await _ask(forge, ROOT, f"Content-Encoding: {coding}", body=body) == answer


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
async def test_strangers_are_answered_at_once(forge: Forge, coding: str) -> None:
    """Half of a body in each coding, and no word more."""
    async with talk(forge.settings.port) as client:
        head = request("POST", GROUPS, JSON, f"Content-Encoding: {coding}", "Content-Length: 100000")
        await client.send(head + ZLIB[:9])
        assert await client.answer() == UNAUTHORIZED


async def test_a_bomb_is_defused_at_the_limit_of_bodies(forge: Forge) -> None:
    bomb = gzip.compress(b" " * 50_000_000, 6)
    assert len(bomb) < 65_536
    answer = await _ask(forge, ROOT, "Content-Encoding: gzip", body=bomb)
    assert answer == (413, {"error": "413 Request Entity Too Large"})


async def test_a_form_of_several_parts_is_not_encoded(forge: Forge) -> None:
    fields = ("Content-Encoding: gzip", "Content-Type: multipart/form-data; boundary=x", ROOT)
    async with talk(forge.settings.port) as client:
        await client.send(request("POST", GROUPS, "Content-Length: 20", *fields) + GZIP[:20])
        status, body = await client.answer()
    assert (status, body) == (415, {"error": "A body of several parts cannot have a Content-Encoding."})


@pytest.mark.parametrize(
    ("coding", "body", "status"), [("gzip", ASKED, 400), ("gzip", GZIP[:-4], 400), ("br", ASKED, 415)]
)
async def test_git_is_told_too(forge: Forge, coding: str, body: bytes, status: int) -> None:
    project = await forge.project(visibility="public", initialize_with_readme=True)
    path = f"/{project['path_with_namespace']}.git/git-upload-pack"
    async with talk(forge.settings.port) as client:
        fields = (f"Content-Encoding: {coding}", f"Content-Length: {len(body)}")
        await client.send(request("POST", path, *fields) + body)
        assert (await client.head()).startswith(f"HTTP/1.1 {status} ".encode())


# What is read before it is known who calls.

LARGE = 1_000_000
STRANGE = f"PRIVATE-TOKEN: {secrets.token_hex(8)}"


@pytest.mark.parametrize(
    ("method", "path", "fields", "status"),
    [
        ("POST", GROUPS, (JSON,), 401),
        ("POST", GROUPS, (JSON, STRANGE), 401),
        ("POST", f"{GROUPS}?private_token=unknown", (JSON,), 401),
        ("PUT", "/api/v4/application/settings", ("Content-Type: application/x-www-form-urlencoded",), 401),
        ("POST", GROUPS, ("Content-Type: multipart/form-data; boundary=x",), 401),
        ("POST", "/api/v4/jobs/1/artifacts", ("Content-Type: multipart/form-data; boundary=x",), 403),
        ("PATCH", "/api/v4/jobs/1/trace", ("Content-Range: 0-9",), 403),
        ("POST", "/nobody/nothing.git/git-receive-pack", (), 401),
        ("POST", "/nobody/nothing.git/git-upload-pack", (), 401),
        ("PUT", f"/nobody/nothing.git/info/lfs/objects/{'0' * 64}/{LARGE}", (), 401),
        ("POST", "/nobody/nothing.git/info/lfs/objects/batch", (), 401),
        ("POST", "/-/sign_in", ("Content-Type: application/x-www-form-urlencoded",), 413),
    ],
)
@pytest.mark.parametrize("expects", [True, False])
async def test_a_large_body_of_a_stranger_is_refused_unread(
    forge: Forge, method: str, path: str, fields: tuple[str, ...], status: int, *, expects: bool
) -> None:
    """Neither asked for, nor waited for; and no second request is read where it would have to be."""
    expectation = ("Expect: 100-continue",) if expects else ()
    async with talk(forge.settings.port) as client:
        await client.send(request(method, path, f"Content-Length: {LARGE}", *fields, *expectation))
        head = await client.head()
        assert head.startswith(f"HTTP/1.1 {status} ".encode()), head
        assert b"\r\nConnection: close\r\n" in head


async def test_credentials_may_stand_in_a_body_of_64_kib(forge: Forge) -> None:
    for size, answer in ((60_000, MISSING), (70_000, UNAUTHORIZED)):
        body = json.dumps({"private_token": ROOT_TOKEN, "filling": "x" * size}).encode()
        assert await _ask(forge, body=body) == answer
        chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        async with talk(forge.settings.port) as client:
            await client.send(request("POST", GROUPS, JSON, "Transfer-Encoding: chunked") + chunked)
            assert await client.answer() == answer


async def test_runners_send_their_token_in_bodies_up_to_a_limit(forge: Forge) -> None:
    for size, status in ((500_000, 403), (1_100_000, 413)):
        body = json.dumps({"token": "unknown", "filling": "x" * size}).encode()
        assert (await _ask(forge, body=body, path="/api/v4/jobs/request"))[0] == status


async def test_who_calls_comes_before_what_is_wrong_with_the_body(forge: Forge) -> None:
    assert await _ask(forge, STRANGE, body=b"{") == UNAUTHORIZED
    assert await _ask(forge, ROOT, body=b"{") == (400, {"error": "the body is not valid JSON"})


# All bodies together.


@pytest.fixture(scope="module")
async def frugal(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Forge]:
    limits = {"bodies_limit": 1_000_000, "bodies_limit_per_address": 600_000}
    folder = tmp_path_factory.mktemp("frugal")
    async with running_forge(
        new_database(), folder, work=False, trusted_proxies=["127.0.0.1"], **limits
    ) as forge:
        yield forge


@pytest.mark.parametrize(("address", "status"), [("192.0.2.1", 429), ("192.0.2.2", 503)])
async def test_bodies_in_memory_are_bounded_together(frugal: Forge, address: str, status: int) -> None:
    """Two clients send half a megabyte each, and not their last byte: there is no place for more of either."""
    held = frugal.server.app[SERVICES][HELD]
    body = b" " * 500_000
    head = request("POST", GROUPS, JSON, ROOT, f"Content-Length: {len(body)}")

    def from_(client: str) -> bytes:
        return head.replace(b"Host: x", f"Host: x\r\nX-Forwarded-For: {client}".encode())

    async with talk(frugal.settings.port) as first, talk(frugal.settings.port) as second:
        await first.send(from_("192.0.2.1") + body[:-1])
        if status == 503:
            await second.send(from_("192.0.2.3") + body[:-1])
        await until(lambda: held.held >= (999_000 if status == 503 else 499_000))
        async with talk(frugal.settings.port) as third:
            await third.send(from_(address) + body)
            answered, told = await third.answer()
        assert (answered, "try again later" in told["error"]) == (status, True)
        await first.send(b" ")
        assert (await first.answer())[0] == 400
    await until(lambda: held.held == 0)


async def test_streams_are_not_held(frugal: Forge) -> None:
    """A file of more than all bodies may have together goes through, since it is never in memory as a whole."""
    project = await frugal.project()
    await frugal.member("projects", project["id"], await frugal.user(), Role.DEVELOPER)
    content = secrets.token_bytes(1_500_000)
    oid = hashlib.sha256(content).hexdigest()
    credentials = base64.b64encode(f"x:{ROOT_TOKEN}".encode()).decode()
    path = f"{frugal.base}/{project['path_with_namespace']}.git/info/lfs/objects/{oid}/{len(content)}"
    headers = {"Authorization": f"Basic {credentials}"}
    async with frugal.session.put(path, data=io.BytesIO(content), headers=headers) as answer:
        assert answer.status == 200, await answer.text()
