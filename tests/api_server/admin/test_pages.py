"""Signing in, and answering invitations on their page (decision D8)."""

import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from api_server.state.queue import QUEUE
from api_server.state.secrets import INVITATION_TOKEN
from api_server.web.context import VAULT
from tests.support.browser import PASSWORD, Browser, browsing
from tests.support.forge import Forge, Person, new_name


@pytest.fixture
async def browser(page_forge: Forge) -> AsyncIterator[Browser]:
    async with browsing(page_forge) as opened:
        yield opened


@pytest.fixture
async def page_forge(new_forge: Any) -> AsyncIterator[Forge]:
    """A server of the test's own, because attempts to sign in are counted by address."""
    async with new_forge() as forge:
        yield forge


async def _person(forge: Forge, **values: Any) -> Person:
    return await forge.user(password=PASSWORD, **values)


async def _invitation(forge: Forge, email: str, kind: str = "projects", **values: Any) -> tuple[str, str]:
    """Paths of the source and of the page of an invitation to it."""
    made = await (forge.group() if kind == "groups" else forge.project())
    source = f"/{kind}/{made['id']}"
    async with forge.database.transaction() as transaction:  # so that the address is that of nobody yet
        await transaction.row("UPDATE users SET confirmed_at = NULL WHERE email = %(email)s", email=email)
    answer = await forge.root.post(f"{source}/invitations", {"email": email, "access_level": 30} | values)
    assert answer.body == {"status": "success"}
    async with forge.database.transaction() as transaction:
        await transaction.row("UPDATE users SET confirmed_at = now() WHERE email = %(email)s", email=email)
    row = await forge.database.row(
        "SELECT token_seed FROM invitations WHERE lower(email) = lower(%(email)s) ORDER BY id DESC",
        email=email,
    )
    token = forge.server.app[VAULT].derived_token(INVITATION_TOKEN, row.token_seed)
    return source, f"/-/invites/{token}"


async def _details(forge: Forge, query: str) -> list[dict[str, Any]]:
    answer = await forge.root.get(f"/audit_events?{query}")
    assert answer.status == 200
    return [event["details"] | {"scope": event["entity_type"]} for event in answer.body]


# --- signing in -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["username", "email"])
async def test_signing_in_and_out(page_forge: Forge, browser: Browser, by: str) -> None:
    person = await _person(page_forge)
    await browser.get("/-/sign_in")
    await browser.send("/-/sign_in", login=getattr(person, by).upper(), password=PASSWORD)
    assert (browser.status, browser.title) == (200, "You are signed in")
    assert f"({person.username})" in browser.text
    (details,) = await _details(page_forge, f"event_type=authenticated_with_password&author_id={person.id}")
    assert (details["custom_message"], details["with"]) == (
        "Signed in with STANDARD authentication",
        "STANDARD",
    )
    await browser.send("/-/sign_out")
    assert browser.title == "Sign in"


async def test_the_cookie_is_kept_from_scripts_and_stored_as_a_digest(
    page_forge: Forge, browser: Browser
) -> None:
    person = await _person(page_forge)
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
    stored = await page_forge.database.rows("SELECT sessions::text AS text FROM sessions")
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
    person = await _person(page_forge)
    texts = []
    for login in (person.username, "nobody"):
        await browser.get("/-/sign_in")
        await browser.send("/-/sign_in", login=login, password="wrong")
        assert browser.status == 401
        texts.append(browser.text.replace(login, ""))
    assert texts[0] == texts[1]
    assert "Invalid login or password." in texts[0]
    unknown, known = await _details(page_forge, "event_type=login_failed_with_standard_authentication")
    assert (known["scope"], known["target_id"], known["author_name"]) == ("User", person.id, person.username)
    assert (unknown["scope"], unknown["target_details"]) == ("Service::Audit::InstanceScope", "nobody")
    assert {known["failed_login"], unknown["failed_login"]} == {"STANDARD"}
    assert {known["custom_message"]} == {"Failed to login with STANDARD authentication"}


async def test_attempts_are_limited_and_those_beyond_are_not_recorded(
    page_forge: Forge, browser: Browser
) -> None:
    person = await _person(page_forge)
    statuses = []
    await browser.get("/-/sign_in")
    for _ in range(7):
        await browser.send("/-/sign_in", login=person.username, password="wrong")
        statuses.append(browser.status)
    assert statuses == [401] * 5 + [429] * 2
    assert len(await _details(page_forge, "event_type=login_failed_with_standard_authentication")) == 5
    await browser.send("/-/sign_in", login=person.username, password=PASSWORD)
    assert browser.status == 429, "not even the right one"


async def test_the_blocked_cannot_sign_in_and_are_signed_out(page_forge: Forge, browser: Browser) -> None:
    person = await _person(page_forge)
    await browser.sign_in(person)
    await page_forge.root.post(f"/users/{person.id}/block")
    await browser.get("/-/sign_in")
    assert browser.title == "Sign in"
    await browser.send("/-/sign_in", login=person.username, password=PASSWORD)
    assert (browser.status, "Your account has been blocked." in browser.text) == (401, True)


async def test_a_new_password_ends_all_sessions(page_forge: Forge, browser: Browser) -> None:
    person = await _person(page_forge)
    await browser.sign_in(person)
    await page_forge.root.put(f"/users/{person.id}", {"password": "another password"})
    assert (await browser.get("/-/sign_in")).title == "Sign in"


async def test_an_account_without_a_password_has_none_that_fits(page_forge: Forge, browser: Browser) -> None:
    person = await page_forge.user()
    assert (await browser.sign_in(person, password="")).status == 401


@pytest.mark.parametrize("path", ["/-/sign_in", "/-/sign_out"])
async def test_a_form_of_somewhere_else_is_refused(page_forge: Forge, browser: Browser, path: str) -> None:
    """Cross-site requests: neither without the token of this browser's page, nor with that of another one."""
    person = await _person(page_forge)
    async with browsing(page_forge) as other:
        await other.get("/-/sign_in")
        token = re.findall(r'name="csrf_token" value="([^"]*)"', other.text)[0]
    await browser.get("/-/sign_in")
    for fields in ({"csrf_token": ""}, {"csrf_token": token}, {"csrf_token": "é"}):
        await browser.send(path, login=person.username, password=PASSWORD, **fields)
        assert (browser.status, browser.title) == (403, "This form cannot be accepted")
        await browser.get("/-/sign_in")
        assert browser.title == "Sign in"


@pytest.mark.parametrize(
    ("wanted", "reached"),
    [
        ("/-/invites/flinv-x_-1", "/-/invites/flinv-x_-1"),
        ("//evil.example.org", "/-/sign_in"),
        ("https://evil.example.org", "/-/sign_in"),
        ("/-/../evil", "/-/sign_in"),
        ("/\\evil.example.org", "/-/sign_in"),
        ("/-/a\r\nSet-Cookie: x=y", "/-/sign_in"),
    ],
)
async def test_signing_in_leads_to_our_own_pages_only(
    page_forge: Forge, browser: Browser, wanted: str, reached: str
) -> None:
    await browser.sign_in(await _person(page_forge), return_to=wanted)
    assert browser.path == reached


async def test_pages_load_nothing_foreign_and_leak_no_address(browser: Browser) -> None:
    await browser.get("/-/sign_in")
    assert browser.headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'self'")
    assert "<script" not in browser.text
    expected = {"Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "X-Frame-Options": "DENY"}
    assert {name: browser.headers[name] for name in expected} == expected
    assert (await browser.get("/-/pages.css")).headers["Content-Type"].startswith("text/css")


# --- invitations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["groups", "projects"])
async def test_accepting(page_forge: Forge, browser: Browser, kind: str) -> None:
    """Opening the page changes nothing; its form makes a member of who has confirmed the address, and tells so."""
    person = await _person(page_forge)
    source, page = await _invitation(page_forge, person.email, kind)
    await browser.get(page)
    assert (browser.status, "Accept" in browser.text, "Decline" in browser.text) == (200, False, True)
    assert "as Developer" in browser.text
    await browser.sign_in(person, return_to=page)
    assert browser.path == page
    assert "Accept" in browser.text
    for _ in range(3):
        await browser.get(page)
    assert (await page_forge.root.get(f"{source}/members/{person.id}")).status == 404

    await browser.send(f"{page}/accept")
    assert (browser.status, browser.title.startswith("Welcome to the ")) == (200, True)
    member = (await page_forge.root.get(f"{source}/members/{person.id}")).body
    assert member["access_level"] == 30
    assert (await page_forge.root.get(f"{source}/invitations")).body == []
    assert (await browser.get(page)).status == 404, "a link works once"

    events = await _details(page_forge, f"event_type=member_created&author_id={person.id}")
    assert [(event["custom_message"], event["target_id"]) for event in events] == [
        ("Membership created", person.id)
    ]
    await _until_mailed(page_forge, "Invitation accepted", person.username.title())


async def _until_mailed(forge: Forge, subject: str, text: str) -> None:
    import asyncio

    folder = forge.settings.data_dir / "mail"
    async with asyncio.timeout(10):
        while not any(
            f"Subject: {subject}" in (mail := file.read_text())
            and text in mail
            and "To: root@localhost" in mail
            for file in folder.glob("*.eml")
        ):
            await asyncio.sleep(0.02)
    assert forge.server.app[QUEUE]


async def test_somebody_elses_invitation_cannot_be_accepted(page_forge: Forge, browser: Browser) -> None:
    """Nor by who has the address but has not confirmed it."""
    person, other = await _person(page_forge), await _person(page_forge)
    source, page = await _invitation(page_forge, other.email)
    await browser.sign_in(person, return_to=page)
    assert "is not a confirmed address of your account" in browser.text
    await browser.send(f"{page}/accept")
    assert (browser.status, browser.title) == (403, "The invitation could not be accepted")

    unconfirmed = await _person(page_forge, skip_confirmation=False)
    answer = await page_forge.root.post(
        f"{source}/invitations", {"email": unconfirmed.email, "access_level": 30}
    )
    assert answer.body == {"status": "success"}
    row = await page_forge.database.row(
        "SELECT token_seed FROM invitations WHERE email = %(email)s", email=unconfirmed.email
    )
    token = page_forge.server.app[VAULT].derived_token(INVITATION_TOKEN, row.token_seed)
    async with browsing(page_forge) as second:
        await second.sign_in(unconfirmed, return_to=f"/-/invites/{token}")
        assert (await second.send(f"/-/invites/{token}/accept")).status == 403
    assert len((await page_forge.root.get(f"{source}/invitations")).body) == 2


async def test_a_confirmed_secondary_address_may_accept(page_forge: Forge, browser: Browser) -> None:
    person, address = await _person(page_forge), f"{new_name('second')}@example.org"
    source, page = await _invitation(page_forge, address)
    async with page_forge.database.transaction() as transaction:
        await transaction.row(
            "INSERT INTO user_emails (user_id, email, confirmed_at) VALUES (%(id)s, %(email)s, now())",
            id=person.id,
            email=address.upper(),
        )
    await browser.sign_in(person, return_to=page)
    await browser.send(f"{page}/accept")
    assert (await page_forge.root.get(f"{source}/members/{person.id}")).status == 200


async def test_accepting_needs_somebody_who_is_signed_in(page_forge: Forge, browser: Browser) -> None:
    person = await _person(page_forge)
    source, page = await _invitation(page_forge, person.email)
    await browser.get(page)
    await browser.send(f"{page}/accept")
    assert browser.title == "Sign in"
    assert len((await page_forge.root.get(f"{source}/invitations")).body) == 1


async def test_a_member_who_accepts_keeps_the_greater_role(page_forge: Forge, browser: Browser) -> None:
    person = await _person(page_forge)
    source, page = await _invitation(page_forge, person.email)
    await page_forge.root.post(f"{source}/members", {"user_id": person.id, "access_level": 40})
    await browser.sign_in(person, return_to=page)
    assert (await browser.send(f"{page}/accept")).status == 200
    assert (await page_forge.root.get(f"{source}/members/{person.id}")).body["access_level"] == 40
    assert (await page_forge.root.get(f"{source}/invitations")).body == []


async def test_declining_needs_the_link_only(page_forge: Forge, browser: Browser) -> None:
    address = f"{new_name('somebody')}@example.org"
    source, page = await _invitation(page_forge, address)
    await browser.get(page)
    await browser.send(f"{page}/decline")
    assert (browser.status, browser.title) == (200, "You have declined the invitation")
    assert (await page_forge.root.get(f"{source}/invitations")).body == []
    assert (await browser.get(page)).status == 404
    details = (await _details(page_forge, "event_type=member_destroyed"))[0]
    assert (details["custom_message"], details["author_name"], details["author_class"]) == (
        "Invitation declined",
        address,
        "UnauthenticatedAuthor",
    )
    await _until_mailed(page_forge, "Invitation declined", address)


async def test_a_link_that_leads_nowhere(page_forge: Forge, browser: Browser) -> None:
    """Unknown, taken back and expired ones look alike, for every method."""
    taken_back = f"{new_name('somebody')}@example.org"
    source, first = await _invitation(page_forge, taken_back)
    await page_forge.root.delete(f"{source}/invitations/{quote(taken_back)}")
    _, expired = await _invitation(page_forge, f"{new_name('somebody')}@example.org", expires_at="2999-01-01")
    async with page_forge.database.transaction() as transaction:
        await transaction.row("UPDATE invitations SET expires_at = current_date")
    await browser.get("/-/sign_in")
    for page in (first, expired, "/-/invites/flinv-unknown", "/-/invites/%00%ff"):
        form = browser.text if "csrf_token" in browser.text else ""
        await browser.get(page)
        assert (browser.status, browser.title) == (404, "There is no such invitation")
        browser.text = form or browser.text
        assert (await browser.send(f"{page}/decline")).status in (403, 404)
        await browser.get("/-/sign_in")


async def test_a_prefetched_page_answers_nothing(page_forge: Forge, browser: Browser) -> None:
    """HEAD and GET of every address of an invitation leave it as it is."""
    source, page = await _invitation(page_forge, f"{new_name('somebody')}@example.org")
    for path in (page, f"{page}/accept", f"{page}/decline"):
        for method in ("GET", "HEAD"):
            async with browser.session.request(method, f"{browser.base}{path}") as answer:
                assert answer.status in (200, 405)
    assert len((await page_forge.root.get(f"{source}/invitations")).body) == 1


async def test_texts_of_others_are_escaped(page_forge: Forge, browser: Browser) -> None:
    group = await page_forge.group(name="A <b>bold</b> group")
    address = f"{new_name('somebody')}@example.org"
    await page_forge.root.post(f"/groups/{group['id']}/invitations", {"email": address, "access_level": 30})
    row = await page_forge.database.row(
        "SELECT token_seed FROM invitations WHERE email = %(email)s", email=address
    )
    token = page_forge.server.app[VAULT].derived_token(INVITATION_TOKEN, row.token_seed)
    await browser.get(f"/-/invites/{token}")
    assert "A &lt;b&gt;bold&lt;/b&gt; group" in browser.text
    assert "<b>" not in browser.text


async def test_an_administrator_sets_the_external_storage_on_a_page(new_forge: Any) -> None:
    path = "/admin/application_settings/repository"
    async with new_forge() as forge:
        boss = await forge.user("boss", admin=True, force_random_password=False, password=PASSWORD)
        clerk = await forge.user("clerk", force_random_password=False, password=PASSWORD)
        async with browsing(forge) as browser:
            assert (await browser.get(path)).path == "/-/sign_in"
            await browser.sign_in(clerk)
            assert (await browser.get(path)).status == 403
        async with browsing(forge) as browser:
            await browser.sign_in(boss, return_to=path)
            assert (browser.title, browser.path) == ("Repository settings", path)
            fields = {"static_objects_external_storage_url": "https://cdn.example.org"}
            await browser.send(path, **fields)
            assert "External storage authentication token can&#39;t be blank." in browser.text
            assert 'value="https://cdn.example.org"' in browser.text
            await browser.send(path, **fields, static_objects_external_storage_auth_token="hidden-token")
            assert "The settings are saved." in browser.text
            assert "hidden-token" not in browser.text
        shown = (await forge.root.get("/application/settings")).body
        assert shown["static_objects_external_storage_url"] == "https://cdn.example.org"
        assert shown["static_objects_external_storage_auth_token"] == "hidden-token"
