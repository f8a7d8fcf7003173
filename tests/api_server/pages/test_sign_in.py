"""Signing in and out on the pages, and refused requests to pages (decision D8)."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from api_server.accounts import sign_in_links
from api_server.pages import account, site
from api_server.web.context import SERVICES
from tests.api_server.pages.conftest import details_of
from tests.support.browser import COOKIE, PASSWORD, Browser, browsing, sign_in_link
from tests.support.clock import shared_forge_with_clock
from tests.support.forge import Forge, SharedForges
from tests.support.git_client import git_url
from tests.support.large_trees import plumbing
from tests.support.rights import stopped_before_acting

FAILED = "event_type=login_failed_with_standard_authentication"


@pytest.mark.parametrize("by", ["username", "email"])
async def test_signing_in_and_out(page_forge: Forge, browser: Browser, by: str) -> None:
    person = await page_forge.user(password=PASSWORD)
    await browser.get("/-/sign_in")
    await browser.send("/-/sign_in", login=getattr(person, by).upper(), password=PASSWORD)
    assert (browser.status, browser.title) == (200, "Your projects")
    assert f'href="/-/user_settings">{person.username}</a>' in browser.text
    (details,) = await details_of(page_forge, f"event_type=authenticated_with_password&author_id={person.id}")
    assert (details["custom_message"], details["with"]) == (
        "Signed in with STANDARD authentication",
        "STANDARD",
    )
    await browser.send("/-/sign_out")
    assert browser.title == "Sign in"


async def test_the_cookie_is_kept_from_scripts_and_stored_as_a_digest(
    page_forge: Forge, browser: Browser
) -> None:
    person = await page_forge.user(password=PASSWORD)
    await browser.get("/-/sign_in")
    before = next(iter(browser.session.cookie_jar)).value
    hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', browser.text)
    form = dict(hidden) | {"login": person.username, "password": PASSWORD}
    async with browser.session.post(f"{browser.base}/-/sign_in", data=form, allow_redirects=False) as answer:
        cookie = answer.headers["Set-Cookie"]
    assert answer.status == 303
    assert {"HttpOnly", "Path=/", "SameSite=Lax"} <= set(cookie.split("; "))
    value = cookie.split("=", 1)[1].split(";")[0]
    assert value != before, "signing in always gives a new cookie"
    stored = await page_forge.database.rows(
        "SELECT sessions::text AS text FROM sessions WHERE user_id = %(id)s", id=person.id
    )
    assert len(stored) == 1
    assert value not in stored[0].text


async def test_each_of_two_clicks_gets_a_session_that_lasts(page_forge: Forge, browser: Browser) -> None:
    """The browser shows only the answer to the second one, and may have discarded the cookie of the first."""
    person = await page_forge.user(password=PASSWORD)
    await browser.get("/-/sign_in")
    form = browser.hidden | {"login": person.username, "password": PASSWORD}

    async def submit() -> str:
        url = f"{browser.base}/-/sign_in"
        async with browser.session.post(url, data=form, allow_redirects=False) as answer:
            assert answer.status == 303
            return answer.cookies[COOKIE].value

    first, second = await asyncio.gather(submit(), submit())
    assert first != second
    assert (await browser.get("/")).title == "Your projects"


async def test_over_https_the_cookie_is_for_this_host_and_tls_only(new_forge: Any) -> None:
    async with (
        new_forge(external_url="https://forge.example.org") as forge,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{forge.settings.port}/-/sign_in") as answer,
    ):
        cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith("__Host-forgelet_session=")
    assert "Secure" in cookie


async def test_a_wrong_password_and_an_unknown_login_look_alike_and_are_audited(
    page_forge: Forge, browser: Browser
) -> None:
    """D7: attempts with a known account are in its own audit trail, those with an unknown one in the instance's, with
    the author -1."""
    person = await page_forge.user(password=PASSWORD)
    texts = []
    for login in (person.username, "nobody"):
        await browser.get("/-/sign_in")
        await browser.send("/-/sign_in", login=login, password="wrong")
        assert browser.status == 401
        texts.append(browser.text.replace(login, "").replace(browser.hidden["form_key"], ""))
    assert texts[0] == texts[1]
    assert "Invalid login or password." in texts[0]
    unknown, known = (await details_of(page_forge, FAILED))[:2]
    assert (known["scope"], known["target_id"], known["author_name"]) == ("User", person.id, person.username)
    assert (unknown["scope"], unknown["target_details"]) == ("Service::Audit::InstanceScope", "nobody")
    assert {known["failed_login"], unknown["failed_login"]} == {"STANDARD"}
    assert {known["custom_message"]} == {"Failed to login with STANDARD authentication"}


async def test_attempts_are_limited_and_those_beyond_are_not_recorded(
    page_forge: Forge, browser: Browser
) -> None:
    person = await page_forge.user(password=PASSWORD)
    statuses = []
    await browser.get("/-/sign_in")
    for _ in range(7):
        await browser.send("/-/sign_in", login=person.username, password="wrong")
        statuses.append(browser.status)
    assert statuses == [401] * 5 + [429] * 2
    recorded = [event["target_id"] for event in await details_of(page_forge, FAILED)]
    assert recorded.count(person.id) == 5
    await browser.send("/-/sign_in", login=person.username, password=PASSWORD)
    assert browser.status == 429, "not even the right one"


async def test_the_blocked_cannot_sign_in_and_are_signed_out(page_forge: Forge, browser: Browser) -> None:
    person = await page_forge.user(password=PASSWORD)
    await browser.sign_in(person)
    await page_forge.root.post(f"/users/{person.id}/block")
    await browser.get("/-/sign_in")
    assert browser.title == "Sign in"
    await browser.send("/-/sign_in", login=person.username, password=PASSWORD)
    assert (browser.status, "Your account has been blocked." in browser.text) == (401, True)


async def test_whoever_was_blocked_signs_in_anew(page_forge: Forge, browser: Browser) -> None:
    person = await page_forge.user(password=PASSWORD)
    await browser.sign_in(person)
    for change in ("block", "unblock"):
        assert (await page_forge.root.post(f"/users/{person.id}/{change}")).status == 201
    assert (await browser.get("/-/sign_in")).title == "Sign in"
    assert (await browser.sign_in(person)).title == "Your projects"


async def test_a_new_password_ends_all_sessions(page_forge: Forge, browser: Browser) -> None:
    person = await page_forge.user(password=PASSWORD)
    await browser.sign_in(person)
    await page_forge.root.put(f"/users/{person.id}", {"password": "another password"})
    assert (await browser.get("/-/sign_in")).title == "Sign in"


async def test_a_password_that_is_replaced_meanwhile_opens_no_session(
    page_forge: Forge, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = await page_forge.user(password=PASSWORD)
    with stopped_before_acting(page_forge, monkeypatch) as stop:
        signing_in = asyncio.create_task(browser.sign_in(person))
        await stop.until(1)
        async with page_forge.database.transaction() as transaction:
            await transaction.run("UPDATE users SET password_hash = NULL WHERE id = %(id)s", id=person.id)
        stop.open()
        assert (await signing_in).status == 401
    assert (await browser.get("/-/sign_in")).title == "Sign in"


async def test_an_account_without_a_password_has_none_that_fits(page_forge: Forge, browser: Browser) -> None:
    person = await page_forge.user()
    assert (await browser.sign_in(person, password="")).status == 401


@pytest.mark.parametrize("path", ["/-/sign_in", "/-/sign_out"])
async def test_a_form_of_somewhere_else_is_refused(page_forge: Forge, browser: Browser, path: str) -> None:
    """Cross-site requests: without the token of this browser's page, or with that of another one."""
    person = await page_forge.user(password=PASSWORD)
    async with browsing(page_forge) as other:
        await other.get("/-/sign_in")
        token = re.findall(r'name="csrf_token" value="([^"]*)"', other.text)[0]
    await browser.get("/-/sign_in")
    for fields in ({"csrf_token": ""}, {"csrf_token": token}, {"csrf_token": "é"}):
        await browser.send(path, login=person.username, password=PASSWORD, **fields)
        assert (browser.status, browser.title) == (403, "Form not submitted")
        await browser.get("/-/sign_in")
        assert browser.title == "Sign in"


async def test_what_was_written_is_kept_where_the_session_has_ended(browser: Browser) -> None:
    """Secrets are not kept, and neither are forms of another site."""
    url = f"{browser.base}/-/user_settings/personal_access_tokens"
    sent = {"name": "my <b> token", "new_password": "s3cr3t", "scopes": "api"}
    texts = []
    for source in ("same-origin", "cross-site"):
        async with browser.session.post(url, data=sent, headers={"Sec-Fetch-Site": source}) as answer:
            assert answer.status == 403
            texts.append(await answer.text())
    kept, foreign = texts
    assert "my &lt;b&gt; token" in kept
    assert ("s3cr3t" in kept, "my &lt;b&gt; token" in foreign) == (False, False)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data; boundary=x", b"--x\r\nno colon\r\n\r\nabc\r\n--x--\r\n"),
        ("multipart/form-data", b"--x--\r\n"),
        ("application/x-www-form-urlencoded; charset=none", b"login=alice"),
        ("application/x-www-form-urlencoded", b"login=\xff"),
    ],
)
async def test_a_form_that_cannot_be_read_is_refused(browser: Browser, kind: str, body: bytes) -> None:
    url = f"{browser.base}/-/sign_in"
    async with browser.session.post(url, data=body, headers={"Content-Type": kind}) as answer:
        assert answer.status == 403
        assert "Form not submitted" in await answer.text()


@pytest.mark.parametrize(
    ("wanted", "reached"),
    [
        ("/-/invites/flinv-x_-1", "/-/invites/flinv-x_-1"),
        ("/?page=2", "/"),
        ("//evil.example.org", "/"),
        ("https://evil.example.org", "/"),
        ("/-/../evil", "/"),
        ("/\\evil.example.org", "/"),
        ("/-/a\r\nSet-Cookie: x=y", "/"),
    ],
)
async def test_signing_in_leads_to_our_own_pages_only(
    page_forge: Forge, browser: Browser, wanted: str, reached: str
) -> None:
    await browser.sign_in(await page_forge.user(password=PASSWORD), return_to=wanted)
    assert browser.path == reached


async def test_pages_load_nothing_foreign_and_leak_no_address(browser: Browser) -> None:
    await browser.get("/-/sign_in")
    policy = browser.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'")
    assert "unsafe" not in policy
    expected = {"Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "X-Frame-Options": "DENY"}
    assert {name: browser.headers[name] for name in expected} == expected
    for address in re.findall(r'<link rel="\w+" href="([^"]+)"', browser.text):
        assert (await browser.get(address)).status == 200
        assert "immutable" in browser.headers["Cache-Control"]
    assert (await browser.get("/-/assets/pages.000000000000.css")).status == 404


async def test_a_session_ends_after_14_days(shared_forge: SharedForges) -> None:
    forge, clock = await shared_forge_with_clock(shared_forge)
    async with browsing(forge) as browser:
        await browser.sign_in(await forge.user(password=PASSWORD))
        clock.move(days=14, seconds=-1)
        assert (await browser.get("/-/sign_in")).title == "Your projects"
        clock.move(seconds=1)
        assert (await browser.get("/-/sign_in")).title == "Sign in"


@pytest.mark.parametrize("path", ["/-/sign_in", "/-/sign_out", "/-/invites/a%0D%0AX/accept", "/-/emails/1/x"])
async def test_a_form_without_a_body_is_refused_as_one_without_fields(browser: Browser, path: str) -> None:
    async with browser.session.post(f"{browser.base}{path}", skip_auto_headers=["Content-Type"]) as answer:
        assert (answer.status, "Form not submitted" in await answer.text()) == (403, True)


KEPT = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_PARAMETER = re.compile(r"\{(\w+)(?::(?:[^{}]|\{[^{}]*\})*)?\}")


def paths(method: str) -> list[str]:
    declared = [route.path for pages in site.PAGES for route in pages.routes if route.method == method]
    return [_PARAMETER.sub("1", path) for path in declared]


@pytest.fixture
async def boss(forge: Forge) -> AsyncIterator[Browser]:
    async with browsing(forge, await forge.user("boss", admin=True)) as opened:
        yield opened


def is_kept_close(answer: aiohttp.ClientResponse) -> bool:
    policy = answer.headers.get("Content-Security-Policy", "")
    strict = policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "*" not in policy
    return strict and answer.headers.items() >= KEPT.items()


async def test_no_form_is_taken_that_is_not_ours(boss: Browser) -> None:
    taken = []
    for path in paths("POST"):
        for sent in ({}, {"csrf_token": "x" * 43}, {"csrf_token": "☃"}):
            async with boss.session.post(f"{boss.base}{path}", data=sent, allow_redirects=False) as answer:
                if answer.status != 403 or "Form not submitted" not in await answer.text():
                    taken.append((path, sent, answer.status))
                assert is_kept_close(answer), path
    assert taken == []


async def test_every_page_forbids_scripts_of_others_frames_and_copies(boss: Browser) -> None:
    """This applies also to 404; files for download have rules of their own."""
    for path in [*paths("GET"), "/-/sign_in?return_to=x", "/-/invites/x", "/-/emails/1/x", "/-/password/x"]:
        async with boss.session.get(f"{boss.base}{path}", allow_redirects=False) as answer:
            if answer.status < 300 or answer.status >= 400:
                assert is_kept_close(answer) or "attachment" in answer.headers["Content-Disposition"], path
            assert answer.headers["Cache-Control"] == "no-store", path


async def test_what_has_moved_is_kept_by_nobody_on_the_way(forge: Forge) -> None:
    """A shared cache would tell anonymous visitors the new path of a private project."""
    owner = await forge.user()
    made = await forge.project(owner)
    assert (await owner.api.put(f"/projects/{made['id']}", {"path": "elsewhere"})).status == 200
    async with browsing(forge, owner) as browser:
        old = f"{browser.base}/{made['path_with_namespace']}"
        async with browser.session.get(old, allow_redirects=False) as answer:
            assert (answer.status, answer.headers.get("Cache-Control")) == (301, "no-store")


async def test_what_is_no_text_is_refused_as_such(boss: Browser) -> None:
    await boss.get(account.TOKENS)
    assert (await boss.send(account.TOKENS, name="a\0b", **{"scopes[]": "api"})).status in (400, 403)
    async with boss.session.post(f"{boss.base}/-/sign_in", data=_no_unicode("csrf_token")) as answer:
        assert answer.status == 403
    storage = "/admin/application_settings/repository"
    await boss.get(storage)
    await boss.send(f"{storage}/check", object="http://[")
    assert boss.status == 400


async def test_the_api_takes_no_such_form_either(forge: Forge) -> None:
    headers = {"PRIVATE-TOKEN": forge.root.token}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{forge.base}/api/v4/groups", data=_no_unicode("name"), headers=headers) as answer,
    ):
        assert answer.status == 400, await answer.text()


async def test_a_root_folder_of_very_many_files_keeps_nobody_waiting(forge: Forge, tmp_path: Path) -> None:
    """The README is searched in it; the tests' watchdog finds blocking of the loop."""
    owner, made = await forge.user(), await plumbing(tmp_path)
    project = await forge.project(owner)
    blob = ("100644", made.blob())
    tree = made.tree({f"{number:06}": blob for number in range(160_000)} | {"readme.txt": blob})
    address = git_url(forge, project["path_with_namespace"], owner)
    await made.git("push", "--quiet", address, f"{made.commit(tree)}:refs/heads/main")
    async with browsing(forge, owner) as browser:
        await browser.get(f"/{project['path_with_namespace']}")
        assert "readme.txt" in browser.text


def _no_unicode(name: str) -> aiohttp.MultipartWriter:
    """Return a form whose field is half of a character."""
    writer = aiohttp.MultipartWriter("form-data")
    kind = {"Content-Type": "text/plain; charset=unicode_escape"}
    writer.append(rb"\ud800", kind).set_content_disposition("form-data", name=name)
    return writer


async def test_a_link_signs_in_by_its_form_and_once(page_forge: Forge, browser: Browser) -> None:
    person = await page_forge.user(password=PASSWORD)
    path = await sign_in_link(page_forge, person)
    await browser.get(path)
    assert (browser.status, f"Sign in as {person.username}</button>" in browser.text) == (200, True)
    async with browsing(page_forge) as other:
        assert (await other.get("/")).title == "Public projects", "opening it changes nothing"
        await other.get(path)
        await browser.send(path)
        assert (browser.path, browser.title) == ("/", "Your projects")
        for answer in (await other.send(path), await other.get(path)):
            assert (answer.status, answer.title) == (404, "Invalid or expired sign-in link")
            assert "can create a new link with `forgelet user sign-in-link NAME`." in answer.text
    (details,) = await details_of(page_forge, f"event_type=authenticated_with_link&author_id={person.id}")
    assert (details["custom_message"], details["with"]) == ("Signed in with LINK authentication", "LINK")


async def test_links_that_sign_nobody_in(page_forge: Forge, browser: Browser) -> None:
    person, blocked = await page_forge.user(password=PASSWORD), await page_forge.user(password=PASSWORD)
    good = await sign_in_link(page_forge, person)
    paths = [
        good[:-1] + ("A" if good[-1] != "A" else "B"),
        good.replace(f"flsin-{person.id}-", f"flsin-{blocked.id}-"),
        await sign_in_link(page_forge, person, sign_in_count=7),
        await sign_in_link(
            page_forge, person, now=page_forge.server.app[SERVICES].clock() - sign_in_links.LIFETIME
        ),
        await sign_in_link(page_forge, blocked),
        "/-/sign_in/flsin-1-2-3",
        f"/-/sign_in/flsin-{'9' * 18}-{'9' * 18}-{'x' * 27}",
    ]
    await page_forge.root.post(f"/users/{blocked.id}/block")
    await browser.get(good)
    csrf = browser.text
    for path in paths:
        browser.text = csrf
        assert (await browser.send(path)).status == 404, path
        assert (await browser.get(path)).status == 404, path
    async with browser.session.post(f"{browser.base}{good}", data={}) as answer:
        assert answer.status == 403, "a form of ours only"
    browser.text = csrf
    assert (await browser.send(good)).title == "Your projects"


async def test_of_two_who_use_a_link_at_once_one_signs_in(page_forge: Forge) -> None:
    person = await page_forge.user(password=PASSWORD)
    path = await sign_in_link(page_forge, person)
    async with browsing(page_forge) as one, browsing(page_forge) as other:
        for browser in (one, other):
            await browser.get(path)
        await asyncio.gather(one.send(path), other.send(path))
        assert sorted(browser.status for browser in (one, other)) == [200, 404]
        titles = {(await browser.get("/")).title for browser in (one, other)}
    assert titles == {"Your projects", "Public projects"}
