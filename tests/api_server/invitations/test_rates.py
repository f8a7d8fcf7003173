"""How many letters one user may have sent to strangers, and one address may get, in an hour."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from api_server.outbound import mail, mail_queries
from tests.support.clock import MovedClock, shared_forge_with_clock
from tests.support.forge import Forge, Person, SharedForges, running_forge
from tests.support.invitations import invite, invited_to, new_address, source_of

PER_USER, PER_ADDRESS = 6, 2
LIMITS = {"letters_per_user": PER_USER, "letters_per_address": PER_ADDRESS}
QUEUED = """
    SELECT count(*) FROM procrastinate_jobs WHERE task_name IN ('mail_invitation', 'mail_confirmation')
"""
TOO_MANY = {
    "status": "error",
    "message": "Too many invitations sent in the last hour. Try again later.",
    "reason": "too_many_invites_error",
}
TOO_OFTEN = "Invite email has been mailed too often in the last hour. Try again later."


@pytest.fixture
async def clocked(shared_forge: SharedForges) -> AsyncIterator[tuple[Forge, MovedClock]]:
    """A server that has sent no letters."""
    forge, clock = await shared_forge_with_clock(shared_forge)
    async with forge.database.transaction() as transaction:
        await transaction.run("DELETE FROM letter_counts")
        await transaction.run("DELETE FROM procrastinate_jobs")
    with forge.changed_settings(**LIMITS):
        yield forge, clock


async def owner_of(forge: Forge, kind: str = "projects") -> tuple[Person, str]:
    """Somebody who invites, and where to."""
    owner = await forge.user("owner")
    made = await (forge.group(owner) if kind == "groups" else forge.project(owner))
    return owner, f"/{kind}/{made['id']}"


async def test_an_inviter_has_so_many_letters_an_hour(clocked: tuple[Forge, MovedClock]) -> None:
    forge, clock = clocked
    owner, source = await owner_of(forge)
    first = [new_address() for _ in range(4)]
    assert (await invite(owner.api, source, email=first)).body == {"status": "success"}
    refused = await invite(owner.api, source, email=[new_address() for _ in range(3)])
    assert (refused.status, refused.body) == (201, TOO_MANY)
    assert await invited_to(owner.api, source) == first, "nothing half done"
    assert await forge.database.value(QUEUED) == 4

    again = await invite(owner.api, source, email=[*first, new_address()])
    assert len(again.body["message"]) == 4, "who is invited already costs nothing"
    assert (await invite(owner.api, source, email=new_address())).body == {"status": "success"}
    assert (await invite(owner.api, source, email=new_address())).body == TOO_MANY

    other, elsewhere = await owner_of(forge)
    assert (await invite(other.api, elsewhere, email=new_address())).body == {"status": "success"}
    clock.move(minutes=61)
    assert (await invite(owner.api, source, email=new_address())).body == {"status": "success"}


async def test_taking_invitations_back_gives_no_letters_back(clocked: tuple[Forge, MovedClock]) -> None:
    forge, _ = clocked
    owner, source = await owner_of(forge, "groups")
    for _ in range(PER_USER):
        address = new_address()
        assert (await invite(owner.api, source, email=address)).body == {"status": "success"}
        assert (await owner.api.delete(f"{source}/invitations/{address}")).status == 204
    assert (await invite(owner.api, source, email=new_address())).body == TOO_MANY


async def test_an_address_gets_so_many_letters_an_hour(clocked: tuple[Forge, MovedClock]) -> None:
    """Whoever sends them, and however it is written; the others of the request are invited."""
    forge, clock = clocked
    address = new_address()
    for email in (address, address.upper()):
        owner, source = await owner_of(forge)
        assert (await invite(owner.api, source, email=email)).body == {"status": "success"}
    owner, source = await owner_of(forge)
    other = new_address()
    answer = await invite(owner.api, source, email=[address, other])
    assert (answer.status, answer.body) == (201, {"status": "error", "message": {address: TOO_OFTEN}})
    assert await invited_to(owner.api, source) == [other]

    stranger = await forge.user("stranger")
    confirmation = await stranger.api.post("/user/emails", {"email": address})
    assert confirmation.status == 429
    assert confirmation.body == {
        "message": {"error": "This endpoint has been requested too many times. Try again later."}
    }
    assert confirmation.headers["Retry-After"] == "3600"
    assert (await stranger.api.get("/user/emails")).body == []
    clock.move(minutes=61)
    assert (await stranger.api.post("/user/emails", {"email": address})).status == 201


async def test_confirmations_of_one_user_are_counted_with_her_invitations(
    clocked: tuple[Forge, MovedClock],
) -> None:
    forge, _ = clocked
    owner, source = await owner_of(forge)
    assert (await invite(owner.api, source, email=[new_address() for _ in range(3)])).status == 201
    made = [(await owner.api.post("/user/emails", {"email": new_address()})).status for _ in range(4)]
    assert made == [201, 201, 201, 429]
    confirmed = {"email": new_address(), "skip_confirmation": True}
    assert (await forge.root.post(f"/users/{owner.id}/emails", confirmed)).status == 201, "no letter is sent"


async def test_processes_count_together(new_database: Callable[[], str], tmp_path) -> None:
    url = new_database()
    async with (
        running_forge(url, tmp_path, work=False, **LIMITS) as one,
        running_forge(url, tmp_path, work=False, **LIMITS) as two,
    ):
        owner, source = await owner_of(one)
        other = owner.api.__class__(two.session, two.base, owner.token)
        answers = await asyncio.gather(
            *(invite(client, source, email=new_address()) for client in (owner.api, other) for _ in range(10))
        )
        assert sorted(answer.body["status"] for answer in answers) == ["error"] * 14 + ["success"] * PER_USER
        assert await one.database.value(QUEUED) == PER_USER
        assert len(await invited_to(owner.api, source)) == PER_USER


async def test_a_hundred_recipients_of_one_request_are_within_the_usual_bound(
    clocked: tuple[Forge, MovedClock],
) -> None:
    forge, _ = clocked
    with forge.changed_settings(letters_per_user=200, letters_per_address=20):
        source = await source_of(forge, "groups")
        answer = await invite(forge.root, source, email=[new_address() for _ in range(100)])
        assert answer.body == {"status": "success"}
        assert await forge.database.value("SELECT count(*) FROM letter_counts") == 101


async def test_hours_that_are_over_are_forgotten(clocked: tuple[Forge, MovedClock]) -> None:
    forge, clock = clocked
    owner, source = await owner_of(forge)
    for minutes in (0, 40):
        clock.move(minutes=minutes)
        assert (await invite(owner.api, source, email=new_address())).body == {"status": "success"}
    clock.move(minutes=21)
    async with forge.database.transaction() as transaction:
        await mail_queries.forget_letters(transaction, mail.RATE_WINDOW)
    assert await forge.database.value("SELECT count(*) FROM letter_counts") == 1
