"""The recorder of all answers: it reports those that do not fit, and accepts those that do."""

from typing import Any

import orjson
import pytest

from tests.support import answered
from tests.support.answered import Noted, misfits
from tests.support.forge import Forge

_EMAIL = {"id": 1, "email": "a@example.org", "confirmed_at": None}


def noted(address: str, status: int, body: Any, content_type: str = "application/json") -> Noted:
    method, path = address.split(" ")
    return Noted(
        route=answered._BY_ADDRESS.get((method, f"/api/v4{path}")),
        asked=address,
        status=status,
        content_type=content_type,
        location=None,
        body=body if isinstance(body, bytes | None) else orjson.dumps(body),
    )


@pytest.mark.parametrize(
    "fits",
    [
        noted("GET /user/emails/{email_id}", 200, _EMAIL),
        noted("GET /user/emails", 200, [_EMAIL, _EMAIL]),
        noted("GET /user/emails", 304, None),
        noted("GET /user/emails", 401, {"message": "401 Unauthorized"}),
        noted("GET /user/emails", 200, None),  # streamed, or of HEAD
        noted("DELETE /user/emails/{email_id}", 204, b"", "application/octet-stream"),
        noted("GET /projects/{id}/jobs/{job_id}/artifacts", 206, b"PK", "application/zip"),
        noted("GET /projects/{id}/jobs/{job_id}/trace", 200, b"line", "text/plain"),
        noted("GET /nowhere", 404, {"error": "404 Not Found"}),
    ],
    ids=lambda one: f"{one.asked} {one.status}",
)
def test_what_fits_passes(fits: Noted) -> None:
    assert list(misfits(fits)) == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            noted("GET /user/emails/{email_id}", 200, _EMAIL | {"id": "1"}),
            '/id: "1" is not of type "integer"',
        ),
        (noted("GET /user/emails", 200, [_EMAIL, _EMAIL | {"new": 1}]), "/1: Additional properties"),
        (noted("GET /user/emails", 200, [{"id": 1, "email": "a"}]), '/0: "confirmed_at" is a required'),
        (noted("GET /user/emails/{email_id}", 200, _EMAIL | {"confirmed_at": "today"}), "/confirmed_at:"),
        (noted("GET /user/emails", 200, [], "text/plain"), "text/plain is not application/json"),
        (noted("GET /user/emails", 201, []), "does not declare 201"),
        (noted("GET /user/emails", 301, None), "does not declare 301"),
        (noted("GET /user/emails", 206, None), "does not declare 206"),
        (noted("GET /user/emails", 400, {"problem": "400"}), "is not valid under any of the schemas"),
        (noted("GET /nowhere", 200, {}), "does not declare 200"),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(wrong: Noted, told: str) -> None:
    (text,) = misfits(wrong)
    assert wrong.asked in text
    assert told in text


async def test_answers_of_servers_are_noted(forge: Forge) -> None:
    await forge.root.get("/user")
    await forge.anonymous.request("HEAD", "/projects/0")
    await forge.anonymous.get("/nowhere")
    seen = [(one.asked, one.status, one.body is not None) for one in answered._noted]
    assert seen == [
        ("GET /api/v4/user", 200, True),
        ("HEAD /api/v4/projects/0", 401, False),
        ("GET /api/v4/nowhere", 404, True),
    ]


def test_addresses_are_those_of_one_route_each() -> None:
    assert len(answered._BY_ADDRESS) == len(answered.ROUTES)


def test_a_table_of_what_never_succeeds_only_gets_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    every = {answered.name_of(route) for route in answered.ROUTES}
    monkeypatch.setattr(answered, "NEVER_ANSWERED", {"GET /version"})
    monkeypatch.setattr(answered, "_succeeded", every - {"GET /version"})
    assert answered._of_the_whole_suite() is None
    monkeypatch.setattr(answered, "_succeeded", every - {"GET /version", "GET /metadata"})
    assert answered._of_the_whole_suite() == "No test sees these succeed: GET /metadata"
    monkeypatch.setattr(answered, "_succeeded", every)
    assert "need not name: GET /version" in str(answered._of_the_whole_suite())
