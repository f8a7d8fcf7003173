"""Signing in and out on the pages (decision D8)."""

import asyncio
import re
from typing import Any

import aiohttp
import pytest

from tests.api_server.pages.conftest import details_of
from tests.support.browser import PASSWORD, Browser, browsing
from tests.support.clock import shared_forge_with_clock
from tests.support.forge import Forge, SharedForges
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
    """D7: of a known account in its own trail, of an unknown one in the instance's; author -1."""
    person = await page_forge.user(password=PASSWORD)
    texts = []
    for login in (person.username, "nobody"):
        await browser.get("/-/sign_in")
        await browser.send("/-/sign_in", login=login, password="wrong")
        assert browser.status == 401
        texts.append(browser.text.replace(login, ""))
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
    """Cross-site requests: neither without the token of this browser's page, nor with that of another one."""
    person = await page_forge.user(password=PASSWORD)
    async with browsing(page_forge) as other:
        await other.get("/-/sign_in")
        token = re.findall(r'name="csrf_token" value="([^"]*)"', other.text)[0]
    await browser.get("/-/sign_in")
    for fields in ({"csrf_token": ""}, {"csrf_token": token}, {"csrf_token": "é"}):
        await browser.send(path, login=person.username, password=PASSWORD, **fields)
        assert (browser.status, browser.title) == (403, "This form cannot be accepted")
        await browser.get("/-/sign_in")
        assert browser.title == "Sign in"


async def test_what_was_written_is_kept_where_the_session_has_ended(browser: Browser) -> None:
    """But no secrets, and not what another site sends."""
    url = f"{browser.base}/-/user_settings/personal_access_tokens"
    sent = {"name": "my <b> token", "new_password": "s3cr3t", "scopes": "api"}
    texts = []
    for site in ("same-origin", "cross-site"):
        async with browser.session.post(url, data=sent, headers={"Sec-Fetch-Site": site}) as answer:
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
        assert "This form cannot be accepted" in await answer.text()


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
        assert (answer.status, "This form cannot be accepted" in await answer.text()) == (403, True)
