"""Who adds, changes and removes whom, and when a membership ends (decision D1)."""

import asyncio
import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.namespaces import members
from api_server.web.routes import Role
from tests.api_server.namespaces.trail import events
from tests.support.forge import Forge

TODAY = datetime.date(2026, 6, 1)


# Who may do what, in a project and in a group; `self` is about her own membership.
@pytest.mark.parametrize(
    ("role", "kind", "add", "add_owner", "change_owner", "remove_owner", "remove_developer", "leave"),
    [
        ("stranger", "projects", 404, 404, 404, 404, 404, 404),
        ("guest", "projects", 403, 403, 403, 403, 403, 204),
        ("developer", "projects", 403, 403, 403, 403, 403, 204),
        ("maintainer", "projects", 201, 403, 403, 403, 204, 204),
        ("owner", "projects", 201, 201, 200, 204, 204, 204),
        ("stranger", "groups", 404, 404, 404, 404, 404, 404),
        ("guest", "groups", 403, 403, 403, 403, 403, 204),
        ("maintainer", "groups", 403, 403, 403, 403, 403, 204),
        ("owner", "groups", 201, 201, 200, 204, 204, 204),
    ],
)
async def test_roles(
    forge: Forge,
    role: str,
    kind: str,
    add: int,
    add_owner: int,
    change_owner: int,
    remove_owner: int,
    remove_developer: int,
    leave: int,
) -> None:
    who, owner, developer, new, newer = [await forge.user() for _ in range(5)]
    source = await (forge.project() if kind == "projects" else forge.group(visibility="private"))
    path = f"/{kind}/{source['id']}/members"
    await forge.member(kind, source["id"], owner, Role.OWNER)
    await forge.member(kind, source["id"], developer, Role.DEVELOPER)
    if role != "stranger":
        await forge.member(kind, source["id"], who, Role[role.upper()])
    answers = [
        await who.api.post(path, {"user_id": new.id, "access_level": 30}),
        await who.api.post(path, {"user_id": newer.id, "access_level": 50}),
        await who.api.put(f"{path}/{owner.id}", {"access_level": 50, "expires_at": "2999-01-01"}),
        await who.api.delete(f"{path}/{owner.id}"),
        await who.api.delete(f"{path}/{developer.id}"),
        await who.api.delete(f"{path}/{who.id}"),
    ]
    expected = [add, add_owner, change_owner, remove_owner, remove_developer, leave]
    assert [answer.status for answer in answers] == expected
    hidden = "Project" if kind == "projects" else "Group"
    for answer in answers:
        if answer.status == 404:
            assert answer.body == {"message": f"404 {hidden} Not Found"}
        if answer.status == 403:
            assert answer.body == {"message": "403 Forbidden"}


async def test_the_last_owner_of_a_group_is_kept(forge: Forge) -> None:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    group = (await alice.api.post("/groups", {"name": "hers", "path": alice.username + "s"})).body
    path = f"/groups/{group['id']}/members"
    kept = (403, {"message": "403 Forbidden - The last owner of a group stays its owner"})
    for client in (alice.api, forge.root):
        for answer in (
            await client.delete(f"{path}/{alice.id}"),
            await client.put(f"{path}/{alice.id}", {"access_level": 40}),
        ):
            assert (answer.status, answer.body) == kept
    await forge.member("groups", group["id"], bob, Role.OWNER)
    left = await asyncio.gather(alice.api.delete(f"{path}/{alice.id}"), bob.api.delete(f"{path}/{bob.id}"))
    assert sorted(answer.status for answer in left) == [204, 403], "one of two owners leaving at once stays"


async def test_the_only_owner_of_a_group_is_removed_with_it_or_not_at_all(forge: Forge) -> None:
    """409 as in GitLab. Owners above count, bots do not."""
    alice, bob = await forge.user("alice"), await forge.user("bob")
    group, shared = await forge.group(alice), await forge.group(alice)
    subgroup = await forge.group(parent_id=group["id"])
    await forge.member("groups", shared["id"], bob, Role.OWNER)
    for one in (group, shared):  # and so of the subgroup
        assert (await forge.root.delete(f"/groups/{one['id']}/members/1")).status == 204
    bot = {"name": "bot", "access_level": 50, "scopes": ["api"], "expires_at": "2027-01-01"}
    assert (await forge.root.post(f"/groups/{group['id']}/access_tokens", bot)).status == 201
    refused = await forge.root.delete(f"/users/{alice.id}")
    text = "User cannot be removed while is the sole-owner of a group"
    assert (refused.status, refused.body) == (409, {"message": text})
    assert (await forge.root.delete(f"/users/{alice.id}?hard_delete=true")).status == 204
    places = [(await forge.root.get(f"/groups/{one['id']}")).status for one in (group, subgroup, shared)]
    assert places == [404, 404, 200]


async def test_two_owners_who_are_removed_at_once_do_not_leave_a_group_alone(forge: Forge) -> None:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    group = await forge.group(alice)
    await forge.member("groups", group["id"], bob, Role.OWNER)
    await forge.root.delete(f"/groups/{group['id']}/members/1")
    removed = await asyncio.gather(*(forge.root.delete(f"/users/{one.id}") for one in (alice, bob)))
    assert sorted(answer.status for answer in removed) == [204, 409]


async def test_the_owner_of_a_personal_project_is_its_member_and_is_kept(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    path = f"/projects/{project['id']}/members"
    assert [(m["id"], m["access_level"]) for m in (await alice.api.get(path)).body] == [(alice.id, 50)]
    refused = await forge.root.delete(f"{path}/{alice.id}")
    assert refused.body == {"message": "403 Forbidden - The owner of a personal project stays its owner"}


async def test_leaving_a_group_ends_memberships_below_it_unless_told_otherwise(forge: Forge) -> None:
    alice = await forge.user("alice")
    group = await forge.group()
    subgroup = await forge.group(parent_id=group["id"])
    project = await forge.project(namespace_id=subgroup["id"])

    async def places() -> list[int]:
        paths = [f"/groups/{group['id']}", f"/groups/{subgroup['id']}", f"/projects/{project['id']}"]
        return [(await forge.root.get(f"{path}/members/{alice.id}")).status for path in paths]

    for source, source_id in (
        ("groups", group["id"]),
        ("groups", subgroup["id"]),
        ("projects", project["id"]),
    ):
        await forge.member(source, source_id, alice, Role.DEVELOPER)
    kept = await forge.root.delete(f"/groups/{group['id']}/members/{alice.id}?skip_subresources=true")
    assert (kept.status, await places()) == (204, [404, 200, 200])
    await forge.member("groups", group["id"], alice, Role.DEVELOPER)
    gone = await forge.root.delete(f"/groups/{group['id']}/members/{alice.id}")
    assert (gone.status, await places()) == (204, [404, 404, 404])
    assert ("member_destroyed", "Membership destroyed") in await events(forge, "Project", project["id"])


async def test_an_expired_membership_gives_nothing_and_ends_with_an_event(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(members={Role.DEVELOPER: alice})
    path = f"/projects/{project['id']}/members"
    async with forge.database.transaction() as transaction:
        await transaction.row(
            "UPDATE members SET expires_at = current_date WHERE user_id = %(id)s", id=alice.id
        )
    assert (await alice.api.get(path)).status == 404
    assert (await forge.root.get(f"{path}/{alice.id}")).status == 404
    assert (await forge.root.post(path, {"user_id": alice.id, "access_level": 20})).status == 201
    today = datetime.datetime.now(datetime.UTC).date()
    assert ("member_destroyed", f"Membership expired on {today}") in await events(
        forge, "Project", project["id"]
    )


@given(
    kind=st.sampled_from(["group", "project"]),
    level=st.sampled_from(Role),
    inherited=st.none() | st.sampled_from([role for role in Role if role]),
    days=st.none() | st.integers(-3, 3),
)
def test_rules_refuse_exactly_what_cannot_be(
    kind: members.SourceKind, level: Role, inherited: Role | None, days: int | None
) -> None:
    expires_at = None if days is None else TODAY + datetime.timedelta(days=days)
    found = members.membership_problems(
        kind, level, inherited=inherited, inherited_from="g", expires_at=expires_at, today=TODAY
    )
    least = 10 if kind == "project" else 5
    assert ("access_level" in found) == (level < least or (inherited is not None and level < inherited))
    assert ("expires_at" in found) == (days is not None and days < 0)


@given(role=st.sampled_from(Role), levels=st.lists(st.sampled_from(Role)))
def test_nobody_below_owner_touches_owner(role: Role, levels: list[Role]) -> None:
    assert members.may_touch(role, *levels) == (role == Role.OWNER or Role.OWNER not in levels)


def test_what_is_wrong_is_a_sentence() -> None:
    assert members.sentence({"expires_at": ["is a"]}) == "Expires at is a"
    assert members.sentence({"a": ["x"], "b": ["y"], "c": ["z"]}) == "A x, B y and C z"
