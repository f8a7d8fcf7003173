"""No secret that a client sends reaches the log."""

import asyncio
import io
import logging
from collections.abc import Iterator

import pytest
import structlog

from common import logs
from tests.support.forge import Forge


@pytest.fixture
def log() -> Iterator[io.BytesIO]:
    """The log as the process writes it, for the length of a test."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    written = io.BytesIO()
    logs.configure("json", stream=io.TextIOWrapper(written, write_through=True))
    structlog.configure(cache_logger_on_first_use=False)
    aiohttp_access = logging.getLogger("aiohttp.access")
    aiohttp_access.disabled = True  # the process has none
    yield written
    aiohttp_access.disabled = False
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


async def test_tokens_and_passwords_are_in_no_log_line(
    forge: Forge, log: io.BytesIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await forge.user("alice")
    token, strange = alice.token, "a-token-of-another-kind-0123456789"
    plain = forge.anonymous
    sent = [
        await plain.get("/user", headers={"PRIVATE-TOKEN": token}),
        await plain.get("/user", headers={"Authorization": f"Bearer {token}"}),
        await plain.get(f"/user?private_token={token}&a=b"),
        await plain.get(f"/user?private_token={strange}"),
        await plain.get(f"/user?a=1&job_token={strange}&b=2"),
        await plain.post("/projects", {"private_token": token, "name": ""}),
        await plain.post("/projects", data=f"private_token={strange}"),
        await plain.get(f"/nothing?access_token={strange}"),
        await plain.get(f"/projects/{token}", headers={"PRIVATE-TOKEN": token}),
        await forge.root.post("/users", {"password": strange, "email": "x"}),
        await forge.root.post(f"/projects/1/variables?key=KEY&value={strange}"),
        await forge.root.post(
            f"/projects/1/pipeline?ref=main&variables[][key]=A&variables[][value]={strange}"
        ),
        await forge.root.post(
            f"/projects/1/jobs/1/play?job_variables_attributes%5B0%5D%5Bvalue%5D={strange}"
        ),
        await plain.post(f"/projects/1/trigger/pipeline?ref=main&token={strange}&variables[A]={strange}"),
        await plain.post(
            f"/projects/1/ref/main/trigger/pipeline?token=flptt-{strange}&variables%5BA%5D={strange}"
        ),
    ]
    monkeypatch.setattr("api_server.accounts.instance_handlers.json_value", lambda *_: 1 / 0)
    sent.append(await plain.get(f"/version?private_token={token}"))
    lines = log.getvalue().decode()
    assert lines.count('"event":"request"') >= len(sent)
    assert "ZeroDivisionError" in lines
    assert token not in lines
    assert strange not in lines


@pytest.mark.parametrize(
    "head",
    [
        b"GET /api/v4/user HTTP/1.1\r\nHost: x\r\nPRIVATE-TOKEN: hunter2\x00\r\n\r\n",
        b"GET /api/v4/user?private_token=hunter2 \xff HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_a_malformed_head_is_refused_and_not_logged(forge: Forge, log: io.BytesIO, head: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", forge.settings.port)
    writer.write(head)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    assert b" 400 Bad Request\r\n" in answer
    assert b"hunter2" not in log.getvalue()
    assert b"Traceback" not in log.getvalue()
