"""Confirming an address on the page that the mail to it leads to."""

import asyncio
import email
import email.policy
import re

from tests.support.browser import PASSWORD, Browser
from tests.support.forge import Forge, Person, new_name


async def _added(forge: Forge, person: Person) -> tuple[int, str, str]:
    """The id of a new address of that person, the address, and the page that the mail to it links to."""
    address = f"{new_name('second')}@example.org"
    made = (await person.api.post("/user/emails", {"email": address})).body
    text = await _mail_to(forge, address)
    assert f"(@{person.username}) has added {address}" in text
    (page,) = re.findall(rf"{re.escape(forge.base)}(/-/emails/\S+)", text)
    return made["id"], address, page


async def _mail_to(forge: Forge, address: str) -> str:
    """The plain text of the one mail to that address."""
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
    """Opening the page changes nothing; its form does, once, for who is signed in with that account."""
    alice = await page_forge.user("alice", password=PASSWORD)
    email_id, address, page = await _added(page_forge, alice)
    for _ in range(2):
        await browser.get(page)
    assert (browser.status, "<button>Confirm" in browser.text) == (200, False)
    await browser.sign_in(alice, return_to=page)
    assert (browser.path, browser.title) == (page, f"Confirm {address}?")
    assert not await _confirmed(alice, email_id)

    await browser.send(page)
    assert (browser.status, browser.title) == (200, f"{address} is confirmed")
    assert await _confirmed(alice, email_id)
    assert "It is confirmed." in (await browser.get(page)).text
    await browser.send(page)

    events = (await page_forge.root.get("/audit_events?event_type=email_confirmed")).body
    assert [
        (event["author_id"], event["entity_id"], event["details"]["target_details"]) for event in events
    ] == [(alice.id, alice.id, address)]


async def test_another_account_cannot_confirm(page_forge: Forge, browser: Browser) -> None:
    """Whoever reads the mail of an address that somebody else has added does not hand it over by a click."""
    mallory = await page_forge.user("mallory", password=PASSWORD)
    bob = await page_forge.user("bob", password=PASSWORD)
    email_id, _, page = await _added(page_forge, mallory)
    await browser.get("/-/sign_in")
    await browser.send(page)
    assert (browser.status, browser.title) == (403, "The address could not be confirmed")
    await browser.sign_in(bob, return_to=page)
    assert "You are signed in with another account" in browser.text
    await browser.send(page)
    assert (browser.status, browser.title) == (403, "The address could not be confirmed")
    assert not await _confirmed(mallory, email_id)


async def test_other_links_lead_nowhere(page_forge: Forge, browser: Browser) -> None:
    alice = await page_forge.user("alice", password=PASSWORD)
    email_id, _, page = await _added(page_forge, alice)
    other_id, _, other_page = await _added(page_forge, alice)
    await browser.sign_in(alice)
    token = page.rpartition("/")[2]
    for path in (f"/-/emails/{other_id}/{token}", f"/-/emails/{email_id}/flcon-x", "/-/emails/999999999/x"):
        await browser.get(path)
        assert (browser.status, browser.title) == (404, "There is no such address")
        assert (await browser.send(path)).status in (403, 404)
    await alice.api.delete(f"/user/emails/{email_id}")
    assert (await browser.get(page)).status == 404
    assert (await browser.get(other_page)).status == 200
