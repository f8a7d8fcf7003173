"""Somebody's own settings: password, tokens, sessions and addresses."""

import re

from api_server.pages.account import browser_named
from tests.api_server.pages.conftest import details_of
from tests.support.browser import PASSWORD, Browser, browsing
from tests.support.forge import Forge

SETTINGS = "/-/user_settings"
NEW = "an even better one"


async def test_a_stranger_signs_in_first_and_comes_back(page_forge: Forge, browser: Browser) -> None:
    person = await page_forge.user(password=PASSWORD)
    await browser.get(f"{SETTINGS}/active_sessions")
    assert (browser.path, browser.title) == ("/-/sign_in", "Sign in")
    await browser.send("/-/sign_in", login=person.username, password=PASSWORD)
    assert browser.path == f"{SETTINGS}/active_sessions"


async def test_another_password_ends_all_other_sessions(page_forge: Forge, browser: Browser) -> None:
    person = await page_forge.user(password=PASSWORD)
    async with browsing(page_forge) as elsewhere:
        await elsewhere.enter(page_forge, person)
        await browser.enter(page_forge, person)
        await browser.get(f"{SETTINGS}/password")
        refused = (
            ({"present_password": "wrong", "password": NEW}, "The present password is not right."),
            ({"present_password": PASSWORD, "password": "short"}, "Password is too short"),
            ({"present_password": PASSWORD, "password": NEW, "password_confirmation": "x"}, "not the same"),
        )
        for fields, problem in refused:
            fields.setdefault("password_confirmation", fields["password"])
            await browser.send(f"{SETTINGS}/password", **fields)
            assert (browser.status, problem in browser.text) == (400, True), browser.text
        assert (await elsewhere.get(SETTINGS)).title == "Your account"
        fields = dict.fromkeys(("password", "password_confirmation"), NEW)
        await browser.send(f"{SETTINGS}/password", present_password=PASSWORD, **fields)
        assert (browser.status, "Your password is changed" in browser.text) == (200, True)
        assert (await browser.get(SETTINGS)).title == "Your account", "her own session goes on"
        assert "Your password is changed" not in browser.text, "said once"
        assert (await elsewhere.get(SETTINGS)).title == "Sign in"
        assert (await elsewhere.sign_in(person, NEW)).title == "Your projects"
    details = (await details_of(page_forge, "event_type=user_password_updated"))[0]
    assert details["target_id"] == person.id


async def test_guessing_the_present_password_is_counted_for_itself(
    page_forge: Forge, browser: Browser
) -> None:
    person = await page_forge.user(password=PASSWORD)
    await browser.enter(page_forge, person)
    async with browsing(page_forge) as stranger:
        tried = [(await stranger.sign_in(person, "wrong")).status for _ in range(6)]
    assert tried == [401] * 5 + [429]
    await browser.get(f"{SETTINGS}/password")
    statuses = []
    for _ in range(6):
        await browser.send(f"{SETTINGS}/password", present_password="wrong", password=NEW)
        statuses.append(browser.status)
    assert statuses == [400] * 5 + [429]


async def test_a_token_is_shown_once_and_revoked(page_forge: Forge, browser: Browser) -> None:
    person = await page_forge.user()
    await browser.enter(page_forge, person)
    tokens = f"{SETTINGS}/personal_access_tokens"
    await browser.get(tokens)
    await browser.send(tokens, name="for <git>", expires_at="2001-01-01", scope_read_api="1")
    assert (browser.status, "in the future" in browser.text) == (400, True)
    assert 'value="for &lt;git&gt;"' in browser.text, "what was entered is there again"
    assert re.search(r'name="scope_read_api" value="1" checked', browser.text)
    await browser.send(tokens, name="for <git>", expires_at="", scope_read_api="1", scope_sudo="1")
    (text,) = re.findall(r"flpat-[\w-]+", browser.text)
    assert browser.headers["Cache-Control"] == "no-store"
    seen = await page_forge.anonymous.get("/personal_access_tokens/self", headers={"PRIVATE-TOKEN": text})
    assert (seen.body["name"], seen.body["scopes"]) == ("for <git>", ["read_api"]), "sudo is not offered"
    assert text not in (await browser.get(tokens)).text
    await browser.send(f"{tokens}/{seen.body['id']}/revoke")
    assert "The token for &lt;git&gt; is revoked." in browser.text
    gone = await page_forge.anonymous.get("/personal_access_tokens/self", headers={"PRIVATE-TOKEN": text})
    assert gone.status == 401


async def test_nobody_revokes_the_tokens_or_ends_the_sessions_of_others(
    page_forge: Forge, browser: Browser
) -> None:
    person, other = await page_forge.user(), await page_forge.user(admin=True)
    async with browsing(page_forge) as elsewhere:
        await elsewhere.enter(page_forge, other)
        token = (await other.api.get("/personal_access_tokens/self")).body["id"]
        rows = await page_forge.database.rows("SELECT id FROM sessions WHERE user_id = %(id)s", id=other.id)
        await browser.enter(page_forge, person)
        await browser.get(SETTINGS)
        await browser.send(f"{SETTINGS}/personal_access_tokens/{token}/revoke")
        assert browser.status == 404
        await browser.get(SETTINGS)
        await browser.send(f"{SETTINGS}/active_sessions/{rows[0].id}/end")
        assert (await elsewhere.get(SETTINGS)).title == "Your account"


async def test_sessions_are_listed_and_ended(page_forge: Forge, browser: Browser) -> None:
    person = await page_forge.user(password=PASSWORD)
    async with browsing(page_forge) as elsewhere, browsing(page_forge) as third:
        agent = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0 <b>\xff"
        elsewhere.session.headers["User-Agent"] = agent
        await elsewhere.sign_in(person)
        await third.enter(page_forge, person)
        await browser.enter(page_forge, person)
        await browser.get(f"{SETTINGS}/active_sessions")
        assert browser.text.count("· until") == 3
        assert "Firefox on Linux" in browser.text
        assert "From 127.0.0.1" in browser.text
        (row,) = await page_forge.database.rows("SELECT id FROM sessions WHERE user_agent LIKE 'Mozilla%%'")
        await browser.send(f"{SETTINGS}/active_sessions/{row.id}/end")
        assert "The session has ended." in browser.text
        assert (await elsewhere.get(SETTINGS)).title == "Sign in"
        assert (await third.get(SETTINGS)).title == "Your account"
        await browser.send(f"{SETTINGS}/active_sessions/end_others")
        assert (await third.get(SETTINGS)).title == "Sign in"
        assert (await browser.get(SETTINGS)).title == "Your account"


async def test_addresses_are_added_and_removed(page_forge: Forge, browser: Browser) -> None:
    person, other = await page_forge.user(), await page_forge.user()
    await browser.enter(page_forge, person)
    await browser.get(SETTINGS)
    await browser.send(f"{SETTINGS}/emails", email=other.email)
    assert (browser.status, "Email has already been taken." in browser.text) == (400, True)
    assert f'value="{other.email}"' in browser.text
    await browser.send(f"{SETTINGS}/emails", email="second@example.org")
    assert "not confirmed" in browser.text
    (email,) = (await person.api.get("/user/emails")).body
    await browser.send(f"{SETTINGS}/emails/{email['id']}/remove")
    assert "The address is removed." in browser.text
    assert (await person.api.get("/user/emails")).body == []


def test_browsers_are_named_as_people_call_them() -> None:
    windows = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140 Safari/537"
    phone = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605 Version/18.0 Mobile Safari/604"
    assert browser_named(windows) == "Chromium on Windows"
    assert browser_named(f"{windows} Edg/140") == "Edge on Windows"
    assert browser_named(phone) == "Safari on iOS"
    assert browser_named("curl/8.5\n x") == "curl/8.5 x"
    assert browser_named("") == "Unknown"
