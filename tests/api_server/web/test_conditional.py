"""Entity tags, HEAD, CORS and request ids: what every answer of the API has (decisions D2, D3)."""

import re

import pytest

from api_server.web.routes import Route
from tests.support.deviations import Deviations
from tests.support.forge import Answer, Forge
from tests.support.furnished import Furnished, furnish
from tests.support.route_table import ROUTES, in_parts, name_of

#: What leads elsewhere.
REDIRECTS = {
    "GET /projects/{id}/releases/permalink/latest",
    "GET /projects/{id}/releases/permalink/latest/{suffix_path:(?s:.+)}",
    "GET /projects/{id}/releases/{tag_name}/downloads/{path:(?s:.+)}",
}
READS = [route for route in ROUTES if route.method == "GET" and name_of(route) not in REDIRECTS]


@pytest.fixture(scope="module")
async def furnished(forge: Forge) -> Furnished:
    return await furnish(forge)


@in_parts(READS, 12)
async def test_a_read_has_an_entity_tag_and_is_304_when_it_is_known_and_head_is_without_its_body(
    furnished: Furnished, routes: list[Route]
) -> None:
    deviations = Deviations()
    for route in routes:
        with deviations.of(name_of(route)):
            answer = await furnished.read(route)
            assert answer.status == 200, answer
            tag = answer.headers["ETag"]
            assert re.fullmatch(r'(W/)?"[^"]+"', tag)
            known = await furnished.read(route, if_none_match=f'"other", {tag}')
            assert (known.status, known.body, known.headers["ETag"]) == (304, "", tag)
            assert known.headers["Cache-Control"] == answer.headers["Cache-Control"]
            changed = await furnished.read(route, if_none_match='"other"')
            assert (changed.status, changed.body) == (200, answer.body)
            head = await furnished.read(route, method="HEAD")
            assert (head.status, head.body) == (200, "")
            assert _comparable(head) == _comparable(answer)
    assert not deviations, deviations.report


def _comparable(answer: Answer) -> dict[str, str]:
    named = {name.lower(): value for name, value in answer.headers.items()}
    # the commit that last changed a file is looked for where nothing else is asked
    varying = ("date", "x-request-id", "x-gitlab-last-commit-id")
    return {name: value for name, value in named.items() if name not in varying}


async def test_a_star_matches_every_tag_and_writes_have_none(forge: Forge) -> None:
    assert (await forge.root.get("/user", headers={"If-None-Match": "*"})).status == 304
    made = await forge.root.post("/groups", {"name": "g", "path": f"etag-{id(forge)}"})
    assert "ETag" not in made.headers


async def test_the_tag_changes_with_the_answer(forge: Forge) -> None:
    group = await forge.group()
    before = await forge.root.get(f"/groups/{group['id']}")
    await forge.root.put(f"/groups/{group['id']}", {"description": "another"})
    after = await forge.root.get(f"/groups/{group['id']}", headers={"If-None-Match": before.headers["ETag"]})
    assert (after.status, after.body["description"]) == (200, "another")


async def test_browsers_of_other_origins_may_call_the_api(forge: Forge) -> None:
    asked = {
        "Origin": "https://app.example.org",
        "Access-Control-Request-Method": "PUT",
        "Access-Control-Request-Headers": "private-token,content-type",
    }
    preflight = await forge.anonymous.request("OPTIONS", "/projects/1", headers=asked)
    assert preflight.status == 200
    assert preflight.headers["Access-Control-Allow-Origin"] == "https://app.example.org"
    assert "PUT" in preflight.headers["Access-Control-Allow-Methods"]
    assert "PRIVATE-TOKEN" in preflight.headers["Access-Control-Allow-Headers"].upper()
    answer = await forge.root.get("/user", headers={"Origin": "https://app.example.org"})
    assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example.org"
    assert "Access-Control-Allow-Credentials" not in answer.headers
    exposed = answer.headers["Access-Control-Expose-Headers"].lower()
    assert "x-request-id" in exposed


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("abcdefgh", True),
        ("a" * 64, True),
        ("short", False),
        ("a" * 65, False),
        ("with space", False),
        ("", False),
    ],
)
async def test_a_client_may_name_its_request(forge: Forge, sent: str, kept: bool) -> None:
    answer = await forge.root.get("/user", headers={"X-Request-Id": sent} if sent else {})
    given = answer.headers["X-Request-Id"]
    assert (given == sent) == kept
    assert kept or re.fullmatch("[0-9a-f]{32}", given)
    for path in ("/nothing", "/projects/0"):
        assert "X-Request-Id" in (await forge.root.get(path)).headers
