"""A user's own settings: passwords and the links that set them, tokens, sessions and addresses."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import gitlab
import pytest

from api_server.accounts import password_queries, passwords
from api_server.pages import mail_links, sign_in
from api_server.pages.account import browser_named
from api_server.state.secrets import digest
from api_server.web.context import SERVICES
from api_server.web.rate_limits import RateLimiter
from tests.api_server.pages.conftest import details_of
from tests.support.browser import PASSWORD, Browser, browsing
from tests.support.clock import forge_with_clock
from tests.support.forge import Forge, Person, new_name, running_forge
from tests.support.mailbox import Mailbox, parts_of, running_mailbox
from tests.support.waiting import until_somebody_waits

NEW = "a new password"


@pytest.fixture(scope="module")
async def mailbox(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mailbox]:
    folder = tmp_path_factory.mktemp("mailbox")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(folder / "mailbox.pem"))
        async with running_mailbox(folder) as running:
            yield running


def _without_limits(app: Any) -> None:
    """Remove the limits of attempts, because all browsers of these tests have the same address."""
    app[SERVICES][mail_links.BY_ADDRESS] = app[SERVICES][sign_in.BY_ADDRESS] = RateLimiter("any", lambda: 0)


@pytest.fixture(scope="module")
async def postal_forge(
    new_database: Callable[[], str], mailbox: Mailbox, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Forge]:
    data = tmp_path_factory.mktemp("passwords")
    settings = {"smtp_url": mailbox.url, "mail_from": "forge@example.org", "emails_per_address": 3}
    async with running_forge(new_database(), data, _without_limits, **settings) as forge:
        yield forge


@pytest.fixture
async def visitor(postal_forge: Forge) -> AsyncIterator[Browser]:
    async with browsing(postal_forge) as opened:
        yield opened


async def _ask(browser: Browser, email: str) -> None:
    await browser.get("/-/password/new")
    await browser.send("/-/password", email=email)


async def _link(mailbox: Mailbox, email: str, count: int = 1) -> str:
    """Return the page to which the newest of this many mails leads."""
    plain, html = parts_of((await mailbox.arrival(email, count))[-1])
    (page,) = re.findall(r"(/-/password/flpwd-\S+)", plain)
    assert page in html
    return str(page)


async def _set(browser: Browser, page: str, password: str = NEW, again: str | None = None) -> None:
    await browser.get(page)
    confirmed = password if again is None else again
    await browser.send(page, password=password, password_confirmation=confirmed)


async def _signs_in(forge: Forge, person: Person, password: str) -> bool:
    async with browsing(forge) as browser:
        return (await browser.sign_in(person, password)).title == "Your projects"


async def test_a_new_password_is_asked_for_and_set(
    postal_forge: Forge, mailbox: Mailbox, visitor: Browser
) -> None:
    """Sessions end, tokens stay valid. Opening the link changes nothing; its form sets the password, once."""
    alice = await postal_forge.user("alice", password=PASSWORD)
    async with browsing(postal_forge) as elsewhere:
        await elsewhere.sign_in(alice)
        await _ask(visitor, alice.email.upper())
        assert (visitor.status, "a link to reset the password has been sent" in visitor.text) == (200, True)
        page = await _link(mailbox, alice.email)
        assert f"@{alice.username}" in parts_of(mailbox.to(alice.email)[0])[0]
        for _ in range(2):
            await visitor.get(page)
        assert (visitor.status, visitor.title) == (200, "Set a new password")
        assert visitor.headers["Referrer-Policy"] == "no-referrer"
        assert (await elsewhere.get("/-/sign_in")).title == "Your projects"
        await _set(visitor, page)
        assert (visitor.status, "Password changed." in visitor.text) == (200, True)
        assert (await elsewhere.get("/-/sign_in")).title == "Sign in"
    assert (await alice.api.get("/user")).status == 200
    assert await _signs_in(postal_forge, alice, NEW)
    assert not await _signs_in(postal_forge, alice, PASSWORD)
    await visitor.get(page)
    assert (visitor.status, visitor.title) == (404, "Invalid password reset link")
    changed, asked = [
        event
        for name in ("user_password_updated", "password_reset_requested")
        for event in (
            await postal_forge.root.get(f"/audit_events?event_type={name}&target_id={alice.id}")
        ).body
    ]
    assert (asked["author_id"], asked["entity_id"]) == (-1, alice.id)
    assert (changed["author_id"], changed["entity_id"]) == (alice.id, alice.id)
    assert asked["details"]["custom_message"] == "Ask for password reset"
    assert {event["details"]["ip_address"] for event in (asked, changed)} == {"127.0.0.1"}


async def test_the_page_tells_nobody_which_addresses_are_known(
    postal_forge: Forge, mailbox: Mailbox, visitor: Browser
) -> None:
    known, blocked = await postal_forge.user("known"), await postal_forge.user("blocked")
    await postal_forge.root.post(f"/users/{blocked.id}/block")
    texts = []
    unknown = f"{new_name('unknown')}@example.org"
    for email in ("no address", unknown, blocked.email, known.email):
        await _ask(visitor, email)
        texts.append((visitor.status, visitor.text.replace(visitor.hidden["form_key"], "")))
    assert len(set(texts)) == 1
    await mailbox.arrival(known.email)
    waiting = (
        "SELECT count(*) FROM procrastinate_jobs WHERE task_name = %(task)s AND status IN ('todo', 'doing')"
    )
    async with asyncio.timeout(20):
        while await postal_forge.database.value(waiting, task=passwords.RESET_REQUESTED):
            await asyncio.sleep(0.02)
    assert (mailbox.to(unknown), mailbox.to(blocked.email)) == ([], [])


@pytest.mark.parametrize(
    ("password", "again", "problem"),
    [
        ("short", "short", "New password is too short (minimum is 8 characters)."),
        ("x" * 129, "x" * 129, "New password is too long (maximum is 128 characters)."),
        (NEW, "another password", "The new passwords do not match."),
    ],
)
async def test_a_password_that_will_not_do_leaves_the_link_as_good_as_it_was(
    postal_forge: Forge, mailbox: Mailbox, visitor: Browser, password: str, again: str, problem: str
) -> None:
    alice = await postal_forge.user("alice")
    await _ask(visitor, alice.email)
    page = await _link(mailbox, alice.email)
    await _set(visitor, page, password, again)
    assert (visitor.status, problem in visitor.text) == (400, True)
    await _set(visitor, page)
    assert visitor.status == 200


async def test_only_the_newest_link_counts_and_only_so_many_are_mailed(
    postal_forge: Forge, mailbox: Mailbox, visitor: Browser
) -> None:
    alice, bob = await postal_forge.user("alice"), await postal_forge.user("bob")
    await _ask(visitor, alice.email)
    first = await _link(mailbox, alice.email)
    await _ask(visitor, alice.email)
    second = await _link(mailbox, alice.email, 2)
    assert (await visitor.get(first)).status == 404
    assert (await visitor.get(second)).status == 200
    for _ in range(3):
        await _ask(visitor, alice.email)
    await _link(mailbox, alice.email, 3)
    await _ask(visitor, bob.email)
    await mailbox.arrival(bob.email)
    assert len(mailbox.to(alice.email)) == 3, "emails_per_address"


async def test_who_asks_for_links_keeps_no_invitation_from_an_address(
    postal_forge: Forge, mailbox: Mailbox, visitor: Browser
) -> None:
    email = f"{new_name('wanted')}@example.org"
    for _ in range(4):
        await _ask(visitor, email)
    project = (await postal_forge.project())["id"]
    invited = await postal_forge.root.post(
        f"/projects/{project}/invitations", {"email": email, "access_level": 30}
    )
    assert invited.body == {"status": "success"}
    await mailbox.arrival(email)


@pytest.mark.parametrize("change", [{"password": "set by root"}, {"email": "elsewhere"}])
async def test_a_link_ends_with_what_it_was_mailed_for(
    postal_forge: Forge, mailbox: Mailbox, visitor: Browser, change: dict[str, str]
) -> None:
    alice = await postal_forge.user("alice")
    await _ask(visitor, alice.email)
    page = await _link(mailbox, alice.email)
    await visitor.get(page)
    changed = {
        name: f"{new_name(value)}@example.org" if name == "email" else value for name, value in change.items()
    }
    assert (await postal_forge.root.put(f"/users/{alice.id}", changed)).status == 200
    await visitor.send(page, password=NEW, password_confirmation=NEW)
    assert (visitor.status, visitor.title) == (404, "Invalid password reset link")


async def test_no_link_goes_to_an_address_that_is_being_given_up(
    postal_forge: Forge, mailbox: Mailbox, visitor: Browser
) -> None:
    alice = await postal_forge.user("alice")
    new = f"{new_name('new')}@example.org"
    async with postal_forge.database.transaction() as changing:
        await changing.run("UPDATE users SET email = %(new)s WHERE id = %(id)s", new=new, id=alice.id)
        async with postal_forge.database.transaction() as asking:
            await passwords.queue_mail(asking, alice.id, is_new=False)
        await until_somebody_waits(postal_forge.database)
    assert (await visitor.get(await _link(mailbox, new))).status == 200
    assert mailbox.to(alice.email) == []


async def test_two_who_use_one_link_do_not_both_succeed(
    postal_forge: Forge, mailbox: Mailbox, visitor: Browser
) -> None:
    alice = await postal_forge.user("alice")
    await _ask(visitor, alice.email)
    page = await _link(mailbox, alice.email)
    async with browsing(postal_forge) as other:
        await asyncio.gather(visitor.get(page), other.get(page))
        sent = {"password": NEW, "password_confirmation": NEW}
        await asyncio.gather(visitor.send(page, **sent), other.send(page, **sent))
        assert sorted([visitor.status, other.status]) == [200, 404]


async def test_an_account_is_made_with_a_link_to_set_its_password(
    postal_forge: Forge, mailbox: Mailbox, visitor: Browser
) -> None:
    """python-gitlab creates it, as administrators do."""
    name = new_name("new")
    values = {"username": name, "name": "New", "email": f"{name}@example.org", "reset_password": True}

    def make() -> int:
        with gitlab.Gitlab(postal_forge.base, private_token=postal_forge.root.token) as client:
            return int(client.users.create(values).id)

    user_id = await asyncio.to_thread(make)
    page = await _link(mailbox, values["email"])
    assert mailbox.to(values["email"])[0]["Subject"] == "Set your password"
    await _set(visitor, page)
    assert visitor.status == 200
    await visitor.sign_in(Person(user_id, name, values["email"], postal_forge.root), NEW)
    assert visitor.title == "Your projects"
    shown = (await postal_forge.root.get(f"/users/{user_id}")).body
    assert shown["sign_in_count"] == 1
    assert (shown["current_sign_in_ip"], shown["last_sign_in_ip"]) == ("127.0.0.1", "127.0.0.1")
    assert shown["last_sign_in_at"] == shown["current_sign_in_at"] > shown["created_at"]
    assert await details_of(postal_forge, f"event_type=password_reset_requested&target_id={user_id}") == []


async def test_a_link_is_good_for_two_days_and_stored_as_a_digest(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    async with forge_with_clock(new_database(), tmp_path) as (forge, clock), browsing(forge) as browser:
        alice = await forge.user("alice")
        async with forge.database.transaction() as transaction:
            await password_queries.keep(
                transaction, alice.id, digest("flpwd-x"), transaction.now + passwords.LIFETIME
            )
        clock.move(days=2, seconds=-1)
        assert (await browser.get("/-/password/flpwd-x")).status == 200
        clock.move(seconds=1)
        await browser.send("/-/password/flpwd-x", password=NEW, password_confirmation=NEW)
        assert browser.status == 404
        stored = await forge.database.rows("SELECT password_resets::text AS text FROM password_resets")
        assert ("flpwd" in stored[0].text, len(stored)) == (False, 1)
        async with forge.database.transaction() as transaction:
            await password_queries.delete_expired(transaction)
        assert await forge.database.rows("SELECT user_id FROM password_resets") == []


async def test_forms_are_limited_and_have_to_be_ours(page_forge: Forge, browser: Browser) -> None:
    """All forms count, because they are counted before they are read."""
    foreign = ("/-/password", "/-/password/flpwd-x")
    for path in foreign:
        assert (await browser.send(path, csrf_token="x")).title == "Form not submitted"
    statuses = set()
    await browser.get("/-/password/new")
    for number in range(12):
        await browser.send("/-/password", email=f"{number}@example.org")
        statuses.add((len(foreign) + number >= mail_links.FORMS_BY_ADDRESS, browser.status))
        await browser.get("/-/password/new")
    assert statuses == {(False, 200), (True, 429)}


SETTINGS = "/-/user_settings"
NEW_PASSWORD = "an even better one"


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
            ({"present_password": "wrong", "password": NEW_PASSWORD}, "The current password is incorrect."),
            ({"present_password": PASSWORD, "password": "short"}, "New password is too short"),
            (
                {"present_password": PASSWORD, "password": NEW_PASSWORD, "password_confirmation": "x"},
                "do not match",
            ),
        )
        for fields, problem in refused:
            fields.setdefault("password_confirmation", fields["password"])
            await browser.send(f"{SETTINGS}/password", **fields)
            assert (browser.status, problem in browser.text) == (400, True), browser.text
        assert (await elsewhere.get(SETTINGS)).title == "Your account"
        fields = dict.fromkeys(("password", "password_confirmation"), NEW_PASSWORD)
        await browser.send(f"{SETTINGS}/password", present_password=PASSWORD, **fields)
        assert (browser.status, "Password changed." in browser.text) == (200, True)
        assert (await browser.get(SETTINGS)).title == "Your account", "her own session goes on"
        assert "Password changed." not in browser.text, "said once"
        assert (await elsewhere.get(SETTINGS)).title == "Sign in"
        assert (await elsewhere.sign_in(person, NEW_PASSWORD)).title == "Your projects"
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
        await browser.send(f"{SETTINGS}/password", present_password="wrong", password=NEW_PASSWORD)
        statuses.append(browser.status)
    assert statuses == [400] * 5 + [429]


async def test_a_token_is_shown_once_and_revoked(page_forge: Forge, browser: Browser) -> None:
    person = await page_forge.user()
    await browser.enter(page_forge, person)
    tokens = f"{SETTINGS}/personal_access_tokens"
    await browser.get(tokens)
    await browser.send(tokens, name="for <git>", expires_at="2001-01-01", **{"scopes[]": "read_api"})
    assert (browser.status, "in the future" in browser.text) == (400, True)
    assert 'value="for &lt;git&gt;"' in browser.text, "what was entered is there again"
    assert re.search(r'name="scopes\[\]" value="read_api" checked', browser.text)
    await browser.send(tokens, name="for <git>")
    assert (browser.status, ' id="scopes[]-problem">Select at least one scope.</p>' in browser.text) == (
        400,
        True,
    )
    assert 'name="scopes[]" value="api" autofocus>' in browser.text
    await browser.send(tokens, name="for <git>", **{"scopes[]": "sudo"})
    assert (browser.status, "flpat-" in browser.text) == (400, False), "sudo is not offered"
    await browser.send(tokens, name="for <git>", expires_at="", **{"scopes[]": "read_api"})
    (text,) = re.findall(r"flpat-[\w-]+", browser.text)
    assert browser.headers["Cache-Control"] == "no-store"
    seen = await page_forge.anonymous.get("/personal_access_tokens/self", headers={"PRIVATE-TOKEN": text})
    assert (seen.body["name"], seen.body["scopes"]) == ("for <git>", ["read_api"])
    assert text not in (await browser.get(tokens)).text
    await browser.send(f"{tokens}/{seen.body['id']}/revoke")
    assert "Token for &lt;git&gt; revoked." in browser.text
    gone = await page_forge.anonymous.get("/personal_access_tokens/self", headers={"PRIVATE-TOKEN": text})
    assert gone.status == 401


async def test_a_form_sent_twice_makes_one_token(page_forge: Forge, browser: Browser) -> None:
    person = await page_forge.user()
    await browser.enter(page_forge, person)
    tokens = f"{SETTINGS}/personal_access_tokens"
    await browser.get(tokens)
    sent = browser.hidden | {"name": "twice", "scopes[]": "read_api"}
    shown = []
    for _ in range(2):
        async with browser.session.post(f"{browser.base}{tokens}", data=sent) as answer:
            shown.append((answer.status, re.findall(r"flpat-[\w-]+", await answer.text())))
    assert shown[0] == shown[1] == (200, [shown[0][1][0]])
    listed = (await person.api.get("/personal_access_tokens?search=twice")).body
    assert [each["name"] for each in listed] == ["twice"]


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
        assert browser.text.count("· expires") == 3
        assert "Firefox on Linux" in browser.text
        assert "From 127.0.0.1" in browser.text
        (row,) = await page_forge.database.rows("SELECT id FROM sessions WHERE user_agent LIKE 'Mozilla%%'")
        await browser.send(f"{SETTINGS}/active_sessions/{row.id}/end")
        assert "Session ended." in browser.text
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
    assert (browser.status, "Email address has already been taken." in browser.text) == (400, True)
    assert f'value="{other.email}"' in browser.text
    await browser.send(f"{SETTINGS}/emails", email="second@example.org")
    assert "not confirmed" in browser.text
    (email,) = (await person.api.get("/user/emails")).body
    await browser.send(f"{SETTINGS}/emails/{email['id']}/remove")
    assert "Email address removed." in browser.text
    assert (await person.api.get("/user/emails")).body == []


def test_browsers_are_named_as_people_call_them() -> None:
    windows = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140 Safari/537"
    phone = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605 Version/18.0 Mobile Safari/604"
    assert browser_named(windows) == "Chromium on Windows"
    assert browser_named(f"{windows} Edg/140") == "Edge on Windows"
    assert browser_named(phone) == "Safari on iOS"
    assert browser_named("curl/8.5\n x") == "curl/8.5 x"
    assert browser_named("") == "Unknown browser"
