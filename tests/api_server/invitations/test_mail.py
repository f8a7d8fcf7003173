"""What arrives in inboxes: once each, with STARTTLS and a password, also when a worker dies (decision D8)."""

import asyncio
import datetime
import email
import email.policy
import signal
from collections.abc import AsyncIterator, Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.invitations import reminders
from api_server.invitations.changes import clear_away
from api_server.invitations.tasks import KEPT, queue_reminders
from api_server.outbound.mail import delivery
from api_server.outbound.mail.letters import Letter, compose, is_address
from api_server.settings import Settings
from api_server.state import queue
from tests.support.forge import Forge, new_name, running_forge
from tests.support.mailbox import Mailbox, running_mailbox
from tests.support.server_process import server_process

NOW = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
async def mailbox(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mailbox]:
    folder = tmp_path_factory.mktemp("mailbox")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(folder / "mailbox.pem"))
        async with running_mailbox(folder) as running:
            yield running


@pytest.fixture(scope="module")
async def postal_forge(
    new_database: Callable[[], str], mailbox: Mailbox, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Forge]:
    """A server that sends its mail to `mailbox`."""
    data = tmp_path_factory.mktemp("postal")
    async with running_forge(
        new_database(), data, smtp_url=mailbox.url, mail_from="forge@example.org"
    ) as forge:
        yield forge


def new_address() -> str:
    return f"{new_name('somebody')}@example.org"


def _parts(message: EmailMessage) -> tuple[str, str]:
    plain, html = message.get_body(("plain",)), message.get_body(("html",))
    assert plain is not None
    assert html is not None
    return plain.get_content().replace("\r\n", "\n"), html.get_content().replace("\r\n", "\n")


async def _invite(forge: Forge, address: str, **values: Any) -> dict[str, Any]:
    project = await forge.project(description="<b>Tools</b> for everybody")
    answer = await forge.root.post(
        f"/projects/{project['id']}/invitations", {"email": address, "access_level": 30} | values
    )
    assert answer.body == {"status": "success"}
    return project


async def test_an_invitation_arrives_once_in_text_and_html(postal_forge: Forge, mailbox: Mailbox) -> None:
    address = new_address()
    project = await _invite(postal_forge, address, expires_at="2999-01-01")
    (message,) = await mailbox.arrival(address)
    assert mailbox.over_tls == [True] * len(mailbox.over_tls), "nothing goes without TLS"
    assert (message["From"], message["To"]) == ("forge@example.org", address)
    assert message["Subject"] == "Administrator invited you to join forgelet"
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["List-Unsubscribe"] is None
    plain, html = _parts(message)
    opening = f"Administrator invited you to join the project {project['name']} as developer."
    assert plain.startswith(
        f"{opening}\n\n<b>Tools</b> for everybody\n\nThe membership ends on 2999-01-01.\n"
    )
    assert f"{postal_forge.base}/-/invites/flinv-" in plain
    assert "&lt;b&gt;Tools&lt;/b&gt; for everybody" in html
    assert f'<a href="{postal_forge.base}/-/invites/flinv-' in html
    await asyncio.sleep(0.1)
    assert len(mailbox.to(address)) == 1


async def test_no_token_is_kept_in_the_database(postal_forge: Forge, mailbox: Mailbox) -> None:
    """Neither in the queue, which holds the id, nor beside the digest."""
    address = new_address()
    await _invite(postal_forge, address)
    (message,) = await mailbox.arrival(address)
    token = _parts(message)[0].split("/-/invites/")[1].split("\n")[0].split("#")[0]
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
    letter = Letter(id=new_name("letter"), to=new_address(), subject="x", paragraphs=["x"])
    await delivery.send(postal_forge.server.app, letter)
    monkeypatch.setattr(mailbox, "refuse", "451 Try again later")
    with pytest.raises(Exception, match="Try again later"):
        await delivery.send(postal_forge.server.app, letter)


async def test_a_wrong_password_is_tried_again(postal_forge: Forge, mailbox: Mailbox) -> None:
    server = delivery.SmtpServer("localhost", mailbox.port, "forge", "wrong")
    letter = Letter(id="x", to="a@example.org", subject="x", paragraphs=["x"])
    message = compose(letter, sender="a@example.org", base_url="http://x.example.org", sent_at=NOW)
    with pytest.raises(Exception, match="Authentication") as raised:
        await server.send(message)
    assert "wrong" not in str(raised.value)
    assert "wrong" not in repr(server)


async def test_a_worker_killed_between_sending_and_marking_sends_again_under_the_same_id(
    new_database: Callable[[], str], mailbox: Mailbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least once: whoever gets it twice sees one Message-ID, and the link in both works."""
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
    monkeypatch.setattr(queue, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(queue, "STALLED_SECONDS", 2)
    async with running_forge(url, tmp_path, **settings):
        first, *others = await mailbox.arrival(address, 2)
    assert {message["Message-ID"] for message in others} == {first["Message-ID"]}
    assert {_parts(message) for message in others} == {_parts(first)}


# --- files ----------------------------------------------------------------------------------------------------------


async def test_without_a_server_mail_is_written_to_files(forge: Forge) -> None:
    address = new_address()
    await _invite(forge, address)
    folder = forge.settings.data_dir / "mail"
    async with asyncio.timeout(10):
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
    opened = delivery.open_outbox(settings)
    assert isinstance(opened, delivery.SmtpServer)
    assert opened == delivery.SmtpServer(*expected)


# --- messages -------------------------------------------------------------------------------------------------------


@given(subject=st.text(), paragraph=st.text(), local=st.text(min_size=1), domain=st.text(min_size=1))
def test_no_text_breaks_out_of_its_place(subject: str, paragraph: str, local: str, domain: str) -> None:
    """Whatever the texts are: the headers are ours alone, and the body is one text and one HTML part."""
    address = f"{local}@{domain}"
    letter = Letter(id="letter-1", to=address, subject=subject, paragraphs=[paragraph])
    try:
        message = compose(
            letter, sender="forge@example.org", base_url="https://forge.example.org:8443", sent_at=NOW
        )
    except ValueError:
        return
    assert is_address(address)
    again = email.message_from_bytes(bytes(message), policy=email.policy.default)
    assert sorted(again.keys()) == sorted(
        ["From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "MIME-Version", "Content-Type"]
    )
    assert again["Message-ID"] == "<letter-1@forge.example.org>"
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


# --- reminders and clearing away ------------------------------------------------------------------------------------

DAY = datetime.date(2026, 3, 1)


@pytest.mark.parametrize(
    ("lifespan", "expected"),
    [(None, (2, 5, 10)), (30, (2, 5, 10)), (14, (2, 5, 10)), (7, (1, 3, 5)), (3, (1, 2, 3)), (1, (1, 1, 1))],
)
def test_reminders_come_sooner_where_time_is_short(lifespan: int | None, expected: tuple[int, ...]) -> None:
    assert reminders.days(lifespan) == expected


@given(lifespan=st.none() | st.integers(1, 100), age=st.integers(0, 120))
def test_reminders_grow_with_age_and_end_with_the_invitation(lifespan: int | None, age: int) -> None:
    expires = DAY + datetime.timedelta(days=lifespan) if lifespan else None
    today = DAY + datetime.timedelta(days=age)
    sent = reminders.due(DAY, expires, today)
    assert 0 <= sent <= reminders.MOST
    if expires and today >= expires:
        assert sent == 0
    else:
        yesterday = today - datetime.timedelta(days=1)
        assert sent >= reminders.due(DAY, expires, max(yesterday, DAY))
        assert sent == sum(age >= day for day in reminders.days(lifespan))


async def _grow_older(forge: Forge, address: str, days: int) -> None:
    async with forge.database.transaction() as transaction:
        await transaction.row(
            "UPDATE invitations SET created_at = now() - make_interval(days => %(days)s) WHERE email = %(email)s",
            days=days,
            email=address,
        )


async def test_reminders_arrive_once_each(postal_forge: Forge, mailbox: Mailbox) -> None:
    address, known = new_address(), await postal_forge.user(skip_confirmation=False)
    await _invite(postal_forge, address)
    await _invite(postal_forge, known.email)
    async with postal_forge.database.transaction() as transaction:
        await transaction.row("UPDATE users SET confirmed_at = now() WHERE id = %(id)s", id=known.id)
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
        await queue_reminders(postal_forge.server.app)
        await queue_reminders(postal_forge.server.app)
        if subject:
            reminder = (await mailbox.arrival(address, before + 1))[-1]
            assert reminder["Subject"] == subject
            assert "Decline" in _parts(reminder)[0]
    await asyncio.sleep(0.2)
    assert len(mailbox.to(address)) == 4
    assert len(mailbox.to(known.email)) == 1, "who is known already is not reminded"
    assert len({message["Message-ID"] for message in mailbox.to(address)}) == 4


async def test_what_nobody_answers_is_cleared_away_and_audited(forge: Forge) -> None:
    """After 90 days, and on the day of expiry."""
    fresh, old, expired = new_address(), new_address(), new_address()
    today = datetime.datetime.now(datetime.UTC)
    projects = {
        address: await _invite(forge, address, expires_at=day)
        for address, day in ((fresh, None), (old, None), (expired, str(today.date())))
    }
    await _grow_older(forge, fresh, 89)
    await _grow_older(forge, old, 91)
    async with forge.database.transaction() as transaction:
        assert await clear_away(transaction, KEPT) >= 2
    for address, reason in ((old, "no answer for 90 days"), (expired, f"access expired on {today.date()}")):
        path = f"/projects/{projects[address]['id']}"
        assert (await forge.root.get(f"{path}/invitations")).body == []
        details = (await forge.root.get(f"{path}/audit_events?event_type=member_destroyed")).body[0][
            "details"
        ]
        assert (details["author_name"], details["system_event"]) == ("(System)", "true")
        assert (details["reason"], details["target_details"]) == (reason, address)
    assert len((await forge.root.get(f"/projects/{projects[fresh]['id']}/invitations")).body) == 1


async def test_an_invitation_taken_back_is_not_mailed(postal_forge: Forge, mailbox: Mailbox) -> None:
    from api_server.invitations.mails import mail_invitation

    await mail_invitation(postal_forge.server.app, 987654321, 0)
    assert not [message for message in mailbox.messages if "987654321" in message["Message-ID"]]
