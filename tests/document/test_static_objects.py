"""Area 6: static objects with external storage."""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.forge import Answer, Forge
from tests.support.ports import free_port

from .conftest import STORAGE_TOKEN, Origin, Stored, running_edge
from .statements import says

STORAGE = {"X-Service-External-Storage-Token": STORAGE_TOKEN}
RAW, ARCHIVE = "/-/raw/main/README.md", "/-/archive/main/it.zip"


async def _token(stored: Stored) -> str:
    """Return Alice's token, which the service adds to the URL to which it redirects her."""
    answer = await stored.ask(stored.path(stored.private), stored.alice.api)
    return parse_qs(urlsplit(answer.headers["Location"]).query)["token"][0]


@says(
    "static objects",
    "Configuration: an administrator sets, in the repository settings of the admin area, a base URL of the external"
    " storage and an arbitrary token.",
)
async def test_an_administrator_sets_base_url_and_token(stored: Stored) -> None:
    shown = (await stored.forge.root.get("/application/settings")).body
    assert shown["static_objects_external_storage_url"] == stored.edge
    assert shown["static_objects_external_storage_auth_token"] == STORAGE_TOKEN
    assert (await stored.alice.api.get("/application/settings")).status == 403
    page = await stored.forge.anonymous.get(f"{stored.forge.base}/admin/application_settings/repository")
    assert page.status in (302, 303)  # to the sign-in page


@says(
    "static objects 1",
    "A user request for a static object (paths containing `/raw/` or `/-/archive/`) is answered with 302 and a"
    " `Location` pointing at the external storage URL.",
)
@pytest.mark.parametrize("rest", [RAW, "/raw/main/README.md", ARCHIVE])
async def test_a_user_is_sent_to_the_external_storage(stored: Stored, rest: str) -> None:
    path = stored.path(stored.public, rest)
    answer = await stored.ask(path)
    assert (answer.status, answer.headers["Location"]) == (302, f"{stored.edge}{path}")


@says(
    "static objects 1",
    "For private projects a user-specific token is appended as query parameter `token`.",
)
async def test_of_private_projects_the_users_token_is_appended(stored: Stored) -> None:
    bob = await stored.forge.user("bob")
    await stored.forge.member("projects", stored.private["id"], bob, 30)
    tokens = set()
    for person in (stored.alice, bob):
        answer = await stored.ask(stored.path(stored.private), person.api)
        tokens |= set(parse_qs(urlsplit(answer.headers["Location"]).query)["token"])
    assert (answer.status, len(tokens)) == (302, 2)


@says(
    "static objects 2",
    "The external storage requests the object from the service, sending header `X-Service-External-Storage-Token`"
    " with the configured token.",
    "The service uses it to recognise requests from the external storage.",
)
async def test_the_storage_is_recognised_by_its_token(stored: Stored) -> None:
    path = stored.path(stored.public)
    assert (await stored.ask(path, headers=STORAGE)).status == 200
    assert (await stored.ask(path)).status == 302
    assert (await stored.ask(path, headers={"X-Service-External-Storage-Token": "another"})).status == 403


@says(
    "static objects 3",
    "For private projects the service checks the user's access using query parameter `token` or header"
    " `X-Service-Static-Object-Token`.",
)
async def test_a_private_object_needs_the_users_token(stored: Stored) -> None:
    path, token = stored.path(stored.private), await _token(stored)
    in_header = STORAGE | {"X-Service-Static-Object-Token": token}
    assert (await stored.ask(path, headers=in_header)).status == 200
    assert (await stored.ask(f"{path}?token={token}", headers=STORAGE)).status == 200
    assert (await stored.ask(path, headers=STORAGE)).status == 404
    assert (await stored.ask(f"{path}?token=another", headers=STORAGE)).status in (401, 403)


@says(
    "static objects 4",
    "The service answers 200 with the object, or 304 when the request carries `If-None-Match` matching the current"
    " entity tag.",
)
@pytest.mark.parametrize("rest", [RAW, ARCHIVE])
async def test_the_object_or_not_modified(stored: Stored, rest: str) -> None:
    path = stored.path(stored.public, rest)
    answer = await stored.ask(path, headers=STORAGE)
    assert (answer.status, len(answer.body) > 0) == (200, True)
    again = await stored.ask(path, headers=STORAGE | {"If-None-Match": answer.headers["ETag"]})
    assert (again.status, again.body) == (304, "")
    other = await stored.ask(path, headers=STORAGE | {"If-None-Match": '"another"'})
    assert other.status == 200


@says(
    "static objects 5",
    "Query parameters that matter: for `/raw/` paths `inline` (`true` or `false`); for `/-/archive/` paths"
    " `append_sha` (`true` or `false`) and `path` (string).",
)
async def test_which_query_parameters_matter(stored: Stored) -> None:
    async def disposition(rest: str) -> str:
        answer = await stored.ask(stored.path(stored.public, rest), headers=STORAGE)
        assert answer.status == 200, answer
        return str(answer.headers["Content-Disposition"])

    assert (await disposition(f"{RAW}?inline=true")).startswith("inline")
    assert (await disposition(f"{RAW}?inline=false")).startswith("attachment")
    with_sha, without = [await disposition(f"{ARCHIVE}?append_sha={value}") for value in ("true", "false")]
    assert with_sha != without
    missing = await stored.ask(stored.path(stored.public, f"{ARCHIVE}?path=nothing"), headers=STORAGE)
    assert missing.status == 404
    assert await disposition(f"{ARCHIVE}?path=README.md")


STORE = (
    "Expected behavior of the external storage component: it answers 400 when the path contains neither `/raw/` nor"
    " `/-/archive/`;"
)


async def _edge(forge: Forge, url: str, method: str = "GET", **headers: str) -> Answer:
    return await forge.anonymous.request(method, url, headers=headers)


@says("external storage 1", STORE, "| static objects | 400 |", "| empty |")
async def test_other_paths_are_400_without_a_body(forge: Forge, origin: Origin) -> None:
    answer = await _edge(forge, f"{origin.edge}/group/app/-/blob/main/README.md")
    assert (answer.status, answer.body) == (400, "")


@says(
    "external storage 2",
    "it forwards the request to the service host with the two headers above, with `token` copied into"
    " `X-Service-Static-Object-Token`;",
    "it keeps only the relevant query parameters listed above;",
)
async def test_what_the_storage_asks_the_service(forge: Forge, origin: Origin) -> None:
    for sent, kept in (
        ("/a/b/-/raw/main/x?inline=false&append_sha=true&path=p&utm=1&token=flso-1", "inline=false"),
        (
            "/a/b/-/archive/main/x.zip?append_sha=true&path=p&inline=true&token=flso-1",
            "append_sha=true&path=p",
        ),
    ):
        origin.requests.clear()
        assert (await _edge(forge, origin.edge + sent)).status == 200
        (request,) = origin.requests
        assert request.path == sent.partition("?")[0]
        assert sorted(request.query_string.split("&")) == kept.split("&")
        assert request.headers["X-Service-External-Storage-Token"] == STORAGE_TOKEN
        assert request.headers["X-Service-Static-Object-Token"] == "flso-1"


@says(
    "external storage 3",
    "it answers OPTIONS (a CORS preflight when `Origin`, `Access-Control-Request-Method` and"
    " `Access-Control-Request-Headers` are all present, otherwise an `Allow: GET, HEAD, OPTIONS` response);",
)
async def test_the_storage_answers_options(forge: Forge, origin: Origin) -> None:
    url = f"{origin.edge}/a/b/-/raw/main/x"
    asked = {
        "Origin": "https://example.org",
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "X-Csrf-Token",
    }
    preflight = await _edge(forge, url, "OPTIONS", **asked)
    assert preflight.status in (200, 204)
    assert "GET" in preflight.headers["Access-Control-Allow-Methods"]
    assert "x-csrf-token" in preflight.headers["Access-Control-Allow-Headers"].lower()
    for left_out in asked:
        others = {name: value for name, value in asked.items() if name != left_out}
        plain = await _edge(forge, url, "OPTIONS", **others)
        assert (plain.status < 300, plain.headers["Allow"]) == (True, "GET, HEAD, OPTIONS")


@says("external storage 4", "it caches successful responses without `Set-Cookie`;")
async def test_what_the_storage_keeps(forge: Forge, origin: Origin) -> None:
    """Like GitLab's own example of a storage, it stores them without their `Set-Cookie`."""
    for name, asked in (("kept", 1), ("cookie", 1), ("teapot", 2)):
        origin.requests.clear()
        for _ in range(2):
            answer = await _edge(forge, f"{origin.edge}/a/b/-/raw/main/{name}")
            assert "Set-Cookie" not in answer.headers
        assert len(origin.requests) == asked, name


@says("external storage 5", "it sets `Access-Control-Allow-Origin: *`;")
async def test_everybody_may_read_across_origins(forge: Forge, origin: Origin) -> None:
    answer = await _edge(forge, f"{origin.edge}/a/b/-/raw/main/y", Origin="https://example.org")
    assert answer.headers["Access-Control-Allow-Origin"] == "*"


@says("external storage 6", "on internal failure it answers with the error's status or 500.")
async def test_a_failure_has_a_status(forge: Forge, tmp_path: Path) -> None:
    async with running_edge(f"http://127.0.0.1:{free_port()}", tmp_path) as edge:
        answer = await _edge(forge, f"{edge}/a/b/-/raw/main/x")
    assert answer.status >= 500


@says(
    "static objects",
    "| External storage token | header `X-Service-External-Storage-Token: <STORAGE_TOKEN>` | requests from the external"
    " storage to the service |",
    "| Static object user token | query parameter `token` or header `X-Service-Static-Object-Token` | user access to"
    " objects of private projects |",
    "Static repository objects (archives, raw blobs) are served through an external store such as a content delivery"
    " network; the service authenticates the store and the user.",
)
@pytest.mark.parametrize("rest", [RAW, ARCHIVE])
async def test_a_user_gets_a_private_object_by_way_of_the_storage(stored: Stored, rest: str) -> None:
    sent = await stored.ask(stored.path(stored.private, rest), stored.alice.api)
    served = await stored.forge.anonymous.get(sent.headers["Location"])
    assert (sent.status, served.status) == (302, 200)
    path = urlsplit(sent.headers["Location"])._replace(query="").geturl()
    assert (await stored.forge.anonymous.get(path)).status == 404
