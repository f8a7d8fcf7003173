"""Mails of invitations: sending, reminders, expiry and removal (decision D8)."""

import asyncio
import datetime
import email
import email.policy
import signal
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.invitations import changes
from api_server.invitations.changes import clear_away, queue_reminders, send_invitation
from api_server.operations.failing import failing
from api_server.outbound import mail
from api_server.outbound.mail import Mail, compose_message, is_address
from api_server.settings import Settings
from api_server.web.context import SERVICES
from tests.support.browser import PASSWORD, browsing
from tests.support.clock import MovedClock, shared_forge_with_clock
from tests.support.forge import Forge, SharedForges, new_name, running_forge
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
from tests.support.mailbox import PASSWORD as CORRECT
from tests.support.mailbox import USER, Mailbox, parts_of
from tests.support.server_process import server_process

NOW = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)


async def test_an_invitation_arrives_once_in_text_and_html(postal_forge: Forge, mailbox: Mailbox) -> None:
    address = new_address()
    project = await invite_by_mail(postal_forge, address, expires_at="2999-01-01")
    (message,) = await mailbox.arrival(address)
    assert mailbox.over_tls == [True] * len(mailbox.over_tls), "nothing goes without TLS"
    assert (message["From"], message["To"]) == ("forge@example.org", address)
    assert message["Subject"] == "Administrator invited you to join forgelet"
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["List-Unsubscribe"] is None
    plain, html = parts_of(message)
    opening = f"Administrator invited you to join the project {project['name']} as developer."
    assert plain.startswith(
        f"{opening}\n\n<b>Tools</b> for everybody\n\nThe membership ends on 2999-01-01.\n"
    )
    assert f"{postal_forge.base}/-/invites/flinv-" in plain
    assert "&lt;b&gt;Tools&lt;/b&gt; for everybody" in html
    assert f'<a href="{postal_forge.base}/-/invites/flinv-' in html
    assert len(await mailbox.all_of(address, postal_forge.database)) == 1


async def test_no_token_is_kept_in_the_database(postal_forge: Forge, mailbox: Mailbox) -> None:
    """It is neither in the queue, which has only the id, nor beside the digest."""
    address = new_address()
    await invite_by_mail(postal_forge, address)
    (message,) = await mailbox.arrival(address)
    token = parts_of(message)[0].split("/-/invites/")[1].split("\n")[0].split("#")[0]
    stored = await postal_forge.database.rows(
        "SELECT invitations::text AS text FROM invitations UNION ALL SELECT args::text FROM procrastinate_jobs"
        " UNION ALL SELECT audit_events::text FROM audit_events"
    )
    assert stored
    assert not any(token in row.text for row in stored)


async def test_names_cannot_add_headers(postal_forge: Forge, mailbox: Mailbox) -> None:
    inviter = await postal_forge.user(name="mallory")
    await postal_forge.root.put(
        f"/users/{inviter.id}", {"name": "Mallory\r\nBcc: all@example.org\r\n\r\nBuy"}
    )
    project = await postal_forge.project(inviter)
    address = new_address()
    await inviter.api.post(f"/projects/{project['id']}/invitations", {"email": address, "access_level": 30})
    (message,) = await mailbox.arrival(address)
    assert message["Bcc"] is None
    assert message["Subject"] == "Mallory Bcc: all@example.org Buy invited you to join forgelet"
    assert "all@example.org" not in mailbox.recipients


async def test_a_refused_recipient_is_not_tried_again(
    postal_forge: Forge, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "refuse", "550 No such user")
    notice = Mail(id=new_name("mail"), to=new_address(), subject="x", paragraphs=["x"])
    await mail.send(postal_forge.server.app[SERVICES], notice)
    monkeypatch.setattr(mailbox, "refuse", "451 Try again later")
    with pytest.raises(Exception, match="Try again later"):
        await mail.send(postal_forge.server.app[SERVICES], notice)


async def test_a_wrong_password_is_tried_again(postal_forge: Forge, mailbox: Mailbox) -> None:
    server = mail.SmtpServer("localhost", mailbox.port, "forge", "wrong")
    notice = Mail(id="x", to="a@example.org", subject="x", paragraphs=["x"])
    message = compose_message(notice, sender="a@example.org", base_url="http://x.example.org", sent_at=NOW)
    with pytest.raises(Exception, match="Authentication") as raised:
        await server.send(message)
    assert "wrong" not in str(raised.value)
    assert "wrong" not in repr(server)


async def test_a_worker_killed_between_sending_and_marking_sends_again_under_the_same_id(
    new_database: Callable[[], str], mailbox: Mailbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mails are sent at least once: the second one has the same Message-ID, and the link in both works."""
    url, address = new_database(), new_address()
    settings = {"smtp_url": mailbox.url, "external_url": "http://forge.example.org"}
    async with server_process(url, tmp_path, **settings) as server:
        monkeypatch.setattr(mailbox, "on_data", server.kill)
        project = (await server.root.post("/projects", {"name": "app"})).body
        values = {"email": address, "access_level": 30}
        answer = await server.root.post(f"/projects/{project['id']}/invitations", values)
        assert answer.body == {"status": "success"}
        await mailbox.arrival(address)
        assert await server.wait() == -signal.SIGKILL
    monkeypatch.setattr(mailbox, "on_data", None)
    async with running_forge(url, tmp_path, worker_timeout=2, **settings):
        first, *others = await mailbox.arrival(address, 2)
    assert {message["Message-ID"] for message in others} == {first["Message-ID"]}
    assert {parts_of(message) for message in others} == {parts_of(first)}


async def test_a_certificate_of_its_own_making_is_enough_on_this_machine(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's Postfix and Exim offer TLS with one."""
    monkeypatch.delenv("SSL_CERT_FILE")
    server = mail.SmtpServer("localhost", mailbox.port, USER, CORRECT)
    await server.greet()
    monkeypatch.setattr(mail, "_is_this_machine", lambda _host: False)
    with pytest.raises(ssl.SSLCertVerificationError):
        await server.greet()


async def test_a_server_that_accepts_mail_ends_the_failures_of_earlier_ones(
    new_forge: Callable[..., AbstractAsyncContextManager[Forge]], mailbox: Mailbox
) -> None:
    notice = Mail(id="1@test", to=new_address(), subject="Hello", paragraphs=["Hello."])
    async with new_forge(smtp_url=mailbox.url) as forge:
        services = forge.server.app[SERVICES]
        await services.failures.note("mail", "earlier.example.org:25", "It is gone")
        await mail.send(services, notice)
        assert [
            failure for failure in await failing(forge.database, services.clock()) if failure.kind == "mail"
        ] == []


# --- files ----------------------------------------------------------------------------------------------------------


async def test_without_a_server_mail_is_written_to_files(forge: Forge) -> None:
    address = new_address()
    await invite_by_mail(forge, address)
    folder = forge.settings.data_dir / "mail"
    async with asyncio.timeout(20):
        while not (found := [file for file in folder.glob("*.eml") if address.encode() in file.read_bytes()]):
            await asyncio.sleep(0.02)
    message = email.message_from_bytes(found[0].read_bytes(), policy=email.policy.default)
    assert message["To"] == address
    assert found[0].stat().st_mode & 0o777 == 0o600
    assert not list(folder.glob("*.partial"))


# --- the URL of the server ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("smtp://mail.example.org", ("mail.example.org", 25, None, None, False, None)),
        ("smtp://me:p%40ss@mail.example.org:587", ("mail.example.org", 587, "me", "p@ss", False, True)),
        ("smtp://me:pass@127.0.0.1:1025", ("127.0.0.1", 1025, "me", "pass", False, None)),
        ("smtps://me:pass@mail.example.org", ("mail.example.org", 465, "me", "pass", True, True)),
    ],
)
def test_a_password_never_goes_over_the_network_in_clear(
    url: str, expected: tuple[Any, ...], tmp_path: Path
) -> None:
    settings = Settings(database_url="postgresql://x", data_dir=tmp_path, smtp_url=url)
    opened = mail.open_outbox(settings)
    assert isinstance(opened, mail.SmtpServer)
    assert opened == mail.SmtpServer(*expected)


# --- messages -------------------------------------------------------------------------------------------------------


@given(subject=st.text(), paragraph=st.text(), local=st.text(min_size=1), domain=st.text(min_size=1))
def test_no_text_breaks_out_of_its_place(subject: str, paragraph: str, local: str, domain: str) -> None:
    """Whatever the texts are, all headers are ours, and the body is one text and one HTML part."""
    address = f"{local}@{domain}"
    notice = Mail(id="mail-1", to=address, subject=subject, paragraphs=[paragraph])
    try:
        message = compose_message(
            notice, sender="forge@example.org", base_url="https://forge.example.org:8443", sent_at=NOW
        )
    except ValueError:
        return
    assert is_address(address)
    again = email.message_from_bytes(bytes(message), policy=email.policy.default)
    assert sorted(again.keys()) == sorted(
        ["From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "MIME-Version", "Content-Type"]
    )
    assert again["Message-ID"] == "<mail-1@forge.example.org>"
    assert [part.get_content_type() for part in again.walk()] == [
        "multipart/alternative",
        "text/plain",
        "text/html",
    ]


@pytest.mark.parametrize(
    "text", ["", "a", "@", "a@", "@b", "a@b@c", "a b@c", "a@b\n", "<a@b>", "a@b,c@d", "é" * 255]
)
def test_texts_that_are_no_address(text: str) -> None:
    assert not is_address(text)


async def test_an_invitation_taken_back_is_not_mailed(postal_forge: Forge, mailbox: Mailbox) -> None:
    await send_invitation(postal_forge.server.app[SERVICES], 987654321, 0)
    assert not [message for message in mailbox.messages if "987654321" in message["Message-ID"]]


async def test_an_invitation_that_has_expired_is_not_mailed(postal_forge: Forge, mailbox: Mailbox) -> None:
    """Its link would not work: the day of expiry came while the mail waited for the server."""
    address = new_address()
    await invite_by_mail(postal_forge, address, expires_at="2999-01-01")
    await mailbox.arrival(address)
    await postal_forge.execute(
        "UPDATE invitations SET expires_at = current_date WHERE email = %(email)s", email=address
    )
    invitation_id = await postal_forge.database.value(
        "SELECT id FROM invitations WHERE email = %(email)s", email=address
    )
    await send_invitation(postal_forge.server.app[SERVICES], invitation_id, 1)
    assert len(mailbox.to(address)) == 1


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
    assert 0 <= sent <= changes.MAX_REMINDERS
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
        assert await clear_away(transaction) >= 2
    for address, reason in ((old, "no answer for 90 days"), (expired, f"access expired on {today.date()}")):
        path = f"/projects/{projects[address]['id']}"
        assert (await forge.root.get(f"{path}/invitations")).body == []
        details = (await forge.root.get(f"{path}/audit_events?event_type=member_destroyed")).body[0][
            "details"
        ]
        assert (details["author_name"], details["system_event"]) == ("(System)", "true")
        assert (details["reason"], details["target_details"]) == (reason, address)
    assert len((await forge.root.get(f"/projects/{projects[fresh]['id']}/invitations")).body) == 1


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
        assert await clear_away(transaction) == cleared
    assert await invited_to(forge.root, f"/projects/{project['id']}") == ([] if cleared else [address])


@pytest.mark.parametrize(("days", "cleared"), [(89, False), (90, False), (91, True)])
async def test_an_invitation_without_end_is_kept_for_90_days(
    clocked: tuple[Forge, MovedClock], days: int, cleared: bool
) -> None:
    forge, clock = clocked
    await invite_by_mail(forge, new_address())
    clock.move(days=days)
    async with forge.database.transaction() as transaction:
        assert await clear_away(transaction) == cleared


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("known", [True, False])
async def test_the_membership_ends_when_its_day_begins(
    clocked: tuple[Forge, MovedClock], kind: str, known: bool
) -> None:
    """This applies to people who were known already, and to people who have accepted."""
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
