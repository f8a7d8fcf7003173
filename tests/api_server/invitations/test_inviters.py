"""Invitations go with the membership of who made them (facts B.4)."""

import pytest

from api_server.namespaces.members import ending
from api_server.web.access import Role
from tests.support.forge import Client, Forge, new_name


def _addresses(*names: str) -> dict[str, str]:
    return {name: f"{new_name(name)}@example.org" for name in names}


async def _pending(forge: Forge, *sources: str) -> list[str]:
    """Who is invited to any of these, in their order."""
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
    await forge.member("groups", group["id"], alice, Role.OWNER)
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
        await ending.remove_expired(transaction)
    assert await _pending(forge, source) == []
