"""No secret that a client sends reaches the log."""

import logging
import re
from collections.abc import Iterator

import pytest
import structlog

from common import logs
from tests.support.forge import Forge


@pytest.fixture
def log_lines(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Logs as the process writes them, to standard error, for the length of a test."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.configure("json", "DEBUG")
    yield
    structlog.configure(**before)
    root.handlers, root.level = handlers, level


async def test_tokens_and_passwords_are_in_no_log_line(
    forge: Forge, log_lines: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await forge.user("alice")
    token, strange = alice.token, "a-token-of-another-kind-0123456789"
    plain = forge.anonymous
    await plain.get("/user", headers={"PRIVATE-TOKEN": token})
    await plain.get("/user", headers={"Authorization": f"Bearer {token}"})
    await plain.get(f"/user?private_token={token}&a=b")
    await plain.get(f"/user?private_token={strange}")
    await plain.get(f"/user?a=1&job_token={strange}&b=2")
    await plain.post("/projects", {"private_token": token, "name": ""})
    await plain.post("/projects", data=f"private_token={strange}")
    await plain.get(f"/nothing?access_token={strange}")
    await plain.get(f"/projects/{token}", headers={"PRIVATE-TOKEN": token})
    await forge.root.post("/users", {"password": strange, "email": "x"})
    monkeypatch.setattr("api_server.platform.version.json_value", lambda *_: 1 / 0)
    await plain.get(f"/version?private_token={token}")
    lines = capfd.readouterr().err
    assert len(re.findall('"event": "request"', lines)) >= 11
    assert "ZeroDivisionError" in lines
    assert token not in lines
    assert strange not in lines
