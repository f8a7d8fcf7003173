"""An invitation, and the membership that it gives, end when their day of expiry begins, in UTC, by the application's
clock."""

import datetime

import pytest

from api_server.invitations.changes import KEPT_UNANSWERED, clear_away
from tests.support.browser import PASSWORD, browsing
from tests.support.clock import MovedClock, shared_forge_with_clock
from tests.support.forge import Forge, SharedForges
from tests.support.invitations import (
    KINDS,
    invite,
    invite_by_mail,
    invited_to,
    members_of,
    new_address,
    page_of,
    source_of,
)


@pytest.fixture
async def clocked(shared_forge: SharedForges) -> tuple[Forge, MovedClock]:
    """A server without an invitation."""
    forge, clock = await shared_forge_with_clock(shared_forge)
    await forge.execute("DELETE FROM invitations")
    return forge, clock


def _in_days(clock: MovedClock, days: int) -> str:
    return str(clock.today + datetime.timedelta(days))


async def test_a_date_in_the_past_is_refused_and_today_is_none(clocked: tuple[Forge, MovedClock]) -> None:
    forge, clock = clocked
    source, address = await source_of(forge, "projects"), new_address()
    answer = await invite(forge.root, source, email=address, expires_at=_in_days(clock, -1))
    assert answer.body == {"status": "error", "message": {address: "Expires at cannot be a date in the past"}}
    for days in (0, 1):
        address = new_address()
        answer = await invite(forge.root, source, email=address, expires_at=_in_days(clock, days))
        assert answer.body == {"status": "success"}
        later = await forge.root.put(
            f"{source}/invitations/{address}", {"expires_at": _in_days(clock, days - 1)}
        )
        assert later.status == (400 if days == 0 else 200)


@pytest.mark.parametrize(("days", "works"), [(-1, False), (0, False), (1, True)])
async def test_a_link_works_until_the_day_of_expiry_begins(
    clocked: tuple[Forge, MovedClock], days: int, works: bool
) -> None:
    forge, clock = clocked
    address = new_address()
    await invite_by_mail(forge, address, expires_at=_in_days(clock, 2))
    page = await page_of(forge, address)
    person = await forge.user(email=address, password=PASSWORD)
    clock.move(days=2 - days)
    async with browsing(forge) as browser:
        await browser.sign_in(person, return_to=page)
        assert browser.status == (200 if works else 404)
        await browser.send(f"{page}/accept")
        assert browser.status == (200 if works else 404)


async def test_a_link_works_in_the_last_second_and_not_in_the_next(
    clocked: tuple[Forge, MovedClock],
) -> None:
    forge, clock = clocked
    address = new_address()
    await invite_by_mail(forge, address, expires_at=_in_days(clock, 1))
    page = await page_of(forge, address)
    async with browsing(forge) as browser:
        clock.move(hours=23, minutes=59, seconds=59)
        assert (await browser.get(page)).status == 200
        clock.move(seconds=1)
        assert (await browser.send(f"{page}/decline")).status == 404
        assert (await browser.get(page)).status == 404


@pytest.mark.parametrize(("days", "cleared"), [(-1, True), (0, True), (1, False)])
async def test_an_invitation_is_cleared_away_on_its_day_of_expiry(
    clocked: tuple[Forge, MovedClock], days: int, cleared: bool
) -> None:
    forge, clock = clocked
    address = new_address()
    project = await invite_by_mail(forge, address, expires_at=_in_days(clock, 2))
    clock.move(days=2 - days)
    async with forge.database.transaction() as transaction:
        assert await clear_away(transaction, KEPT_UNANSWERED) == cleared
    assert await invited_to(forge.root, f"/projects/{project['id']}") == ([] if cleared else [address])


@pytest.mark.parametrize(("days", "cleared"), [(89, False), (90, False), (91, True)])
async def test_an_invitation_without_end_is_kept_for_90_days(
    clocked: tuple[Forge, MovedClock], days: int, cleared: bool
) -> None:
    forge, clock = clocked
    await invite_by_mail(forge, new_address())
    clock.move(days=days)
    async with forge.database.transaction() as transaction:
        assert await clear_away(transaction, KEPT_UNANSWERED) == cleared


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("known", [True, False])
async def test_the_membership_ends_when_its_day_begins(
    clocked: tuple[Forge, MovedClock], kind: str, known: bool
) -> None:
    """Of somebody who is known already, and of somebody who has accepted."""
    forge, clock = clocked
    address = new_address()
    source = await source_of(forge, kind, visibility="private")
    person = await forge.user(email=address, password=PASSWORD) if known else None
    await invite(forge.root, source, email=address, expires_at=_in_days(clock, 1))
    if person is None:
        page = await page_of(forge, address)
        person = await forge.user(email=address, password=PASSWORD)
        async with browsing(forge) as browser:
            await browser.sign_in(person, return_to=page)
            assert (await browser.send(f"{page}/accept")).status == 200
    clock.move(hours=23, minutes=59, seconds=59)
    assert (await person.api.get(source)).status == 200
    assert person.id in await members_of(forge.root, source)
    clock.move(seconds=1)
    assert (await person.api.get(source)).status == 404
    assert person.id not in await members_of(forge.root, source)
