"""Custom roles: made by administrators, carried by members and invitations, gone when nobody carries them."""

import asyncio
from typing import Any

import pytest

from api_server.accounts import member_role_queries
from tests.support.browser import PASSWORD, browsing
from tests.support.forge import Forge, new_name
from tests.support.invitations import KINDS, invite, new_address, page_of, source_of
from tests.support.waiting import until_somebody_waits

CARRIED = "400 Bad request - Role is assigned to one or more members. Remove role from all members, then delete role."


async def _role(forge: Forge, level: int = 30) -> dict[str, Any]:
    name = new_name("Auditor")
    values = {"name": name, "base_access_level": level, "description": "Looks at things"}
    answer = await forge.root.post("/member_roles", values)
    expected = {
        "id": answer.body["id"],
        "group_id": None,
        "name": name,
        "description": "Looks at things",
        "base_access_level": level,
    }
    assert (answer.status, answer.body) == (201, expected)
    return expected


async def test_administrators_make_list_and_remove_them(forge: Forge) -> None:
    role = await _role(forge)
    taken = await forge.root.post("/member_roles", {"name": role["name"], "base_access_level": 20})
    assert (taken.status, taken.body) == (400, {"message": {"name": ["has already been taken"]}})
    assert role in (await forge.root.get("/member_roles?per_page=100")).body
    assert (await forge.root.delete(f"/member_roles/{role['id']}")).status == 204
    assert (await forge.root.delete(f"/member_roles/{role['id']}")).body == {
        "message": "404 Member Role Not Found"
    }


@pytest.mark.parametrize("kind", KINDS)
async def test_somebody_who_is_known_carries_it_at_once_and_loses_it_with_its_level(
    forge: Forge, kind: str
) -> None:
    role, person = await _role(forge), await forge.user()
    source = await source_of(forge, kind)
    answer = await invite(forge.root, source, user_id=person.id, member_role_id=role["id"])
    assert answer.body == {"status": "success"}
    member = f"{source}/members/{person.id}"
    assert (await forge.root.get(member)).body["member_role"] == role
    (created, *_) = (await forge.root.get(f"{source}/audit_events?event_type=member_created")).body
    assert created["details"]["member_role_id"] == str(role["id"])
    refused = await forge.root.delete(f"/member_roles/{role['id']}")
    assert (refused.status, refused.body) == (400, {"message": CARRIED})
    later = await forge.root.put(member, {"access_level": 30, "expires_at": "2999-01-01"})
    assert later.body["member_role"] == role
    assert "member_role" not in (await forge.root.put(member, {"access_level": 20})).body
    assert (await forge.root.delete(f"/member_roles/{role['id']}")).status == 204


async def test_somebody_who_is_invited_carries_it_when_she_accepts(forge: Forge) -> None:
    role, address = await _role(forge), new_address()
    source = await source_of(forge, "projects")
    answer = await invite(forge.root, source, email=address, member_role_id=role["id"])
    assert answer.body == {"status": "success"}
    assert (await forge.root.delete(f"/member_roles/{role['id']}")).body == {"message": CARRIED}
    person = await forge.user(email=address, password=PASSWORD)
    page = await page_of(forge, address)
    async with browsing(forge) as browser:
        await browser.sign_in(person, return_to=page)
        await browser.send(f"{page}/accept")
    assert (await forge.root.get(f"{source}/members/{person.id}")).body["member_role"] == role


async def test_a_role_that_is_being_given_while_it_is_removed_stays(forge: Forge) -> None:
    role, person = await _role(forge), await forge.user()
    source = await source_of(forge, "projects")
    assert (await invite(forge.root, source, user_id=person.id)).body == {"status": "success"}
    async with forge.database.transaction() as giving:
        await member_role_queries.hold(giving, role["id"])
        removing = asyncio.create_task(forge.root.delete(f"/member_roles/{role['id']}"))
        await until_somebody_waits(forge.database)
        await giving.run(
            "UPDATE members SET member_role_id = %(role)s WHERE user_id = %(user)s",
            role=role["id"],
            user=person.id,
        )
    refused = await removing
    assert (refused.status, refused.body) == (400, {"message": CARRIED})
