"""Invitations go with the membership of who made them (facts B.4)."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from api_server.invitations import changes
from api_server.invitations.changes import KEPT_UNANSWERED
from api_server.namespaces import member_endings
from api_server.namespaces.member_endings import NO_MEMBER, NO_RIGHT
from api_server.web.routes import Role
from tests.support.forge import Client, Forge, Person, new_name
from tests.support.invitations import KINDS, invite, invited_to, new_address, page_of, source_of


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
    """Of a Maintainer what a Maintainer may invite to stays, in a project."""
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
    """Whoever made it could not have made it so."""
    alice, email = await forge.user("alice"), new_address()
    project = await forge.project(members={Role.MAINTAINER: alice})
    source = f"/projects/{project['id']}"
    await _invite(alice.api, source, email)
    assert (await forge.root.put(f"{source}/invitations/{email}", {"access_level": 50})).status == 200
    [shown] = (await forge.root.get(f"{source}/invitations")).body
    assert (shown["access_level"], shown["created_by_name"]) == (50, "Administrator")


async def test_an_invitation_whose_maker_lost_her_right_unseen_is_shown_nowhere(forge: Forge) -> None:
    """Her membership ends with the day; the hourly tasks tell the trail of it."""
    alice, email = await forge.user("alice"), new_address()
    source = await source_of(forge, "groups")
    await forge.member("groups", int(source.rpartition("/")[2]), alice, Role.OWNER)
    await _invite(alice.api, source, email)
    page = f"{forge.base}{await page_of(forge, email)}"
    await forge.execute("UPDATE members SET expires_at = current_date WHERE user_id = %(id)s", id=alice.id)
    assert await invited_to(forge.root, source) == []
    assert (await forge.anonymous.get(page)).status == 404
    async with forge.database.transaction() as transaction:
        await changes.clear_away(transaction, KEPT_UNANSWERED)
    [gone] = await _destroyed(forge, source)
    assert (gone["target_details"], gone["reason"]) == (email, NO_RIGHT)
