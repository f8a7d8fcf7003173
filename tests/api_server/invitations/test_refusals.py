"""Endpoint 31: what is refused as a whole, and who may do what with invitations (decisions D1, D8)."""

from typing import Any
from urllib.parse import quote

import pytest

from tests.support.forge import Forge, SharedForges, new_name
from tests.support.invitations import (
    KINDS,
    invite,
    invited_to,
    managers_of,
    members_of,
    new_address,
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
    """400, and nobody is invited."""
    source = await source_of(forge, "projects")
    answer = await invite(forge.root, source, **values)
    assert (answer.status, answer.body) == (400, body)
    assert await invited_to(forge.root, source) == []


async def test_a_level_has_to_be_given(forge: Forge) -> None:
    source = await source_of(forge, "groups")
    answer = await forge.root.post(f"{source}/invitations", {"email": new_address()})
    assert (answer.status, answer.body) == (400, {"error": "access_level is missing"})


async def test_more_than_a_hundred_recipients_are_refused_as_a_whole(forge: Forge) -> None:
    """Addresses and ids count together; a hundred are fine."""
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
    """Maintainers of projects, Owners of groups; 401 without a token, 404 for what is hidden."""
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
    """B.1: a project's Maintainer neither grants Owner nor touches an invitation for one."""
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
