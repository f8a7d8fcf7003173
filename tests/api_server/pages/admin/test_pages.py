"""Administrators' pages: only administrators see them; actions on them follow the API's rules and are audited."""

import contextlib
import csv
import html
import io
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.api_server.pages.admin.conftest import PURGE_TOKEN, STORAGE_TOKEN, Scene, running_edge
from tests.support.browser import PASSWORD, Browser, browsing
from tests.support.certificates import key_and_certificate
from tests.support.forge import Forge, SharedForges
from tests.support.merge_requests import new_project, open_merge_request
from tests.support.ports import free_port

PAGES = [
    "/admin", "/admin/background_tasks", "/admin/users", "/admin/tokens", "/admin/runners", "/admin/projects",
    "/admin/mirrors", "/admin/deliveries", "/admin/edges", "/admin/audit_events", "/admin/settings",
    "/admin/application_settings/repository",
]  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
async def test_administrators_get_the_page(boss: Browser, path: str) -> None:
    await boss.get(path)
    assert (boss.status, boss.path) == (200, path), boss.text
    assert f'<a href="{path}" aria-current="true">' in boss.text


async def test_others_are_told_that_they_are_none_and_strangers_sign_in(scene: Scene) -> None:
    clerk = await scene.forge.user("clerk", password=PASSWORD)
    async with browsing(scene.forge) as browser:
        for path in PAGES:
            assert (await browser.get(path)).path == "/-/sign_in"
        await browser.sign_in(clerk)
        for path in PAGES:
            assert (await browser.get(path)).status == 403
        await browser.get("/-/sign_in")


async def _events(forge: Forge, event_type: str) -> list[dict[str, Any]]:
    """Return the newest event of that type."""
    answer = await forge.root.get(f"/audit_events?event_type={event_type}&per_page=1")
    return list(answer.body)


async def test_a_user_is_blocked_and_unblocked_where_the_list_stands(scene: Scene, boss: Browser) -> None:
    clerk = await scene.forge.user("clerk")
    here = f"/admin/users?search={clerk.username}"
    await boss.get(here)
    await boss.send(f"/admin/users/{clerk.id}/block")
    assert (boss.status, boss.path_qs) == (200, here)
    assert "The user is blocked." in boss.text
    assert (await clerk.api.get("/user")).status == 403
    (event,) = await _events(scene.forge, "user_blocked")
    assert (event["entity_id"], event["details"]["author_name"]) == (clerk.id, scene.boss.username.title())
    await boss.get("/admin/users?state=blocked")
    assert "The user is blocked." not in boss.text
    assert f"@{clerk.username}" in boss.text
    await boss.send(f"/admin/users/{clerk.id}/unblock")
    assert (await clerk.api.get("/user")).status == 200


async def test_administrators_do_not_block_themselves(scene: Scene, boss: Browser) -> None:
    await boss.get("/admin/users")
    await boss.send(f"/admin/users/{scene.boss.id}/block")
    assert "Nothing was done: You cannot block yourself." in boss.text


async def test_a_token_is_revoked(scene: Scene, boss: Browser) -> None:
    clerk = await scene.forge.user("clerk")
    await boss.get(f"/admin/tokens?username={clerk.username.upper()}&state=active")
    token_id = (await clerk.api.get("/personal_access_tokens/self")).body["id"]
    assert clerk.username in boss.text
    assert clerk.token not in boss.text
    await boss.send(f"/admin/tokens/{token_id}/revoke")
    assert "The token is revoked: it opens nothing any more." in boss.text
    assert "No tokens match the filters." in boss.text
    assert (await clerk.api.get("/user")).status == 401


async def test_a_runner_is_paused_resumed_and_removed(scene: Scene, boss: Browser) -> None:
    made = await scene.forge.root.post(
        "/user/runners", {"runner_type": "instance_type", "description": "builder"}
    )
    runner, page = f"/runners/{made.body['id']}", f"/admin/runners/{made.body['id']}"
    await boss.get("/admin/runners?status=never_contacted")
    assert "builder" in boss.text
    await boss.send(f"{page}/pause", paused="true")
    assert (await scene.forge.root.get(runner)).body["paused"]
    await boss.send(f"{page}/resume", paused="false")
    assert not (await scene.forge.root.get(runner)).body["paused"]
    await boss.send(f"{page}/remove")
    assert "The runner is removed." in boss.text
    assert (await scene.forge.root.get(runner)).status == 404
    await boss.send(f"{page}/remove")
    assert "Nothing was done: it is not there any more." in boss.text


async def test_a_mirror_runs_when_it_is_asked_to(scene: Scene, boss: Browser) -> None:
    project = await scene.forge.project(initialize_with_readme=True)
    target = {"url": "https://alice:secret@198.51.100.7/x.git", "enabled": True}
    made = (await scene.forge.root.post(f"/projects/{project['id']}/remote_mirrors", target)).body
    await boss.get("/admin/mirrors")
    assert "https://*****:*****@198.51.100.7/x.git" in boss.text
    await boss.send(f"/admin/mirrors/{made['id']}/sync", id=str(project["id"]))
    assert "The mirror runs soon" in boss.text
    off = await scene.forge.root.put(
        f"/projects/{project['id']}/remote_mirrors/{made['id']}", {"enabled": False}
    )
    assert off.status == 200
    await boss.send(f"/admin/mirrors/{made['id']}/sync", id=str(project["id"]))
    assert "Nothing was done: Cannot proceed with the push mirroring." in boss.text


async def test_a_paused_check_is_resumed(scene: Scene, boss: Browser) -> None:
    project = await new_project(scene.forge, scene.boss)
    checks = f"/projects/{project['id']}/external_status_checks"
    check = {"name": "Quality", "external_url": "https://198.51.100.7/hook"}
    made = (await scene.forge.root.post(checks, check)).body
    await open_merge_request(scene.boss, project)
    async with scene.forge.database.transaction() as transaction:
        await transaction.run(
            "UPDATE external_status_checks SET paused_at = %(now)s, pause_reason = 'It failed for days'"
        )
    await boss.get("/admin/deliveries")
    await boss.send(f"/admin/status_checks/{made['id']}/resume", id=str(project["id"]), paused="false")
    assert "The check is resumed: deliveries to it go out again." in boss.text
    assert not (await scene.forge.root.get(f"{checks}/{made['id']}")).body["paused"]


async def test_what_a_form_refuses_stays_in_it(scene: Scene, boss: Browser) -> None:
    await boss.get("/admin/settings")
    given = {"outbound_local_requests_whitelist": "10.0.0.0/8\nno/network/x", "default_projects_limit": "7"}
    await boss.send("/admin/settings", deny_all_requests_except_allowed="true", **given)
    assert boss.status == 400
    assert (
        "Allow list has an entry that cannot be used: no/network/x is not an address, a network or a domain"
        " with an optional port." in boss.text
    )
    assert "10.0.0.0/8\nno/network/x</textarea>" in boss.text
    assert 'type="checkbox" name="deny_all_requests_except_allowed" value="true" checked' in boss.text
    given["outbound_local_requests_whitelist"] = "10.0.0.0/8, example.org:8080"
    await boss.send("/admin/settings", **given)
    assert (boss.path, "Settings saved." in boss.text) == ("/admin/settings", True)
    shown = (await scene.forge.root.get("/application/settings")).body
    assert shown["outbound_local_requests_whitelist"] == ["10.0.0.0/8", "example.org:8080"]
    assert (shown["default_projects_limit"], shown["deny_all_requests_except_allowed"]) == (7, False)
    assert (await _events(scene.forge, "application_setting_updated"))[0]["details"]["author_name"]


async def test_settings_of_the_process_show_no_secret(scene: Scene, boss: Browser) -> None:
    await boss.get("/admin/settings")
    assert "<code>database_url</code>" in boss.text
    for secret in (scene.forge.settings.database_url, scene.forge.settings.root_token):
        assert secret not in boss.text
    assert str(scene.forge.settings.data_dir) in boss.text


@pytest.mark.parametrize(
    "back", ["https://example.org/", "//example.org", "/admin\r\nX: y", "/adminx", "/group"]
)
async def test_a_form_leads_back_to_administrators_pages_only(boss: Browser, back: str) -> None:
    await boss.get("/admin/audit_events")
    await boss.send("/admin/audit_events/verify", back=back)
    assert boss.path == "/admin"


async def test_a_form_that_is_not_ours_does_nothing(scene: Scene, boss: Browser) -> None:
    clerk = await scene.forge.user("clerk")
    await boss.get("/admin/users")
    await boss.send(f"/admin/users/{clerk.id}/block", csrf_token="another")
    assert boss.status == 403
    assert (await clerk.api.get("/user")).status == 200


async def _clerk(scene: Scene) -> str:
    """Return the username of a blocked user."""
    clerk = await scene.forge.user("clerk")
    await scene.forge.root.put(f"/users/{clerk.id}", {"name": "=1+1"})
    await scene.forge.root.post(f"/users/{clerk.id}/block")
    return clerk.username


async def test_the_list_is_narrowed_by_all_filters(scene: Scene, boss: Browser) -> None:
    username = await _clerk(scene)
    await boss.get("/admin/audit_events?event_type=user_blocked&entity_type=User&author_username=root")
    assert username in boss.text
    await boss.get("/admin/audit_events?event_type=user_blocked&created_before=2001-01-01T00:00&entity_id=")
    assert "No audit events match the filters." in boss.text
    await boss.get("/admin/audit_events?entity_type=Nonsense")
    assert boss.status == 400


async def test_what_the_filters_let_through_is_a_file(scene: Scene, boss: Browser) -> None:
    username = await _clerk(scene)
    query = "event_type=user_blocked&created_after=2020-01-01T00:00:00"
    await boss.get(f"/admin/audit_events?{query}")
    assert (
        'href="/admin/audit_events/export?event_type=user_blocked&amp;created_after=2020-01-01T00%3A00%3A00'
        in (boss.text)
    )
    await boss.get(f"/admin/audit_events/export?{query}&format=ndjson")
    events = [orjson.loads(line) for line in boss.text.splitlines()]
    assert events == (await scene.forge.root.get("/audit_events?event_type=user_blocked&per_page=100")).body
    await boss.get(f"/admin/audit_events/export?{query}&format=csv")
    assert boss.headers["Content-Disposition"] == 'attachment; filename="audit-events.csv"'
    rows = list(csv.DictReader(io.StringIO(boss.text)))
    assert [row["id"] for row in rows] == [str(event["id"]) for event in events]
    assert (rows[0]["entity_path"], rows[0]["event_name"]) == (username, "user_blocked")


async def test_a_spreadsheet_computes_nothing_that_users_have_named(scene: Scene, boss: Browser) -> None:
    username = await _clerk(scene)
    clerk = (await scene.forge.root.get(f"/users?username={username}")).body[0]
    await scene.forge.token(clerk["id"])
    await boss.get("/admin/audit_events/export?event_type=personal_access_token_created&format=csv")
    assert "'=1+1" in [row["target_details"] for row in csv.DictReader(io.StringIO(boss.text))]


async def test_the_chain_is_verified_on_the_page(scene: Scene, boss: Browser) -> None:
    await boss.get("/admin/audit_events")
    await boss.send("/admin/audit_events/verify")
    assert "The audit trail is intact: " in boss.text


async def test_the_page_is_there_in_the_tiers_that_have_the_events(shared_forge: SharedForges) -> None:
    forge = await shared_forge(tier="free")
    async with browsing(forge) as browser:
        await browser.sign_in(await forge.user("boss", admin=True, password=PASSWORD))
        for path in ("/admin/audit_events", "/admin/audit_events/export"):
            await browser.get(path)
            assert browser.status == 403
            assert "not available on the free tier" in browser.text


async def _stored(scene: Scene, name: str) -> str:
    """Return the path of a public file that the edge has stored under that name and served once from its store."""
    settings = {
        "static_objects_external_storage_url": scene.edge,
        "static_objects_external_storage_auth_token": STORAGE_TOKEN,
    }
    assert (await scene.forge.root.put("/application/settings", settings)).status == 200
    project = await scene.forge.project(visibility="public", initialize_with_readme=True)
    path = f"/{project['path_with_namespace']}/-/raw/main/README.md?inline={name}"
    for _ in range(2):
        assert (await scene.forge.anonymous.get(f"{scene.edge}{path}")).status == 200
    return path


async def test_an_edge_tells_how_it_is_and_what_it_has_stored(scene: Scene, boss: Browser) -> None:
    path = await _stored(scene, "true")
    await boss.get("/admin/edges")
    assert scene.edge in boss.text
    for told in ("reached", "token right", "hit 1"):
        assert told in boss.text
    await boss.get(f"/admin/edges?edge=0&prefix={path.partition('/-/')[0]}")
    assert path in boss.text
    await boss.get("/admin/edges?edge=0&prefix=/nothing/like/that")
    assert "Nothing is stored there." in boss.text


async def test_what_is_purged_is_not_stored_any_more(scene: Scene, boss: Browser) -> None:
    path = await _stored(scene, "false")
    prefix = path.partition("/-/")[0]
    await boss.get(f"/admin/edges?edge=0&prefix={prefix}")
    await boss.send("/admin/edges/purge", edge="0", prefix=prefix)
    assert "are not served any more" in boss.text
    assert "Nothing is stored there." in boss.text


async def test_an_edge_that_does_not_exist_is_not_purged(boss: Browser) -> None:
    await boss.get("/admin/edges")
    await boss.send("/admin/edges/purge", edge="7", prefix="/a")
    problem = "Not all was purged. There is no such edge: the setting edge_urls names them."
    assert (boss.status, f'id="purge-prefix-problem">{problem}</p>' in boss.text) == (400, True)
    assert 'id="purge-prefix" name="prefix" type="text" value="/a"' in boss.text


async def test_what_is_wrong_with_an_edge_is_said(new_forge: Any) -> None:
    """Of three edges, one does not exist, one has another token, and one has none."""
    nobody = f"http://127.0.0.1:{free_port()}"
    async with (
        running_edge({"purge_token": f"another-{PURGE_TOKEN}"}) as other,
        running_edge({}) as none,
        new_forge(edge_urls=[nobody, other, none], edge_purge_token=PURGE_TOKEN) as forge,
        browsing(forge) as browser,
    ):
        await browser.sign_in(await forge.user("boss", admin=True, password=PASSWORD))
        await browser.get("/admin/edges")
        for told in ("It cannot be reached: ", "It refuses our token: ", "It has no such route: "):
            assert told in browser.text


PATH = "/admin/application_settings/repository"
URL = "static_objects_external_storage_url"
TOKEN = "static_objects_external_storage_auth_token"


async def test_an_administrator_sets_the_external_storage(scene: Scene, boss: Browser) -> None:
    nothing = {URL: "", TOKEN: ""}  # other tests that share the service may have set them
    assert (await scene.forge.root.put("/application/settings", nothing)).body[TOKEN] in (None, "")
    await boss.get(PATH)
    await boss.send(PATH, **{URL: "https://cdn.example.org", TOKEN: ""})
    assert (boss.status, boss.path) == (400, PATH)
    assert "External storage authentication token can&#39;t be blank." in boss.text
    assert 'value="https://cdn.example.org"' in boss.text
    await boss.send(PATH, **{URL: "https://cdn.example.org", TOKEN: "hidden-token"})
    assert (boss.status, boss.path) == (200, PATH)
    assert "Settings saved." in boss.text
    assert "hidden-token" not in boss.text
    shown = (await scene.forge.root.get("/application/settings")).body
    assert (shown[URL], shown[TOKEN]) == ("https://cdn.example.org", "hidden-token")
    await boss.send(PATH, **{URL: "", TOKEN: ""})
    assert (await scene.forge.root.get("/application/settings")).body[URL] is None


THROUGH, AGAIN = "An object through the storage", "The same once more, from the storage's own copy"
TOKENS = ("The service takes the storage's token", "The service refuses a wrong token")


@pytest.fixture(scope="module")
async def public_file(scene: Scene) -> str:
    """The path of a file in a public project."""
    project = await scene.forge.project(visibility="public", initialize_with_readme=True)
    return f"/{project['path_with_namespace']}/-/raw/main/README.md"


async def _set(scene: Scene, url: str, token: str = STORAGE_TOKEN) -> None:
    settings = {
        "static_objects_external_storage_url": url,
        "static_objects_external_storage_auth_token": token,
        "outbound_local_requests_whitelist": ["127.0.0.1", "localhost", "nowhere.invalid"],
    }
    assert (await scene.forge.root.put("/application/settings", settings)).status == 200


async def _check(boss: Browser, named: str = "") -> dict[str, tuple[str, str, str]]:
    """Return state, text and remedy of a check by its title."""
    await boss.get(PATH)
    await boss.send(f"{PATH}/check", object=named)
    pattern = (
        r'<li class="finding"><strong>(.*?)</strong>.*?</span> (\w+)</span>\s*<p class="seen">(.*?)</p>'
        r'(?:<p class="remedy">(.*?)</p>)?</li>'
    )
    return {
        html.unescape(title): (state, html.unescape(text), html.unescape(remedy))
        for title, state, text, remedy in re.findall(pattern, boss.text, re.DOTALL)
    }


async def test_all_is_right(scene: Scene, boss: Browser, public_file: str) -> None:
    await _set(scene, scene.edge)
    found = await _check(boss)
    assert {title: state for title, (state, _, _) in found.items()} == dict.fromkeys(
        [*TOKENS, THROUGH, AGAIN, "Purge"], "passed"
    )
    assert f"<code>{public_file}</code>" in boss.text
    assert re.search(
        r"200 in \d+ ms: \d+ bytes, SHA-256 \w{16}….*fwd=uri-miss.*the same bytes", found[THROUGH][1]
    )
    assert re.search(r"Cache-Status: forgelet-edge; hit; ttl=\d+", found[AGAIN][1])
    assert STORAGE_TOKEN not in boss.text


async def test_a_private_object_is_asked_for_with_the_administrators_own_token(
    scene: Scene, boss: Browser
) -> None:
    await _set(scene, scene.edge)
    project = await scene.forge.project(initialize_with_readme=True)
    found = await _check(boss, f"{scene.forge.base}/{project['path_with_namespace']}/-/raw/main/README.md")
    assert [state for state, _, _ in found.values()] == ["passed"] * 5
    assert "flso-" not in boss.text


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ("/group/project", "is no path of a raw file or an archive"),
        ("/nobody/has/this/-/raw/main/x", "There is no project nobody/has/this."),
    ],
)
async def test_what_is_no_object_is_said_and_stays_in_the_form(
    scene: Scene, boss: Browser, named: str, problem: str
) -> None:
    await _set(scene, scene.edge)
    await _check(boss, named)
    assert boss.status == 400
    assert problem in boss.text
    assert f'value="{named}"' in boss.text


async def test_an_object_that_is_not_there(scene: Scene, boss: Browser, public_file: str) -> None:
    await _set(scene, scene.edge)
    found = await _check(boss, f"{public_file}.txt")
    assert found[THROUGH][:2] == ("failed", "It answers 404, as the service does: there is no such object.")


@contextlib.asynccontextmanager
async def _storage(answer: web.Response, **options: Any) -> AsyncIterator[str]:
    """Run a storage that always gives the same answer; yield its URL."""

    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=answer.status, headers=answer.headers, body=answer.body)

    app = web.Application()
    app.router.add_get("/{rest:.*}", handle)
    server = TestServer(app, scheme="https" if options else "http")
    await server.start_server(**options)
    yield str(server.make_url("")).rstrip("/")
    await server.close()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            web.Response(status=400),
            "It answers 400: it takes no path of a static object below this URL.",
        ),
        (
            web.Response(status=302, headers={"Location": "https://elsewhere.example.org/x?token=secret"}),
            "It answers 302 and leads to https://elsewhere.example.org/x.",
        ),
        (
            web.Response(body=b"<h1>Hello</h1>"),
            "It answers 200 with something else than our object: 14 bytes",
        ),
        (web.Response(status=404), "It answers 404, though the service gives it the object: nothing is said"),
        (
            web.Response(status=502, body=b"no origin"),
            "It answers 502: it gets no answer from the service. no origin",
        ),
        (web.Response(status=418), "It answers 418: nothing is said"),
        (
            web.Response(status=403, body=b"The external storage token is not the configured one.\n"),
            "The service refuses the token that the storage sends (403).",
        ),
    ],
    ids=lambda each: str(each.status) if isinstance(each, web.Response) else "",
)
async def test_a_storage_that_answers_something_else(
    scene: Scene, boss: Browser, public_file: str, answer: web.Response, text: str
) -> None:
    async with _storage(answer) as url:
        await _set(scene, url)
        found = await _check(boss, public_file)
    assert [found[title][0] for title in TOKENS] == ["passed", "passed"]
    assert found[THROUGH][0] == "failed"
    assert found[THROUGH][1].startswith(text)
    assert found[THROUGH][2]
    assert AGAIN not in found


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://nowhere.invalid", "The name nowhere.invalid is not resolved."),
        ("http://127.0.0.1:{free}", "The connection to 127.0.0.1:{free} is refused: nothing listens there."),
        ("https://127.0.0.1:{service}", "TLS with 127.0.0.1:{service} fails: "),
        (
            "http://[::1]:{free}",
            "This service may not call ::1:{free}: Requests to loopback addresses are not allowed.",
        ),
    ],
)
async def test_a_storage_that_is_not_reached(
    scene: Scene, boss: Browser, public_file: str, url: str, text: str
) -> None:
    names = {"free": free_port(), "service": scene.forge.settings.port}
    await _set(scene, url.format(**names))
    found = await _check(boss, public_file)
    assert found[THROUGH][0] == "failed"
    assert found[THROUGH][1].startswith(text.format(**names))


async def test_a_certificate_that_nobody_trusts(
    scene: Scene, boss: Browser, public_file: str, tmp_path: Path
) -> None:
    secret, certificate = key_and_certificate()
    pem = tmp_path / "both.pem"
    pem.write_bytes(secret + certificate)
    speaks_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    speaks_tls.load_cert_chain(pem)
    async with _storage(web.Response(), ssl=speaks_tls) as url:
        await _set(scene, url)
        found = await _check(boss, public_file)
    text = "is not trusted: self-signed certificate."
    assert found[THROUGH][0] == "failed"
    assert re.fullmatch(rf"The TLS certificate of 127\.0\.0\.1:\d+ {text}", found[THROUGH][1])


async def test_the_storage_has_another_token_than_the_service(
    scene: Scene, boss: Browser, public_file: str
) -> None:
    await _set(scene, scene.edge, "another-token")
    found = await _check(boss, public_file)
    assert [found[title][0] for title in TOKENS] == ["passed", "passed"]
    assert found[THROUGH][:2] == ("failed", "The service refuses the token that the storage sends (403).")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "It answers 302 and leads back to itself: the service takes its requests for a user's."),
        ({"origin": "http://127.0.0.1:{free}"}, "It answers 502: it gets no answer from the service."),
    ],
    ids=["no token", "no origin"],
)
async def test_an_edge_that_is_set_up_wrongly(
    scene: Scene, boss: Browser, public_file: str, settings: dict[str, str], text: str
) -> None:
    given = {name: value.format(free=free_port()) for name, value in settings.items()}
    async with running_edge({"origin": scene.forge.base} | given) as url:
        await _set(scene, url)
        found = await _check(boss, public_file)
    assert found[THROUGH][0] == "failed"
    assert found[THROUGH][1].startswith(text), found[THROUGH]


async def test_a_storage_that_keeps_nothing_works_as_a_detour(
    scene: Scene, boss: Browser, public_file: str
) -> None:
    await _set(scene, scene.edge)
    text = (await scene.forge.anonymous.get(f"{scene.edge}{public_file}")).body
    async with _storage(web.Response(text=text)) as url:
        await _set(scene, url)
        found = await _check(boss, public_file)
    assert found[THROUGH][0] == "passed"
    assert found[AGAIN][0] == "warning"
    assert "does not say what its cache did" in found[AGAIN][1]


async def test_without_a_storage_there_is_nothing_to_check(scene: Scene, boss: Browser) -> None:
    await scene.forge.root.put("/application/settings", {"static_objects_external_storage_url": ""})
    await boss.get(PATH)
    assert "Check the storage" not in boss.text
