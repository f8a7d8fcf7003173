"""What nobody answers is brought to mind, and cleared away in the end (decision D8)."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.invitations import changes
from api_server.invitations.changes import KEPT_UNANSWERED, clear_away, queue_reminders
from api_server.web.context import SERVICES
from tests.support.forge import Forge
from tests.support.invitations import invite_by_mail, new_address
from tests.support.mailbox import Mailbox, parts_of

DAY = datetime.date(2026, 3, 1)


@pytest.mark.parametrize(
    ("lifespan", "expected"),
    [(None, (2, 5, 10)), (30, (2, 5, 10)), (14, (2, 5, 10)), (7, (1, 3, 5)), (3, (1, 2, 3)), (1, (1, 1, 1))],
)
def test_reminders_come_sooner_where_time_is_short(lifespan: int | None, expected: tuple[int, ...]) -> None:
    assert changes.reminder_days(lifespan) == expected


@given(lifespan=st.none() | st.integers(1, 100), age=st.integers(0, 120))
def test_reminders_grow_with_age_and_end_with_the_invitation(lifespan: int | None, age: int) -> None:
    expires = DAY + datetime.timedelta(days=lifespan) if lifespan else None
    today = DAY + datetime.timedelta(days=age)
    sent = changes.reminder_due(DAY, expires, today)
    assert 0 <= sent <= changes.MOST_REMINDERS
    if expires and today >= expires:
        assert sent == 0
    else:
        yesterday = today - datetime.timedelta(days=1)
        assert sent >= changes.reminder_due(DAY, expires, max(yesterday, DAY))
        assert sent == sum(age >= day for day in changes.reminder_days(lifespan))


async def _grow_older(forge: Forge, address: str, days: int) -> None:
    await forge.execute(
        "UPDATE invitations SET created_at = %(now)s - make_interval(days => %(days)s) WHERE email = %(email)s",
        days=days,
        email=address,
    )


async def test_reminders_arrive_once_each(postal_forge: Forge, mailbox: Mailbox) -> None:
    address, known = new_address(), await postal_forge.user(skip_confirmation=False)
    await invite_by_mail(postal_forge, address)
    await invite_by_mail(postal_forge, known.email)
    await postal_forge.execute("UPDATE users SET confirmed_at = %(now)s WHERE id = %(id)s", id=known.id)
    await mailbox.arrival(address)
    for age, subject in (
        (1, None),
        (2, "Administrator's invitation to forgelet is pending"),
        (5, "Administrator is waiting for you to join forgelet"),
        (60, "Administrator is still waiting for you to join forgelet"),
        (61, None),
    ):
        before = len(mailbox.to(address))
        await _grow_older(postal_forge, address, age)
        await _grow_older(postal_forge, known.email, age)
        await queue_reminders(postal_forge.server.app[SERVICES])
        await queue_reminders(postal_forge.server.app[SERVICES])
        if subject:
            reminder = (await mailbox.arrival(address, before + 1))[-1]
            assert reminder["Subject"] == subject
            assert "Decline" in parts_of(reminder)[0]
    assert len(await mailbox.all_of(address, postal_forge.database)) == 4
    assert len(mailbox.to(known.email)) == 1, "who is known already is not reminded"
    assert len({message["Message-ID"] for message in mailbox.to(address)}) == 4


async def test_what_nobody_answers_is_cleared_away_and_audited(forge: Forge) -> None:
    """After 90 days, and on the day of expiry."""
    fresh, old, expired = new_address(), new_address(), new_address()
    today = datetime.datetime.now(datetime.UTC)
    projects = {
        address: await invite_by_mail(forge, address, expires_at=day)
        for address, day in ((fresh, None), (old, None), (expired, str(today.date())))
    }
    await _grow_older(forge, fresh, 89)
    await _grow_older(forge, old, 91)
    async with forge.database.transaction() as transaction:
        assert await clear_away(transaction, KEPT_UNANSWERED) >= 2
    for address, reason in ((old, "no answer for 90 days"), (expired, f"access expired on {today.date()}")):
        path = f"/projects/{projects[address]['id']}"
        assert (await forge.root.get(f"{path}/invitations")).body == []
        details = (await forge.root.get(f"{path}/audit_events?event_type=member_destroyed")).body[0][
            "details"
        ]
        assert (details["author_name"], details["system_event"]) == ("(System)", "true")
        assert (details["reason"], details["target_details"]) == (reason, address)
    assert len((await forge.root.get(f"/projects/{projects[fresh]['id']}/invitations")).body) == 1
