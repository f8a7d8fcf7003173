"""Headers of requests and answers: conditions, validity, dates in GitLab's form, and CORS."""

import datetime
import re

import attrs
import pytest
from aiohttp.test_utils import make_mocked_request

from api_server.ci.pipelines.states import Event
from api_server.web import auth, context, params
from api_server.web.auth import Actor
from api_server.web.errors import ApiError
from api_server.web.routes import Route
from tests.support.ci import ci_project, happen, run
from tests.support.deviations import Deviations
from tests.support.forge import Answer, Forge, Person
from tests.support.furnished import Furnished, furnish
from tests.support.route_table import ROUTES, in_parts, name_of

#: Redirects.
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
    # only HEAD requests search the commit that last changed a file
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


async def _refusal(forge: Forge, caller: Actor) -> int | None:
    request = make_mocked_request("POST", "/", app=forge.server.app)
    try:
        assert await auth.still_valid(context.services(request).database, caller) == caller
    except ApiError as problem:
        return problem.status
    return None


async def _caller(forge: Forge, person: Person) -> Actor:
    request = make_mocked_request("POST", "/", app=forge.server.app)
    return await auth.caller_of_personal_access_token(request, context.services(request), person.token)


async def test_a_token_that_is_revoked_meanwhile_is_refused(forge: Forge) -> None:
    person = await forge.user()
    caller = await _caller(forge, person)
    assert await _refusal(forge, caller) is None
    await person.api.delete("/personal_access_tokens/self")
    assert await _refusal(forge, caller) == 401


async def test_whoever_acts_for_somebody_else_still_does(forge: Forge) -> None:
    """She never gets her own rights there."""
    admin = await _caller(forge, await forge.user("admin", admin=True))
    alice = attrs.evolve(await _caller(forge, await forge.user("alice")), impersonator=admin)
    acting = attrs.evolve(alice, token_id=admin.token_id)
    assert await _refusal(forge, acting) is None
    await forge.root.delete(f"/personal_access_tokens/{admin.token_id}")
    assert await _refusal(forge, acting) == 401


async def test_a_user_who_is_blocked_meanwhile_is_refused(forge: Forge) -> None:
    person = await forge.user()
    caller = await _caller(forge, person)
    await forge.root.post(f"/users/{person.id}/block")
    assert await _refusal(forge, caller) == 403
    await forge.root.delete(f"/users/{person.id}")
    assert await _refusal(forge, caller) == 401


@pytest.mark.parametrize("event", ["success", "cancel"])
async def test_a_job_that_ends_meanwhile_is_refused(forge: Forge, event: Event) -> None:
    project = await ci_project(forge)
    job = await project.job()
    token = await run(forge, job["id"])
    request = make_mocked_request("POST", "/", app=forge.server.app)
    caller = await auth.caller_of_job_token(request, context.services(request), token)
    assert await _refusal(forge, caller) is None
    await happen(forge, job["id"], event)
    assert await _refusal(forge, caller) == 401


#: A date, and the moment that Ruby reads.
TAKEN = {
    "2026-11-26T22:33:34Z": "2026-11-26T22:33:34Z",
    "2026-11-26T22:33:34z": "2026-11-26T22:33:34Z",
    "2026-11-26t22:33:34z": "2026-11-26T22:33:34Z",
    "2026-11-26T22:33:34.123456789Z": "2026-11-26T22:33:34.123456Z",
    "2026-11-26T22:33:34,5Z": "2026-11-26T22:33:34.500000Z",
    "2026-11-26T22:33:34+02:00": "2026-11-26T20:33:34Z",
    "2026-11-26T22:33:34+0200": "2026-11-26T20:33:34Z",
    "2026-11-26T22:33:34+02": "2026-11-26T20:33:34Z",
    "2026-11-26T22:33:34-05:30": "2026-11-27T04:03:34Z",
    "2026-11-26T22:33:34 +0200": "2026-11-26T20:33:34Z",
    "2026-11-26 22:33:34": "2026-11-26T22:33:34Z",
    "2026-11-26 22:33:34 UTC": "2026-11-26T22:33:34Z",
    "2026-11-26 22:33:34 +0200": "2026-11-26T20:33:34Z",
    "2026-11-26 22:33:34 +02:00": "2026-11-26T20:33:34Z",
    "2026-11-26 22:33:34Z": "2026-11-26T22:33:34Z",
    "2026-11-26  22:33:34 GMT": "2026-11-26T22:33:34Z",
    "2026-11-26 22:33:34 EST": "2026-11-27T03:33:34Z",
    "2026-11-26 22:33:34 pst": "2026-11-27T06:33:34Z",
    "2026-11-26 22:33:34 PDT": "2026-11-27T05:33:34Z",
    "2026-11-26 22:33:34 CET": "2026-11-26T21:33:34Z",
    "2026-11-26 22:33:34 CEST": "2026-11-26T20:33:34Z",
    "2026-11-26 22:33:34 UTC+2": "2026-11-26T20:33:34Z",
    "2026-11-26 22:33:34 GMT+0200": "2026-11-26T20:33:34Z",
    "2026-11-26 22:33:34 (UTC)": "2026-11-26T22:33:34Z",
    "2026-11-26T22:33": "2026-11-26T22:33:00Z",
    "20261126T223334Z": "2026-11-26T22:33:34Z",
    "20261126T223334": "2026-11-26T22:33:34Z",
    "20261126223334": "2026-11-26T22:33:34Z",
    "20261126": "2026-11-26T00:00:00Z",
    "2026-11-26": "2026-11-26T00:00:00Z",
    "2026-1-5": "2026-01-05T00:00:00Z",
    "2026-11-5": "2026-11-05T00:00:00Z",
    "2026/11/26": "2026-11-26T00:00:00Z",
    "2026/1/5": "2026-01-05T00:00:00Z",
    "2026/11/26 22:33": "2026-11-26T22:33:00Z",
    "2026/11/26 22:33:34 +0200": "2026-11-26T20:33:34Z",
    "2026.11.26": "2026-11-26T00:00:00Z",
    "26.11.2026": "2026-11-26T00:00:00Z",
    "26/11/2026": "2026-11-26T00:00:00Z",
    "26-11-2026": "2026-11-26T00:00:00Z",
    "2026-W48-4": "2026-11-26T00:00:00Z",
    "2026W484": "2026-11-26T00:00:00Z",
    "2026-W48": "2026-11-23T00:00:00Z",
    "Thu, 26 Nov 2026 22:33:34 +0000": "2026-11-26T22:33:34Z",
    "Thu, 26 Nov 2026 22:33:34 GMT": "2026-11-26T22:33:34Z",
    "Thu, 26 Nov 2026 22:33:34 UT": "2026-11-26T22:33:34Z",
    "Thu, 26 Nov 2026 22:33:34 -0500": "2026-11-27T03:33:34Z",
    "Thu, 26 Nov 2026 22:33 +0000": "2026-11-26T22:33:00Z",
    "Thu, 26 Nov 2026": "2026-11-26T00:00:00Z",
    "26 Nov 2026 22:33:34 +0000": "2026-11-26T22:33:34Z",
    "26 Nov 2026 22:33:34": "2026-11-26T22:33:34Z",
    "26 Nov 2026": "2026-11-26T00:00:00Z",
    "26 November 2026": "2026-11-26T00:00:00Z",
    "26 november 2026": "2026-11-26T00:00:00Z",
    "26-Nov-2026": "2026-11-26T00:00:00Z",
    "26-Nov-2026 22:33:34": "2026-11-26T22:33:34Z",
    "26th Nov 2026": "2026-11-26T00:00:00Z",
    "Thursday, 26-Nov-2026 22:33:34 GMT": "2026-11-26T22:33:34Z",
    "Nov 26 2026": "2026-11-26T00:00:00Z",
    "Nov 26, 2026": "2026-11-26T00:00:00Z",
    "November 26, 2026": "2026-11-26T00:00:00Z",
    "November 26, 2026 10:33 PM": "2026-11-26T22:33:00Z",
    "Nov. 26 2026": "2026-11-26T00:00:00Z",
    "Thu Nov 26 22:33:34 2026": "2026-11-26T22:33:34Z",
    "Thu Nov 26 22:33:34 UTC 2026": "2026-11-26T22:33:34Z",
    "Thu Nov 26 2026 22:33:34 GMT+0100 (Central European Standard Time)": "2026-11-26T21:33:34Z",
    "Fri, 26 Nov 2026 22:33:34 +0000": "2026-11-26T22:33:34Z",
    "2026-11-26 10:33 pm": "2026-11-26T22:33:00Z",
    "2026-11-26 10:33:34 PM": "2026-11-26T22:33:34Z",
    "2026-11-26 12:00 am": "2026-11-26T00:00:00Z",
    "2026-11-26 12:00 pm": "2026-11-26T12:00:00Z",
    "2026-11-26 10 pm": "2026-11-26T22:00:00Z",
    "2026-11-26 10pm": "2026-11-26T22:00:00Z",
    " 2026-11-26 ": "2026-11-26T00:00:00Z",
    "2026-11-26T24:00:00Z": "2026-11-27T00:00:00Z",
    "2026-11-26T22:33:60Z": "2026-11-26T22:33:59Z",
    "2024-02-29": "2024-02-29T00:00:00Z",
    "0001-01-01": "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z": "9999-12-31T23:59:59Z",
    "2026-11-26T22:33:34+23:59": "2026-11-25T22:34:34Z",
    "2026-11-26x22:33:34": "2026-11-26T22:33:34Z",
    "2026-11-26_22:33:34": "2026-11-26T22:33:34Z",
    "2026-11-26-22:33:34": "2026-11-26T22:33:34Z",
    "2026/11/26T22:33:34Z": "2026-11-26T22:33:34Z",
}
#: Ruby refuses these too.
NO_DATES = [
    "11/26/2026",
    "2026-11",
    "2026-11-26T25:00:00Z",
    "2026-11-26T22:60:00Z",
    "2026-11-26T22:33:61Z",
    "2026-02-29",
    "2026-02-30",
    "2026-13-01",
    "2026-00-10",
    "2026-11-00",
    "nonsense",
    "soon",
    "tomorrow",
    "today",
    "now",
    "2026",
    "1",
    "1795732414",
    "-1",
    "H38",
    "2026年11月26日",
    "null",
    "{}",
    "2026-11-26" + " " * 119,
]
#: Ruby completes these with today's date, or reads only a part; a filter with another meaning would be worse than an
#: error.
GUESSED = [
    "2026-11-26 22:33:34 XYZ",
    "2026-330",
    "2026330",
    "26-11-26",
    "26/11/26",
    "Thursday, 26-Nov-26 22:33:34 GMT",
    "Thu Nov 26 22:33:34 2026 +0200",
    "+2026-11-26",
    "0000-01-01",
    "12026-11-26",
    "2026-11-26T22:33:34+25:00",
    "2026-11-26T22:33:34+99:99",
    "2026-11-26T22:33:34ZZ",
    "2026-11-26T22:33:34 nonsense",
    "2026-11-26 nonsense",
    "monday",
    "22:33",
    "11",
    "Nov",
    "26 Nov",
    "26",
]


def _read(text: str) -> str:
    try:
        return params.moment(text, None).isoformat().replace("+00:00", "Z")
    except params.Refused as refused:
        return str(refused)


def test_dates_are_read_as_ruby_reads_them() -> None:
    right = TAKEN | dict.fromkeys((*NO_DATES, *GUESSED), "is invalid")
    assert {text: _read(text) for text in right} == right


def test_a_day_is_the_one_that_is_written() -> None:
    """Rails takes the date of a moment in the moment's own zone."""
    for text in ("2026-11-26T23:30:00-05:00", "26 Nov 2026 00:30 +0200", "2026/11/26", "2026-11-26"):
        assert params.date(text, None) == datetime.date(2026, 11, 26), text


async def test_filters_and_days_take_them(forge: Forge) -> None:
    """One parameter of each type; the same functions read all other dates."""
    project = await forge.project()
    listed = f"/projects/{project['id']}/audit_events"
    for sent, number in (("2026-11-26 22:33:34 UTC", 0), ("Thu, 26 Nov 2099 22:33:34 %2B0000", 1)):
        answer = await forge.root.get(f"{listed}?created_before={sent.replace(' ', '%20')}")
        assert (answer.status, bool(answer.body)) == (200, number == 1)
    refused = await forge.root.get(f"{listed}?created_before=tomorrow")
    assert (refused.status, refused.body) == (400, {"error": "created_before is invalid"})
    token = await forge.root.post(
        "/user/personal_access_tokens", {"name": "a", "scopes": ["k8s_proxy"], "expires_at": "2099/11/26"}
    )
    assert (token.status, token.body["expires_at"]) == (201, "2099-11-26")


SITE = "https://app.example.org"
FIELDS = ("Access-Control-Allow-Origin", "Access-Control-Expose-Headers")


@pytest.mark.parametrize(
    ("path", "status"), [("/projects", 200), ("/user", 401), ("/projects/999999999", 404)]
)
async def test_an_answer_says_that_the_site_may_read_it(forge: Forge, path: str, status: int) -> None:
    person = forge.anonymous if status == 401 else forge.root
    answer = await person.get(path, headers={"Origin": SITE})
    assert answer.status == status
    assert answer.headers["Access-Control-Allow-Origin"] == SITE
    exposed = answer.headers["Access-Control-Expose-Headers"].split(",")
    assert ("X-Next-Page" in exposed) is (status == 200)
    assert "Content-Type" not in exposed


async def test_nothing_is_said_of_sites_to_whom_is_none(forge: Forge) -> None:
    answer = await forge.root.get("/projects")
    assert answer.status == 200
    assert not any(name in answer.headers for name in FIELDS)


async def test_a_site_may_ask_what_it_may_send(forge: Forge) -> None:
    answer = await forge.anonymous.request(
        "OPTIONS",
        "/projects/1/jobs",
        headers={
            "Origin": SITE,
            "Access-Control-Request-Method": "GET",
            "Access-Control-Request-Headers": "PRIVATE-TOKEN",
        },
    )
    assert answer.status == 200
    assert answer.headers["Access-Control-Allow-Origin"] == SITE
    assert answer.headers["Access-Control-Allow-Methods"] == "GET"
    assert answer.headers["Access-Control-Allow-Headers"] == "PRIVATE-TOKEN"
    assert answer.headers["Access-Control-Max-Age"] == "600"
