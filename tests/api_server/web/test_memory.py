"""How long the body of a request stays in memory."""

from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest
from aiohttp import web

from api_server.web.request_data import MAX_DEPTH
from common.connections import Reader
from tests.support.deviations import Deviations
from tests.support.forge import ROOT_TOKEN, Forge
from tests.support.garbage import nothing_collected
from tests.support.wire import request, talk

ROOT = f"PRIVATE-TOKEN: {ROOT_TOKEN}"
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=x"
RUNNERS = "/api/v4/runners"
INVITATIONS = "/api/v4/projects/999999999/invitations"
COMMITS = "/api/v4/projects/999999999/repository/commits"
_LONG = 300_000

#: Each way to read a body, and to refuse it: path, type, body, and the status of the answer.
LET_GO: dict[str, tuple[str, str, bytes, int]] = {
    "read": (INVITATIONS, JSON, orjson.dumps({"access_level": 30, "email": "a", "b": "a" * _LONG}), 404),
    "a text that is too long": ("/api/v4/users/1/emails", JSON, orjson.dumps({"email": "a" * _LONG}), 400),
    "a bad item": (
        COMMITS, JSON,
        orjson.dumps({"branch": "a", "commit_message": "a" * _LONG, "actions": [{}] * 1_000}), 400),
    "no JSON": (RUNNERS, JSON, b'{"a": ' + b"1" * _LONG, 400),
    "too many elements": (RUNNERS, JSON, b"[" * _LONG, 400),
    "too deep": (RUNNERS, JSON, b'{"a": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}" + b" " * _LONG, 400),
    "a form": (INVITATIONS, FORM, b"a=" + b"%41" * (_LONG // 3), 400),
    "no text": (INVITATIONS, FORM, b"a=" + b"%ff" * (_LONG // 3), 400),
    "parts": (
        INVITATIONS, PARTS,
        b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + b"a" * _LONG + b"\r\n--x--\r\n", 400),
    "no parts": (INVITATIONS, PARTS, b"a" * _LONG, 400),
}  # fmt: skip


async def test_a_body_is_let_go_of_with_its_answer(forge: Forge) -> None:
    """It happens before the end of the connection, and before garbage is collected."""
    deviations = Deviations()
    async with AsyncExitStack() as stack:

        async def ask(path: str, kind: str, body: bytes, status: int) -> None:
            client = await stack.enter_async_context(talk(forge.settings.port))
            length = f"Content-Length: {len(body)}"
            await client.send(request("POST", path, ROOT, f"Content-Type: {kind}", length) + body)
            assert (await client.answer())[0] == status

        for case in LET_GO.values():
            await ask(*case)
        with nothing_collected() as held:
            for name, case in LET_GO.items():
                before = held()
                await ask(*case)
                with deviations.of(name):
                    assert held() - before < _LONG / 2
    assert not deviations, deviations.report


async def test_a_body_is_let_go_of_before_its_answer_is_sent(
    forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client may take as long as it likes to read the answer."""
    sent, finish = [], Reader.finish_response

    async def look(reader: Reader, request: web.BaseRequest, *answer: Any) -> Any:
        sent.extend(value for value in request.values() if isinstance(value, (bytes, dict)))
        return await finish(reader, request, *answer)

    monkeypatch.setattr(Reader, "finish_response", look)
    assert (await forge.root.post("/users/1/emails", {"email": "a" * _LONG})).status == 400
    assert sent == []
