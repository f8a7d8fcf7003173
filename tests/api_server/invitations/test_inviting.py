"""Endpoint 31: who gets in, and how (decision D8)."""

import asyncio
import datetime
from typing import Any

import pytest

from tests.support.forge import Forge, Person
from tests.support.invitations import (
    KINDS,
    RFC_3339,
    TAKEN,
    invite,
    invited_to,
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
    """By her confirmed address, however it is spelled, or by id; nothing is pending."""
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
    """Primary or secondary: pending, and the user is not linked."""
    source, person = await source_of(forge, "projects"), await forge.user()
    secondary = await _add_address(forge, person, confirmed=False)
    unconfirmed = await forge.user(skip_confirmation=False)
    await invite(forge.root, source, email=f"{secondary},{unconfirmed.email}")
    assert sorted(await invited_to(forge.root, source)) == sorted([secondary, unconfirmed.email])
    listed = (await forge.root.get(f"{source}/invitations")).body
    assert [invitation["user_name"] for invitation in listed] == [None, None]


async def test_ids_of_nobody_are_their_own_error(forge: Forge) -> None:
    """Decision D11; whoever is named beside them is added."""
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
    """D8: who is invited or a member already is that recipient's error, 201 all the same, `message` of texts."""
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
    """Levels that a membership there cannot have are the recipient's error."""
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
