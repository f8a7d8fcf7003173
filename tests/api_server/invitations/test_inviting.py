"""Endpoints 31 to 34: who becomes a member and how, and pending invitations (decision D8)."""

import asyncio
import datetime
import re
from typing import Any
from urllib.parse import quote

import gitlab
import pytest

from api_server.invitations import queries
from api_server.state.database import Transaction
from tests.support.forge import Forge, Person, new_name
from tests.support.invitations import (
    KINDS,
    RFC_3339,
    TAKEN,
    invite,
    invited_to,
    managers_of,
    members_of,
    new_address,
    source_of,
    today,
)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_new_address_is_invited(forge: Forge, kind: str) -> None:
    """Endpoints 31 and 32: 201 `{"status": "success"}`, and a pending invitation with the document's keys."""
    source, address = await source_of(forge, kind), new_address()
    answer = await invite(forge.root, source, email=address, expires_at="2999-12-31")
    assert (answer.status, answer.body) == (201, {"status": "success"})
    listed = (await forge.root.get(f"{source}/invitations")).body
    assert RFC_3339.fullmatch(listed[0].pop("created_at"))
    assert isinstance(listed[0].pop("id"), int)
    assert listed == [
        {
            "invite_email": address,
            "access_level": 30,
            "expires_at": "2999-12-31T00:00:00.000Z",
            "user_name": None,
            "created_by_name": "Administrator",
        }
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["email", "EMAIL", "user_id"])
async def test_somebody_who_is_known_is_a_member_at_once(forge: Forge, kind: str, by: str) -> None:
    """The user is named by her confirmed address, however it is spelled, or by id; no invitation is pending."""
    source, person = await source_of(forge, kind), await forge.user()
    how = {"email": person.email, "EMAIL": person.email.upper(), "user_id": person.id}[by]
    answer = await invite(forge.root, source, **{by.lower(): how})
    assert (answer.status, answer.body) == (201, {"status": "success"})
    assert (await members_of(forge.root, source))[person.id] == 30
    assert await invited_to(forge.root, source) == []


async def _add_address(forge: Forge, person: Person, *, confirmed: bool) -> str:
    address = new_address()
    await forge.execute(
        "INSERT INTO user_emails (user_id, email, created_at, confirmed_at)"
        " VALUES (%(id)s, %(email)s, %(now)s, CASE WHEN %(confirmed)s THEN %(now)s::timestamptz END)",
        id=person.id,
        email=address,
        confirmed=confirmed,
    )
    return address


async def test_a_confirmed_secondary_address_is_as_good(forge: Forge) -> None:
    source, person = await source_of(forge, "projects"), await forge.user()
    address = await _add_address(forge, person, confirmed=True)
    await invite(forge.root, source, email=address)
    assert person.id in await members_of(forge.root, source)


async def test_an_unconfirmed_address_is_invited_like_a_stranger(forge: Forge) -> None:
    """This applies to primary and secondary addresses: the invitation is pending, and the user is not linked."""
    source, person = await source_of(forge, "projects"), await forge.user()
    secondary = await _add_address(forge, person, confirmed=False)
    unconfirmed = await forge.user(skip_confirmation=False)
    await invite(forge.root, source, email=f"{secondary},{unconfirmed.email}")
    assert sorted(await invited_to(forge.root, source)) == sorted([secondary, unconfirmed.email])
    listed = (await forge.root.get(f"{source}/invitations")).body
    assert [invitation["user_name"] for invitation in listed] == [None, None]


async def test_ids_of_nobody_are_their_own_error(forge: Forge) -> None:
    """Decision D11; other recipients of the request are added."""
    source, person = await source_of(forge, "groups"), await forge.user()
    answer = await invite(forge.root, source, user_id=f"987654322, {person.id}, 987654321")
    message = {"987654321": "User not found", "987654322": "User not found"}
    assert (answer.status, answer.body) == (201, {"status": "error", "message": message})
    await forge.root.get(f"{source}/members/{person.id}", expect=200)


async def test_the_same_person_by_address_and_id_is_one_member(forge: Forge) -> None:
    source, person = await source_of(forge, "groups"), await forge.user()
    answer = await invite(forge.root, source, email=person.email, user_id=person.id)
    assert answer.body == {"status": "success"}
    assert (await members_of(forge.root, source))[person.id] == 30


@pytest.mark.parametrize("as_array", [False, True])
async def test_lists_are_arrays_or_texts_with_commas(forge: Forge, as_array: bool) -> None:
    source, people = await source_of(forge, "projects"), [await forge.user() for _ in range(2)]
    addresses, ids = [new_address(), new_address()], [person.id for person in people]
    values: dict[str, Any] = {"email": addresses, "user_id": ids}
    if not as_array:
        values = {"email": f" {addresses[0]} , {addresses[1]}", "user_id": f"{ids[0]}, {ids[1]}"}
    assert (await invite(forge.root, source, **values)).body == {"status": "success"}
    assert sorted(await invited_to(forge.root, source)) == sorted(addresses)
    assert set(ids) <= set(await members_of(forge.root, source))


async def test_forms_and_brackets_work_as_well(forge: Forge) -> None:
    source, address = await source_of(forge, "projects"), new_address()
    form = {"access_level": "20", "email[]": address}
    answer = await forge.root.post(f"{source}/invitations", data=form)
    assert (answer.status, await invited_to(forge.root, source)) == (201, [address])


async def test_the_same_text_twice_is_once(forge: Forge) -> None:
    source, address = await source_of(forge, "groups"), new_address()
    assert (await invite(forge.root, source, email=f"{address},{address}")).body == {"status": "success"}
    assert await invited_to(forge.root, source) == [address]


async def test_the_same_address_in_two_spellings_is_one_invitation(forge: Forge) -> None:
    """The key of the failure is the address as typed."""
    source, address = await source_of(forge, "groups"), new_address()
    answer = await invite(forge.root, source, email=[address, address.upper()])
    assert answer.status == 201
    assert answer.body == {"status": "error", "message": {address.upper(): TAKEN}}
    assert await invited_to(forge.root, source) == [address]


async def test_a_person_by_several_addresses_is_the_first_as_typed(forge: Forge) -> None:
    source, second = await source_of(forge, "groups"), new_address()
    member = await forge.user()
    await forge.root.post(f"/users/{member.id}/emails", {"email": second, "skip_confirmation": True})
    await invite(forge.root, source, user_id=member.id, access_level=20)
    for emails in ([member.email, second], [second, member.email], [second.upper(), member.email, second]):
        answer = await invite(forge.root, source, email=emails, user_id=[member.id])
        told = {emails[0]: "User already exists in source"}
        assert (answer.status, answer.body) == (201, {"status": "error", "message": told})


async def test_failures_of_some_do_not_keep_out_the_others(forge: Forge) -> None:
    """D8: for somebody who is already invited or a member, the error is that recipient's; the status is 201, and
    `message` has texts."""
    source = await source_of(forge, "projects")
    invited, fresh = new_address(), new_address()
    member, newcomer = await forge.user(), await forge.user()
    await invite(forge.root, source, email=invited, user_id=member.id, access_level=20)
    answer = await invite(
        forge.root, source, email=[invited.upper(), fresh], user_id=[member.id, newcomer.id], access_level=40
    )
    assert (answer.status, answer.body) == (
        201,
        {
            "status": "error",
            "message": {invited.upper(): TAKEN, member.username: "User already exists in source"},
        },
    )
    members = await members_of(forge.root, source)
    assert (members[member.id], members[newcomer.id]) == (20, 40)
    assert await invited_to(forge.root, source) == [invited, fresh]
    by_address = await invite(forge.root, source, email=member.email)
    assert by_address.body["message"] == {member.email: "User already exists in source"}


async def test_a_role_below_the_inherited_one_is_refused(forge: Forge) -> None:
    group, person = await forge.group(name="Tools"), await forge.user()
    await invite(forge.root, f"/groups/{group['id']}", user_id=person.id, access_level=30)
    for source in (
        await source_of(forge, "groups", parent_id=group["id"]),
        await source_of(forge, "projects", namespace_id=group["id"]),
    ):
        refused = await invite(forge.root, source, user_id=person.id, access_level=20)
        assert refused.body == {
            "status": "error",
            "message": {
                person.username: "Access level should be greater than or equal to Developer inherited membership"
                " from group Tools"
            },
        }
        equal = await invite(forge.root, source, user_id=person.id, access_level=30)
        assert equal.body == {"status": "success"}


@pytest.mark.parametrize("recipient", ["email", "user_id"])
async def test_a_date_in_the_past_is_refused_and_today_is_not(forge: Forge, recipient: str) -> None:
    source, person = await source_of(forge, "projects"), await forge.user()
    value: Any = new_address() if recipient == "email" else person.id
    key = value if recipient == "email" else person.username
    yesterday = str(today() - datetime.timedelta(days=1))
    past = await invite(forge.root, source, **{recipient: value}, expires_at=yesterday)
    assert past.body == {"status": "error", "message": {key: "Expires at cannot be a date in the past"}}
    tomorrow = str(today() + datetime.timedelta(days=1))
    assert (await invite(forge.root, source, **{recipient: value}, expires_at=tomorrow)).body == {
        "status": "success"
    }
    last_day = await invite(forge.root, source, email=new_address(), expires_at=str(today()))
    assert last_day.body == {"status": "success"}


async def test_several_problems_of_one_are_one_sentence(forge: Forge) -> None:
    source, address = await source_of(forge, "projects"), new_address()
    answer = await invite(forge.root, source, email=address, access_level=0, expires_at="2020-01-01")
    assert answer.body["message"] == {
        address: "Access level is not included in the list and Expires at cannot be a date in the past"
    }


@pytest.mark.parametrize(
    ("kind", "level", "fits"),
    [(kind, level, True) for kind in KINDS for level in (10, 15, 20, 30, 40, 50)]
    + [("groups", 5, True), ("projects", 5, False), ("groups", 0, False), ("projects", 0, False)],
)
async def test_levels(forge: Forge, kind: str, level: int, fits: bool) -> None:
    """Levels that members cannot have there are the recipient's error."""
    source, address = await source_of(forge, kind), new_address()
    answer = await invite(forge.root, source, email=address, access_level=level)
    assert answer.status == 201
    expected: dict[str, Any] = {"status": "success"}
    if not fits:
        expected = {"status": "error", "message": {address: "Access level is not included in the list"}}
    assert answer.body == expected


async def test_the_same_address_twice_at_a_time_is_one_invitation(forge: Forge) -> None:
    source, address = await source_of(forge, "projects"), new_address()
    answers = await asyncio.gather(*(invite(forge.root, source, email=address) for _ in range(8)))
    assert sorted(answer.body["status"] for answer in answers) == ["error"] * 7 + ["success"]
    assert await invited_to(forge.root, source) == [address]


async def test_the_same_people_in_any_order_at_a_time_never_wait_for_ever(forge: Forge) -> None:
    source, people = await source_of(forge, "projects"), [await forge.user() for _ in range(4)]
    addresses = [new_address() for _ in range(4)]
    ids = [person.id for person in people]
    answers = await asyncio.gather(
        *(invite(forge.root, source, email=addresses[::step], user_id=ids[::step]) for step in (1, -1, 1, -1))
    )
    assert [answer.status for answer in answers] == [201] * 4
    assert sorted(answer.body["status"] for answer in answers) == ["error"] * 3 + ["success"]
    assert sorted(await invited_to(forge.root, source)) == sorted(addresses)
    assert set(ids) <= set(await members_of(forge.root, source))


async def test_listing(forge: Forge) -> None:
    """Oldest first, only of this source; `query` is the whole address; pages of both kinds."""
    group = await forge.group()
    above = f"/groups/{group['id']}"
    source = await source_of(forge, "projects", namespace_id=group["id"])
    await invite(forge.root, above, email=new_address())
    addresses = [new_address() for _ in range(3)]
    for address in addresses:
        await invite(forge.root, source, email=address)
    assert await invited_to(forge.root, source) == addresses

    async def listed(query: str) -> list[str]:
        answer = await forge.root.get(f"{source}/invitations?{query}")
        return [invitation["invite_email"] for invitation in answer.body]

    assert await listed(f"query={quote(addresses[1].upper())}") == [addresses[1]]
    assert await listed(f"query={quote(addresses[1][:-1])}") == []
    assert await listed("query=") == addresses
    assert await listed("per_page=2&page=2") == addresses[2:]
    first = await forge.root.get(f"{source}/invitations?pagination=keyset&per_page=2")
    following = re.search(r"<([^>]+)>", first.headers["Link"])
    assert following
    assert [i["invite_email"] for i in (await forge.root.get(following[1])).body] == addresses[2:]


async def test_who_has_come_is_not_listed(forge: Forge) -> None:
    source, person = await source_of(forge, "groups"), await forge.user()
    await invite(forge.root, source, email=person.email)
    assert await invited_to(forge.root, source) == []


async def test_tokens_are_never_shown(forge: Forge) -> None:
    """D8: GitLab's `invite_token` is not in the answer."""
    source = await source_of(forge, "projects")
    await invite(forge.root, source, email=new_address())
    answer = await forge.root.get(f"{source}/invitations")
    assert "token" not in str(answer.body)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"access_level": 40}, {"access_level": 40, "expires_at": "2999-01-01T00:00:00.000Z"}),
        ({}, {"access_level": 30, "expires_at": "2999-01-01T00:00:00.000Z"}),
        (
            {"expires_at": "2999-02-03T10:11:12Z"},
            {"access_level": 30, "expires_at": "2999-02-03T00:00:00.000Z"},
        ),
        ({"expires_at": None, "access_level": 20}, {"access_level": 20, "expires_at": None}),
        ({"expires_at": "", "access_level": 20}, {"access_level": 20, "expires_at": None}),
    ],
)
async def test_changing_an_invitation(forge: Forge, values: dict[str, Any], expected: Any) -> None:
    """D8: without a level it becomes 30; null removes the expiry; a date that is not sent stays."""
    source, address = await source_of(forge, "projects"), new_address()
    await invite(forge.root, source, email=address, access_level=20, expires_at="2999-01-01")
    answer = await forge.root.put(f"{source}/invitations/{quote(address)}", values)
    assert (answer.status, answer.body) == (200, expected)
    listed = (await forge.root.get(f"{source}/invitations")).body[0]
    assert {key: listed[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("values", "body"),
    [
        ({"access_level": 7}, {"error": "access_level does not have a valid value"}),
        ({"access_level": 0}, {"message": {"access_level": ["is not included in the list"]}}),
        ({"expires_at": "2020-01-01"}, {"message": {"expires_at": ["cannot be a date in the past"]}}),
    ],
)
async def test_changes_that_cannot_be(forge: Forge, values: dict[str, Any], body: Any) -> None:
    source, address = await source_of(forge, "projects"), new_address()
    await invite(forge.root, source, email=address)
    answer = await forge.root.put(f"{source}/invitations/{quote(address)}", values)
    assert (answer.status, answer.body) == (400, body)


async def test_odd_addresses_are_found_in_the_path(forge: Forge) -> None:
    """`+`, dots, `%` and other spellings; a missing one is 404."""
    source = await source_of(forge, "projects")
    for address in (f"a.b+c-{new_name('x')}@sub.example.org", f"100%25{new_name('x')}@example.org"):
        await invite(forge.root, source, email=address)
        path = f"{source}/invitations/{quote(address.upper(), safe='')}"
        assert (await forge.root.put(path, {"access_level": 40})).status == 200
        gone = await forge.root.delete(path)
        assert (gone.status, gone.body) == (204, "")
        for method in ("PUT", "DELETE"):
            missing = await forge.root.request(method, path)
            assert (missing.status, missing.body) == (404, {"message": "404 Not Found"})


async def test_one_sources_invitation_is_not_anothers(forge: Forge) -> None:
    group = await forge.group()
    project = await source_of(forge, "projects", namespace_id=group["id"])
    address = new_address()
    await invite(forge.root, f"/groups/{group['id']}", email=address)
    assert (await forge.root.delete(f"{project}/invitations/{quote(address)}")).status == 404
    assert await invited_to(forge.root, f"/groups/{group['id']}") == [address]


@pytest.mark.parametrize("kind", KINDS)
async def test_deleting_without_an_address_deletes_nothing(forge: Forge, kind: str) -> None:
    """python-gitlab sends this for an invitation from a list."""
    source, address = await source_of(forge, kind), new_address()
    await invite(forge.root, source, email=address)
    for method in ("PUT", "DELETE"):
        answer = await forge.root.request(method, f"{source}/invitations")
        assert answer.status == 405
    assert await invited_to(forge.root, source) == [address]


async def test_an_invitation_that_somebody_else_holds_is_a_conflict(
    forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endpoint 34: 409 if the request is right and the deletion fails. The invitation stays as it was."""
    lock = queries.lock_by_email

    async def lock_at_once(transaction: Transaction, email: str, **place: int | None) -> Any:
        await transaction.run("SET LOCAL lock_timeout = 20")
        return await lock(transaction, email, **place)

    monkeypatch.setattr(queries, "lock_by_email", lock_at_once)
    source, address = await source_of(forge, "projects"), new_address()
    await invite(forge.root, source, email=address)
    path = f"{source}/invitations/{quote(address)}"
    async with forge.database.transaction() as holder:
        await holder.row("SELECT id FROM invitations WHERE email = %(email)s FOR UPDATE", email=address)
        for method in ("DELETE", "PUT"):
            answer = await forge.root.request(method, path)
            assert (answer.status, answer.body) == (409, {"message": "409 Conflict: Resource lock"})
    assert await invited_to(forge.root, source) == [address]
    assert (await forge.root.delete(path)).status == 204


async def test_what_happens_to_an_invitation_is_audited(forge: Forge) -> None:
    """D7, with GitLab's names; the details are texts."""
    source, people = await managers_of(forge, "projects")
    owner, address = people["owner"], new_address()
    path = f"{source}/invitations/{quote(address)}"
    await invite(owner.api, source, email=address, expires_at="2999-01-01")
    await owner.api.put(path, {"access_level": 40})
    await owner.api.put(path, {"access_level": 40})
    await owner.api.delete(path)
    events = (await owner.api.get(f"{source}/audit_events?author_id={owner.id}&sort=asc")).body
    always = {"event_name", "custom_message", "author_name", "author_email", "author_class", "target_id",
              "target_type", "target_details", "ip_address", "entity_path"}  # fmt: skip
    own = [{k: v for k, v in event["details"].items() if k not in always} for event in events]
    assert [event["details"]["event_name"] for event in events] == [
        "member_created",
        "member_updated",
        "member_destroyed",
    ]
    assert own == [
        {"add": "user_access", "as": "Developer", "expires_at": "2999-01-01", "invite_email": address},
        {
            "change": "access_level",
            "from": "Developer",
            "to": "Maintainer",
            "as": "Maintainer",
            "expiry_from": "2999-01-01",
            "expiry_to": "2999-01-01",
            "invite_email": address,
        },
        {"remove": "user_access", "as": "Maintainer", "invite_email": address},
    ]


async def test_python_gitlab_invites(forge: Forge) -> None:
    """Lists as JSON arrays; an `error` in a 201 is raised; the deletion of a listed invitation is refused."""
    group, project = await forge.group(), await forge.project()
    addresses = [new_address(), new_address()]

    def use() -> None:
        client = gitlab.Gitlab(forge.base, private_token=forge.root.token)
        for source in (client.groups.get(group["id"]), client.projects.get(project["id"])):
            created = source.invitations.create({"email": addresses, "access_level": 20})
            assert created.status == "success"
            with pytest.raises(gitlab.exceptions.GitlabInvitationError) as raised:
                source.invitations.create({"email": addresses[0], "access_level": 20})
            assert raised.value.error_message == {addresses[0]: TAKEN}
            listed = source.invitations.list(get_all=True)
            assert [invitation.invite_email for invitation in listed] == addresses
            with pytest.raises(gitlab.exceptions.GitlabError) as refused:
                listed[0].delete()
            assert refused.value.response_code in (404, 405)
            source.invitations.update(addresses[0], {"access_level": 40})
            assert source.invitations.list(query=addresses[0], get_all=True)[0].access_level == 40
            source.invitations.delete(addresses[0])
            assert len(source.invitations.list(get_all=True)) == 1

    await asyncio.to_thread(use)
