"""Refusals: whole requests, addresses, too many mails, and inviters who have left (decisions D1, D8)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import quote

import pytest

from api_server.invitations import changes
from api_server.namespaces import member_endings
from api_server.namespaces.member_endings import NO_MEMBER, NO_RIGHT
from api_server.outbound import mail, queries
from api_server.web.errors import ApiError
from api_server.web.routes import Role
from tests.support.clock import MovedClock, shared_forge_with_clock
from tests.support.forge import Client, Forge, Person, SharedForges, new_name, running_forge
from tests.support.invitations import (
    KINDS,
    invite,
    invited_to,
    managers_of,
    members_of,
    new_address,
    page_of,
    source_of,
)


@pytest.mark.parametrize(
    ("values", "body"),
    [
        ({"email": "a@example.org", "access_level": None}, {"error": "access_level is empty"}),
        (
            {"email": "a@example.org", "access_level": 1234},
            {"error": "access_level does not have a valid value"},
        ),
        (
            {"email": "a@example.org", "access_level": -1},
            {"error": "access_level does not have a valid value"},
        ),
        ({"email": "nonsense"}, {"error": "email contains an invalid email address"}),
        (
            {"email": ["b@example.org", "a b@example.org"]},
            {"error": "email contains an invalid email address"},
        ),
        (
            {"email": "a@example.org\r\nBcc: c@example.org"},
            {"error": "email contains an invalid email address"},
        ),
        ({"user_id": "alice"}, {"error": "user_id is invalid"}),
        ({"email": "a@example.org", "expires_at": "soon"}, {"error": "expires_at is invalid"}),
        ({}, {"message": "400 Bad request - Must provide either email or user_id as a parameter"}),
        (
            {"email": " ", "user_id": ""},
            {"message": "400 Bad request - Must provide either email or user_id as a parameter"},
        ),
    ],
)
async def test_requests_that_cannot_be_read(forge: Forge, values: dict[str, Any], body: Any) -> None:
    """The answer is 400, and nobody is invited."""
    source = await source_of(forge, "projects")
    answer = await invite(forge.root, source, **values)
    assert (answer.status, answer.body) == (400, body)
    assert await invited_to(forge.root, source) == []


async def test_a_level_has_to_be_given(forge: Forge) -> None:
    source = await source_of(forge, "groups")
    answer = await forge.root.post(f"{source}/invitations", {"email": new_address()})
    assert (answer.status, answer.body) == (400, {"error": "access_level is missing"})


async def test_more_than_a_hundred_recipients_are_refused_as_a_whole(forge: Forge) -> None:
    """Addresses and ids count together; a hundred are allowed."""
    source = await source_of(forge, "projects")
    addresses = [new_address() for _ in range(100)]
    answer = await invite(forge.root, source, email=addresses, user_id=[1])
    assert (answer.status, answer.body) == (
        201,
        {
            "status": "error",
            "message": "Too many users specified (limit is 100)",
            "reason": "too_many_invites_error",
        },
    )
    assert await invited_to(forge.root, source) == []
    assert (await invite(forge.root, source, email=addresses)).body == {"status": "success"}
    assert len(await invited_to(forge.root, source)) == 100


async def test_commas_alone_are_nobody(forge: Forge) -> None:
    answer = await invite(forge.root, await source_of(forge, "groups"), email=" , ,")
    assert (answer.status, answer.body) == (
        201,
        {"status": "error", "message": "Invites cannot be blank", "reason": "blank_invites_error"},
    )


@pytest.mark.parametrize("tier", ["free", "premium"])
async def test_custom_roles_are_of_the_ultimate_tier(shared_forge: SharedForges, tier: str) -> None:
    forge = await shared_forge(tier=tier)
    source, address = await source_of(forge, "groups"), new_address()
    answer = await invite(forge.root, source, email=address, member_role_id=7)
    refused = f"403 Forbidden - custom roles is not available on the {tier} tier"
    assert (answer.status, answer.body) == (403, {"message": refused})
    assert (await invite(forge.root, source, email=address)).status == 201


async def test_a_custom_role_that_does_not_exist_or_has_another_level_is_nobodys(forge: Forge) -> None:
    source, person, address = await source_of(forge, "groups"), await forge.user(), new_address()
    values = {"name": new_name("Auditor"), "base_access_level": 20}
    reporters = (await forge.root.post("/member_roles", values)).body["id"]
    mismatch = "Member role the custom role's base access level does not match the current access level"
    for role, problem in ((2**40, "Member role not found"), (reporters, mismatch)):
        answer = await invite(forge.root, source, email=address, user_id=person.id, member_role_id=role)
        assert (answer.status, answer.body) == (
            201,
            {"status": "error", "message": {address: problem, person.username: problem}},
        )
    assert await invited_to(forge.root, source) == []
    assert person.id not in await members_of(forge.root, source)


@pytest.mark.parametrize("kind", KINDS)
async def test_who_may(forge: Forge, kind: str) -> None:
    """Maintainers of projects, Owners of groups; 401 without a token, 404 if the source is hidden."""
    source, people = await managers_of(forge, kind)
    able = {"maintainer", "owner"} if kind == "projects" else {"owner"}
    for name, person in people.items():
        address = new_address()
        path = f"{source}/invitations/{quote(address)}"
        answers = [
            await invite(person.api, source, email=address),
            await person.api.get(f"{source}/invitations"),
            await person.api.put(path, {"access_level": 20}),
            await person.api.delete(path),
        ]
        expected = [201, 200, 200, 204] if name in able else [403] * 4
        assert [answer.status for answer in answers] == expected, name
    hidden = await source_of(forge, kind, visibility="private")
    stranger = people["stranger"].api
    for client, status in ((stranger, 404), (forge.anonymous, 401)):
        answers = [
            await invite(client, hidden, email=new_address()),
            await client.get(f"{hidden}/invitations"),
            await client.put(f"{hidden}/invitations/a%40example.org", {"access_level": 20}),
            await client.delete(f"{hidden}/invitations/a%40example.org"),
        ]
        assert [answer.status for answer in answers] == [status] * 4


async def test_nobody_below_owner_has_to_do_with_owners(forge: Forge) -> None:
    """B.1: a project's Maintainer can neither grant Owner nor change an invitation for one."""
    source, people = await managers_of(forge, "projects")
    maintainer, address = people["maintainer"].api, new_address()
    assert (await invite(maintainer, source, email=new_address(), access_level=50)).status == 403
    assert (await invite(people["owner"].api, source, email=address, access_level=50)).status == 201
    path = f"{source}/invitations/{quote(address)}"
    assert (await maintainer.put(path, {"access_level": 30})).status == 403
    assert (await maintainer.delete(path)).status == 403
    mine = new_address()
    await invite(maintainer, source, email=mine)
    raised = await maintainer.put(f"{source}/invitations/{quote(mine)}", {"access_level": 50})
    assert raised.status == 403
    assert await invited_to(maintainer, source) == [address, mine]


PER_USER, PER_ADDRESS = 6, 2
LIMITS = {"emails_per_user": PER_USER, "emails_per_address": PER_ADDRESS}
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
    """A server that has sent no mails."""
    forge, clock = await shared_forge_with_clock(shared_forge)
    async with forge.database.transaction() as transaction:
        await transaction.run("DELETE FROM letter_counts")
        await transaction.run("DELETE FROM procrastinate_jobs")
    with forge.changed_settings(**LIMITS):
        yield forge, clock


async def owner_of(forge: Forge, kind: str = "projects") -> tuple[Person, str]:
    """Return a person who may invite, and the source."""
    owner = await forge.user("owner")
    made = await (forge.group(owner) if kind == "groups" else forge.project(owner))
    return owner, f"/{kind}/{made['id']}"


async def test_an_inviter_has_so_many_emails_an_hour(clocked: tuple[Forge, MovedClock]) -> None:
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


async def test_taking_invitations_back_gives_no_emails_back(clocked: tuple[Forge, MovedClock]) -> None:
    forge, _ = clocked
    owner, source = await owner_of(forge, "groups")
    for _ in range(PER_USER):
        address = new_address()
        assert (await invite(owner.api, source, email=address)).body == {"status": "success"}
        assert (await owner.api.delete(f"{source}/invitations/{address}")).status == 204
    assert (await invite(owner.api, source, email=new_address())).body == TOO_MANY


async def test_an_address_gets_so_many_emails_an_hour(clocked: tuple[Forge, MovedClock]) -> None:
    """It does not matter who sends them, and how the address is written; the other recipients of the request are
    invited."""
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
    assert (await forge.root.post(f"/users/{owner.id}/emails", confirmed)).status == 201, "no email is sent"


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
    with forge.changed_settings(emails_per_user=200, emails_per_address=20):
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
        await queries.forget_emails(transaction, mail.RATE_WINDOW)
    assert await forge.database.value("SELECT count(*) FROM letter_counts") == 1


REFUSED = {"error": "email contains an invalid email address"}
ADDRESSES = {
    "alice@example.org": True,
    "A@B.ORG": True,
    "a@b.c": True,
    "a@1.2": True,
    "a@127.0.0.1": True,
    "a@b-c.org": True,
    "a@xn--9ca.org": True,
    "a@é.org": True,
    "a+b@c.org": True,
    "a'b@c.org": True,
    "a/b@c.org": True,
    "a=b@c.org": True,
    "a!b@c.org": True,
    "a%b@c.org": True,
    f"{'a' * 64}@c.org": True,
    f"{'a' * 65}@c.org": False,
    f"a@{'b' * 63}.org": True,
    f"a@{'b' * 64}.org": False,
    "a@b": False,
    "ann@localhost": False,
    "a@-b.org": False,
    "a@b-.org": False,
    "a@b_c.org": False,
    "a@b..org": False,
    "a@.b.org": False,
    "a@b.org.": False,
    ".a@b.org": False,
    "a.@b.org": False,
    "a..b@c.org": False,
    "a b@c.org": False,
    '"a b"@c.org': False,
    "a@b c.org": False,
    "a@[127.0.0.1]": False,
    "@b.org": False,
    "a@": False,
    "a": False,
    "a@b@c.org": False,
    "Alice <a@b.org>": False,
    "<a@b.org>": False,
    "a(comment)@b.org": False,
    "a@b.org(comment)": False,
    "a;b@c.org": False,
    'a"b@c.org': False,
    "a\\b@c.org": False,
    "a:b@c.org": False,
    # Ruby accepts it; few mail servers do (RFC 6531), and ours sends nothing to it.
    "é@example.org": False,
}


def _is_taken(address: str) -> object:
    try:
        return changes.read_recipients([address], None).emails == [address]
    except ApiError as refused:
        return False if refused.body == REFUSED else refused.body


def test_an_address_has_two_names_behind_its_at() -> None:
    assert {address: _is_taken(address) for address in ADDRESSES} == ADDRESSES


def _addresses(*names: str) -> dict[str, str]:
    return {name: f"{new_name(name)}@example.org" for name in names}


async def _pending(forge: Forge, *sources: str) -> list[str]:
    """Return which of these addresses are invited, in their order."""
    found = []
    for source in sources:
        found += [
            invitation["invite_email"] for invitation in (await forge.root.get(f"{source}/invitations")).body
        ]
    return found


async def _invite(client: Client, source: str, email: str) -> None:
    answer = await client.post(f"{source}/invitations", {"email": email, "access_level": 10})
    assert answer.body == {"status": "success"}


async def test_a_removed_member_takes_her_invitations_along(forge: Forge) -> None:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    project = await forge.project(members={Role.MAINTAINER: alice})
    source, other = f"/projects/{project['id']}", f"/projects/{(await forge.project())['id']}"
    await forge.member("projects", int(other.rpartition("/")[2]), alice, Role.MAINTAINER)
    await forge.member("projects", project["id"], bob, Role.MAINTAINER)
    emails = _addresses("hers", "his", "elsewhere")
    await _invite(alice.api, source, emails["hers"])
    await _invite(bob.api, source, emails["his"])
    await _invite(alice.api, other, emails["elsewhere"])

    assert (await forge.root.delete(f"{source}/members/{alice.id}")).status == 204

    assert await _pending(forge, source, other) == [emails["his"], emails["elsewhere"]]
    events = (await forge.root.get(f"{source}/audit_events")).body
    assert {**events[0]["details"], "ip_address": None, "entity_path": None} == {
        "custom_message": "Invitation destroyed",
        "remove": "user_access",
        "as": "Guest",
        "invite_email": emails["hers"],
        "reason": "whoever made it is no longer a member",
        "event_name": "member_destroyed",
        "author_name": "Administrator",
        "author_email": events[0]["details"]["author_email"],
        "author_class": "User",
        "target_id": None,
        "target_type": "User",
        "target_details": emails["hers"],
        "ip_address": None,
        "entity_path": None,
    }


@pytest.mark.parametrize("leaves_below", [False, True])
async def test_those_below_a_group_go_with_the_memberships_there(forge: Forge, leaves_below: bool) -> None:
    alice = await forge.user("alice")
    group = await forge.group()
    subgroup = await forge.group(parent_id=group["id"])
    project = await forge.project(namespace_id=subgroup["id"])
    sources = [f"/groups/{group['id']}", f"/groups/{subgroup['id']}", f"/projects/{project['id']}"]
    for place in (group, subgroup):
        await forge.member("groups", place["id"], alice, Role.OWNER)
    emails = _addresses("top", "middle", "bottom")
    for source, email in zip(sources, emails.values(), strict=True):
        await _invite(alice.api, source, email)

    query = "?skip_subresources=true" if leaves_below else ""
    assert (await forge.root.delete(f"{sources[0]}/members/{alice.id}{query}")).status == 204

    assert await _pending(forge, *sources) == ([emails["middle"], emails["bottom"]] if leaves_below else [])


async def test_an_expired_membership_takes_its_invitations_along(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(members={Role.MAINTAINER: alice})
    source = f"/projects/{project['id']}"
    await _invite(alice.api, source, _addresses("hers")["hers"])
    async with forge.database.transaction() as transaction:
        await transaction.row(
            "UPDATE members SET expires_at = current_date WHERE user_id = %(id)s", id=alice.id
        )
        await member_endings.remove_expired(transaction)
    assert await _pending(forge, source) == []


WAYS: dict[str, Callable[[Forge, str, Person], Awaitable[Any]]] = {
    "a smaller role": lambda forge, source, alice: forge.root.put(
        f"{source}/members/{alice.id}", {"access_level": 40}
    ),
    "removed": lambda forge, source, alice: forge.root.delete(f"{source}/members/{alice.id}"),
    "blocked": lambda forge, _, alice: forge.root.post(f"/users/{alice.id}/block"),
    "deleted": lambda forge, _, alice: forge.root.delete(f"/users/{alice.id}"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
async def test_an_invitation_ends_with_the_right_to_make_it(forge: Forge, kind: str, way: str) -> None:
    """Only a Maintainer's invitation for a level that a Maintainer may grant stays, in a project."""
    alice = await forge.user("alice")
    source = await source_of(forge, kind)
    await forge.member(kind, int(source.rpartition("/")[2]), alice, Role.OWNER)
    owner, developer = new_address(), new_address()
    for email, level in ((owner, 50), (developer, 30)):
        assert (await invite(alice.api, source, email=email, access_level=level)).body == {
            "status": "success"
        }
    pages = {email: await page_of(forge, email) for email in (owner, developer)}
    assert (await WAYS[way](forge, source, alice)).status in (200, 201, 204)
    stays = [developer] if (way, kind) == ("a smaller role", "projects") else []
    assert await invited_to(forge.root, source) == stays
    for email, page in pages.items():
        answer = await forge.anonymous.get(f"{forge.base}{page}")
        assert answer.status == (200 if email in stays else 404)
    gone = [event for event in await _destroyed(forge, source) if event["target_details"] in pages]
    assert {event["target_details"]: event["reason"] for event in gone} == {
        email: NO_MEMBER if way in ("removed", "deleted") else NO_RIGHT
        for email in pages
        if email not in stays
    }


async def _destroyed(forge: Forge, source: str) -> list[dict[str, Any]]:
    answer = await forge.root.get(f"{source}/audit_events?event_type=member_destroyed")
    return [event["details"] for event in answer.body]


async def test_invitations_of_an_administrator_end_with_her_being_one(forge: Forge) -> None:
    admin = await forge.user("admin", admin=True)
    source = await source_of(forge, "groups")
    await _invite(admin.api, source, new_address())
    assert (await forge.root.put(f"/users/{admin.id}", {"admin": False})).status == 200
    assert await invited_to(forge.root, source) == []


async def test_an_invitation_that_an_owner_raises_to_owner_is_hers(forge: Forge) -> None:
    """The earlier inviter could not have raised it."""
    alice, email = await forge.user("alice"), new_address()
    project = await forge.project(members={Role.MAINTAINER: alice})
    source = f"/projects/{project['id']}"
    await _invite(alice.api, source, email)
    assert (await forge.root.put(f"{source}/invitations/{email}", {"access_level": 50})).status == 200
    [shown] = (await forge.root.get(f"{source}/invitations")).body
    assert (shown["access_level"], shown["created_by_name"]) == (50, "Administrator")


async def test_an_invitation_whose_maker_lost_her_right_unseen_is_shown_nowhere(forge: Forge) -> None:
    """Her membership ends with the day; the hourly tasks record this in the audit trail."""
    alice, email = await forge.user("alice"), new_address()
    source = await source_of(forge, "groups")
    await forge.member("groups", int(source.rpartition("/")[2]), alice, Role.OWNER)
    await _invite(alice.api, source, email)
    page = f"{forge.base}{await page_of(forge, email)}"
    await forge.execute("UPDATE members SET expires_at = current_date WHERE user_id = %(id)s", id=alice.id)
    assert await invited_to(forge.root, source) == []
    assert (await forge.anonymous.get(page)).status == 404
    async with forge.database.transaction() as transaction:
        await changes.clear_away(transaction)
    [gone] = await _destroyed(forge, source)
    assert (gone["target_details"], gone["reason"]) == (email, NO_RIGHT)


async def _day_of_expiry(forge: Forge, email: str) -> None:
    await forge.execute(
        "UPDATE invitations SET expires_at = current_date WHERE email = %(email)s", email=email
    )


async def _end_of_membership(forge: Forge, email: str) -> None:
    await forge.execute(
        "UPDATE members SET expires_at = current_date "
        "WHERE user_id = (SELECT created_by_id FROM invitations WHERE email = %(email)s)",
        email=email,
    )


@pytest.mark.parametrize(
    ("end", "reason", "status"),
    [(_day_of_expiry, "access expired on ", 200), (_end_of_membership, NO_RIGHT, 404)],
)
async def test_an_invitation_that_nobody_can_accept_keeps_no_new_one_out(
    forge: Forge, end: Callable[[Forge, str], Awaitable[None]], reason: str, status: int
) -> None:
    """Even before the hourly task ends it. What the list does not show cannot be changed either."""
    alice, email = await forge.user("alice"), new_address()
    source = await source_of(forge, "projects")
    await forge.member("projects", int(source.rpartition("/")[2]), alice, Role.MAINTAINER)
    await _invite(alice.api, source, email)
    await end(forge, email)
    path = f"{source}/invitations/{email}"
    assert (await forge.root.put(path, {"access_level": 10})).status == status
    again = await invite(forge.root, source, email=email, access_level=20)
    assert (again.status, again.body) == (201, {"status": "success"})
    [shown] = (await forge.root.get(f"{source}/invitations")).body
    assert (shown["invite_email"], shown["access_level"], shown["expires_at"]) == (email, 20, None)
    [gone] = await _destroyed(forge, source)
    assert gone["reason"].startswith(reason)
    taken = await invite(forge.root, source, email=email)
    assert taken.body == {"status": "error", "message": {email: changes.EMAIL_TAKEN}}
