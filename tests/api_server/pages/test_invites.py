"""Answering invitations, and confirming an address, on the pages to which mails lead (decision D8)."""

import asyncio
import email
import email.policy
import re
from typing import Any
from urllib.parse import quote

import pytest

from api_server.web.context import SERVICES
from tests.api_server.pages.conftest import details_of
from tests.support.browser import PASSWORD, Browser, browsing
from tests.support.forge import Forge, Person, new_name
from tests.support.invitations import invite, page_of, source_of


async def _invitation(forge: Forge, email: str, kind: str = "projects", **values: Any) -> tuple[str, str]:
    """Return the paths of the source and of the page of an invitation to it."""
    source = await source_of(forge, kind)
    async with forge.database.transaction() as transaction:  # so that the address belongs to nobody yet
        await transaction.run("UPDATE users SET confirmed_at = NULL WHERE email = %(email)s", email=email)
    answer = await invite(forge.root, source, email=email, **values)
    assert answer.body == {"status": "success"}
    async with forge.database.transaction() as transaction:
        await transaction.run("UPDATE users SET confirmed_at = %(now)s WHERE email = %(email)s", email=email)
    return source, await page_of(forge, email)


@pytest.mark.parametrize("kind", ["groups", "projects"])
async def test_accepting(page_forge: Forge, browser: Browser, kind: str) -> None:
    """Opening the page changes nothing; its form makes the person who has confirmed the address a member, and says
    so."""
    person = await page_forge.user(password=PASSWORD)
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

    sent = browser.hidden
    for said in (True, False):  # as by a double click
        await browser.post(f"{page}/accept", sent)
        assert (browser.status, f">Welcome to the {kind[:-1]} " in browser.text) == (200, said)
    member = (await page_forge.root.get(f"{source}/members/{person.id}")).body
    assert member["access_level"] == 30
    assert (await page_forge.root.get(f"{source}/invitations")).body == []
    assert (await browser.get(page)).status == 404, "a link works once"

    events = await details_of(page_forge, f"event_type=member_created&author_id={person.id}")
    assert [(event["custom_message"], event["target_id"]) for event in events] == [
        ("Membership created", person.id)
    ]
    await _until_mailed(page_forge, "Invitation accepted", person.username.title())


async def _until_mailed(forge: Forge, subject: str, text: str) -> None:
    folder = forge.settings.data_dir / "mail"
    async with asyncio.timeout(20):
        while not any(
            f"Subject: {subject}" in (mail := file.read_text())
            and text in mail
            and "To: root@localhost" in mail
            for file in folder.glob("*.eml")
        ):
            await asyncio.sleep(0.02)
    assert forge.server.app[SERVICES].queue


async def test_somebody_elses_invitation_cannot_be_accepted(page_forge: Forge, browser: Browser) -> None:
    """A person who has the address but has not confirmed it cannot accept it either."""
    person, other = await page_forge.user(password=PASSWORD), await page_forge.user(password=PASSWORD)
    source, page = await _invitation(page_forge, other.email)
    await browser.sign_in(person, return_to=page)
    assert "is not a confirmed address of your account" in browser.text
    await browser.send(f"{page}/accept")
    assert (browser.status, browser.title) == (403, "Invitation not accepted")

    unconfirmed = await page_forge.user(password=PASSWORD, skip_confirmation=False)
    answer = await invite(page_forge.root, source, email=unconfirmed.email)
    assert answer.body == {"status": "success"}
    page = await page_of(page_forge, unconfirmed.email)
    async with browsing(page_forge) as second:
        await second.sign_in(unconfirmed, return_to=page)
        assert (await second.send(f"{page}/accept")).status == 403
    assert len((await page_forge.root.get(f"{source}/invitations")).body) == 2


async def test_a_confirmed_secondary_address_may_accept(page_forge: Forge, browser: Browser) -> None:
    person, address = await page_forge.user(password=PASSWORD), f"{new_name('second')}@example.org"
    source, page = await _invitation(page_forge, address)
    async with page_forge.database.transaction() as transaction:
        await transaction.run(
            "INSERT INTO user_emails (user_id, email, confirmed_at, created_at)"
            " VALUES (%(id)s, %(email)s, %(now)s, %(now)s)",
            id=person.id,
            email=address.upper(),
        )
    await browser.sign_in(person, return_to=page)
    await browser.send(f"{page}/accept")
    assert (await page_forge.root.get(f"{source}/members/{person.id}")).status == 200


async def test_accepting_needs_somebody_who_is_signed_in(page_forge: Forge, browser: Browser) -> None:
    person = await page_forge.user(password=PASSWORD)
    source, page = await _invitation(page_forge, person.email)
    await browser.get(page)
    await browser.send(f"{page}/accept")
    assert browser.title == "Sign in"
    assert len((await page_forge.root.get(f"{source}/invitations")).body) == 1


async def test_a_member_who_accepts_keeps_the_greater_role(page_forge: Forge, browser: Browser) -> None:
    person = await page_forge.user(password=PASSWORD)
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
    assert (browser.status, "Invitation declined." in browser.text) == (200, True)
    assert (await page_forge.root.get(f"{source}/invitations")).body == []
    assert (await browser.get(page)).status == 404
    details = (await details_of(page_forge, "event_type=member_destroyed"))[0]
    assert (details["custom_message"], details["author_name"], details["author_class"]) == (
        "Invitation declined",
        address,
        "UnauthenticatedAuthor",
    )
    await _until_mailed(page_forge, "Invitation declined", address)


async def test_a_link_that_leads_nowhere(page_forge: Forge, browser: Browser) -> None:
    """Links that are unknown, withdrawn or expired look alike, for every method."""
    taken_back = f"{new_name('somebody')}@example.org"
    source, first = await _invitation(page_forge, taken_back)
    await page_forge.root.delete(f"{source}/invitations/{quote(taken_back)}")
    _, expired = await _invitation(page_forge, f"{new_name('somebody')}@example.org", expires_at="2999-01-01")
    async with page_forge.database.transaction() as transaction:
        await transaction.run("UPDATE invitations SET expires_at = current_date")
    await browser.get("/-/sign_in")
    nothing = (404, "Invitation not found")
    for page in (
        first,
        expired,
        "/-/invites/flinv-unknown",
        "/-/invites/a%0D%0AX-Y:%20b",
    ):
        form = browser.text
        await browser.get(page)
        assert (browser.status, browser.title) == nothing
        for answer in ("accept", "decline"):
            browser.text = form
            await browser.send(f"{page}/{answer}")
            assert (browser.status, browser.title) == nothing
        await browser.get("/-/sign_in")
    assert (await browser.get("/-/invites/%00%ff")).status == 400, "no text"


async def test_a_prefetched_page_answers_nothing(page_forge: Forge, browser: Browser) -> None:
    """HEAD and GET of every address of an invitation leave it unchanged."""
    source, page = await _invitation(page_forge, f"{new_name('somebody')}@example.org")
    for path in (page, f"{page}/accept", f"{page}/decline"):
        for method in ("GET", "HEAD"):
            async with browser.session.request(method, f"{browser.base}{path}") as answer:
                assert answer.status in (200, 404)
    assert len((await page_forge.root.get(f"{source}/invitations")).body) == 1


async def test_texts_of_others_are_escaped(page_forge: Forge, browser: Browser) -> None:
    group = await page_forge.group(name="A <b>bold</b> group")
    address = f"{new_name('somebody')}@example.org"
    await page_forge.root.post(f"/groups/{group['id']}/invitations", {"email": address, "access_level": 30})
    page = await page_of(page_forge, address)
    await browser.get(page)
    assert "A &lt;b&gt;bold&lt;/b&gt; group" in browser.text
    assert "<b>" not in browser.text


async def _added(forge: Forge, person: Person) -> tuple[int, str, str]:
    """Add an address to that person; return its id, the address, and the page to which the mail to it links."""
    address = f"{new_name('second')}@example.org"
    made = (await person.api.post("/user/emails", {"email": address})).body
    text = await _mail_to(forge, address)
    assert f"(@{person.username}) added {address}" in text
    (page,) = re.findall(rf"{re.escape(forge.base)}(/-/emails/\S+)", text)
    return made["id"], address, page


async def _mail_to(forge: Forge, address: str) -> str:
    """Return the plain text of the only mail to that address."""
    async with asyncio.timeout(20):
        while True:
            for file in (forge.settings.data_dir / "mail").glob("*.eml"):
                message = email.message_from_bytes(file.read_bytes(), policy=email.policy.default)
                if message["To"] == address:
                    body = message.get_body(("plain",))
                    assert message["Subject"] == "Confirm your email address"
                    return str(body.get_content()) if body else ""
            await asyncio.sleep(0.02)


async def _confirmed(person: Person, email_id: int) -> bool:
    return (await person.api.get(f"/user/emails/{email_id}")).body["confirmed_at"] is not None


async def test_confirming(page_forge: Forge, browser: Browser) -> None:
    """Opening the page changes nothing; its form confirms the address, once, for the user of that account."""
    alice = await page_forge.user("alice", password=PASSWORD)
    email_id, address, page = await _added(page_forge, alice)
    for _ in range(2):
        await browser.get(page)
    assert (browser.status, ">Confirm</button>" in browser.text) == (200, False)
    await browser.sign_in(alice, return_to=page)
    assert (browser.path, browser.title) == (page, f"Confirm {address}")
    assert not await _confirmed(alice, email_id)

    sent = browser.hidden
    for _ in range(2):  # as by a double click
        await browser.post(page, sent)
        assert (browser.status, browser.path) == (200, "/-/user_settings")
    assert await _confirmed(alice, email_id)
    assert "The email address is confirmed." in (await browser.get(page)).text
    await browser.send(page)

    events = (await page_forge.root.get("/audit_events?event_type=email_confirmed")).body
    assert [
        (event["author_id"], event["entity_id"], event["details"]["target_details"]) for event in events
    ] == [(alice.id, alice.id, address)]


async def test_another_account_cannot_confirm(page_forge: Forge, browser: Browser) -> None:
    """A person who reads the mail of an address that somebody else has added cannot confirm it by a click."""
    mallory = await page_forge.user("mallory", password=PASSWORD)
    bob = await page_forge.user("bob", password=PASSWORD)
    email_id, _, page = await _added(page_forge, mallory)
    await browser.get("/-/sign_in")
    await browser.send(page)
    assert (browser.status, browser.title) == (403, "Email address not confirmed")
    await browser.sign_in(bob, return_to=page)
    assert "You are signed in with another account" in browser.text
    await browser.send(page)
    assert (browser.status, browser.title) == (403, "Email address not confirmed")
    assert not await _confirmed(mallory, email_id)


async def test_other_links_lead_nowhere(page_forge: Forge, browser: Browser) -> None:
    alice = await page_forge.user("alice", password=PASSWORD)
    email_id, _, page = await _added(page_forge, alice)
    other_id, _, other_page = await _added(page_forge, alice)
    await browser.sign_in(alice)
    token = page.rpartition("/")[2]
    for path in (f"/-/emails/{other_id}/{token}", f"/-/emails/{email_id}/flcon-x", "/-/emails/999999999/x"):
        await browser.get(path)
        assert (browser.status, browser.title) == (404, "Invalid confirmation link")
        assert (await browser.send(path)).status in (403, 404)
    await alice.api.delete(f"/user/emails/{email_id}")
    assert (await browser.get(page)).status == 404
    assert (await browser.get(other_page)).status == 200
