"""Members of groups and projects: who sees, adds, changes and removes whom (decision D1)."""

import asyncio
import datetime

import gitlab
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.namespaces import members
from api_server.web.routes import Role
from tests.api_server.namespaces.conftest import events
from tests.support.forge import Client, Forge, Person, new_name

YESTERDAY = str(datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(days=1))


def _member(forge: Forge, person: Person, level: Role, **changed: object) -> dict:
    return {
        "id": person.id,
        "username": person.username,
        "public_email": None,
        "name": person.username.title(),
        "state": "active",
        "locked": False,
        "avatar_url": None,
        "web_url": f"{forge.base}/{person.username}",
        "access_level": int(level),
        "created_by": None,
        "expires_at": None,
        "membership_state": "active",
    } | changed


async def test_a_member_is_added_shown_changed_and_removed(forge: Forge) -> None:
    owner, alice = await forge.user("owner"), await forge.user("alice")
    project = await forge.project(owner)
    path = f"/projects/{project['id']}/members"
    made = await owner.api.post(path, {"user_id": alice.id, "access_level": 30, "expires_at": "2999-01-01"})
    assert made.status == 201
    created_at = made.body.pop("created_at")
    creator = {
        key: value for key, value in _member(forge, owner, Role.OWNER).items() if key not in _ROLE_KEYS
    }
    expected = _member(forge, alice, Role.DEVELOPER, created_by=creator, expires_at="2999-01-01")
    assert made.body == expected
    shown = await alice.api.get(f"{path}/{alice.id}")
    assert (shown.status, shown.body) == (200, expected | {"created_at": created_at})
    changed = await owner.api.put(f"{path}/{alice.id}", {"access_level": 40})
    assert (changed.status, changed.body["access_level"]) == (200, 40)
    assert changed.body["expires_at"] == "2999-01-01"
    cleared = await owner.api.put(f"{path}/{alice.id}", {"access_level": 40, "expires_at": None})
    assert cleared.body["expires_at"] is None
    assert (await owner.api.delete(f"{path}/{alice.id}")).status == 204
    assert (await alice.api.get(path)).status == 404
    assert [event for event in await events(forge, "Project", project["id"]) if "member" in event[0]] == [
        ("member_created", "Membership created"),
        ("member_updated", "Membership updated"),
        ("member_updated", "Membership updated"),
        ("member_destroyed", "Membership destroyed"),
    ]


_ROLE_KEYS = ("access_level", "created_by", "expires_at", "membership_state")


async def test_members_are_added_by_name_and_several_at_once(forge: Forge) -> None:
    group = await forge.group()
    path = f"/groups/{group['id']}/members"
    alice, bob, carol = [await forge.user(name) for name in ("alice", "bob", "carol")]
    named = await forge.root.post(path, {"username": alice.username.upper(), "access_level": 20})
    assert (named.status, named.body["id"]) == (201, alice.id)
    both = await forge.root.post(path, {"user_id": f"{bob.id},{carol.id}", "access_level": 20})
    assert (both.status, both.body) == (201, {"status": "success"})
    mixed = await forge.root.post(path, {"user_id": [bob.id, 999999999], "access_level": 20})
    assert mixed.body == {
        "status": "error",
        "message": {bob.username: "Member already exists", "999999999": "404 User Not Found"},
    }
    dave = await forge.user("dave")
    past = {"user_id": [dave.id, 999999999], "access_level": 20, "expires_at": "2000-01-01"}
    assert (await forge.root.post(path, past)).body["message"] == {
        dave.username: "Expires at cannot be a date in the past",
        "999999999": "404 User Not Found",
    }


@pytest.mark.parametrize(
    ("wanted", "status", "body"),
    [
        ({"user_id": 1}, 400, {"error": "access_level is missing"}),
        ({"user_id": 1, "access_level": 31}, 400, {"error": "access_level does not have a valid value"}),
        ({"user_id": 1, "access_level": "x"}, 400, {"error": "access_level does not have a valid value"}),
        ({"user_id": "x", "access_level": 30}, 400, {"error": "user_id is invalid"}),
        ({"user_id": 1, "access_level": 30, "expires_at": "x"}, 400, {"error": "expires_at is invalid"}),
        (
            {"access_level": 30},
            400,
            {"error": "user_id, username are missing, at least one parameter must be provided"},
        ),
        (
            {"user_id": 1, "username": "root", "access_level": 30},
            400,
            {"error": "user_id, username are mutually exclusive"},
        ),
        ({"user_id": 999999999, "access_level": 30}, 404, {"message": "404 User Not Found"}),
        ({"username": "nobody-at-all", "access_level": 30}, 404, {"message": "404 User Not Found"}),
        (
            {"user_id": "her", "access_level": 30, "expires_at": YESTERDAY},
            400,
            {"message": {"expires_at": ["cannot be a date in the past"]}},
        ),
        (
            {"user_id": "her", "access_level": 5},
            400,
            {"message": {"access_level": ["is not included in the list"]}},
        ),
        ({"user_id": "member", "access_level": 30}, 409, {"message": "Member already exists"}),
    ],
)
async def test_a_member_that_cannot_be_added_is_refused(
    forge: Forge, wanted: dict, status: int, body: dict
) -> None:
    her, member = await forge.user(), await forge.user()
    project = await forge.project(members={Role.GUEST: member})
    ids = {"her": her.id, "member": member.id}
    sent = (
        wanted | {"user_id": ids.get(wanted["user_id"], wanted["user_id"])} if "user_id" in wanted else wanted
    )
    answer = await forge.root.post(f"/projects/{project['id']}/members", sent)
    assert (answer.status, answer.body) == (status, body)


async def test_a_role_below_the_inherited_one_is_refused(forge: Forge) -> None:
    alice = await forge.user()
    group = await forge.group()
    await forge.member("groups", group["id"], alice, Role.DEVELOPER)
    subgroup = await forge.group(parent_id=group["id"])
    project = await forge.project(namespace_id=subgroup["id"])
    for kind, source, above in (("groups", subgroup, group), ("projects", project, subgroup)):
        path = f"/{kind}/{source['id']}/members"
        text = f"should be greater than or equal to Developer inherited membership from group {above['name']}"
        answer = await forge.root.post(path, {"user_id": alice.id, "access_level": 20})
        assert (answer.status, answer.body) == (400, {"message": {"access_level": [text]}})
        assert (await forge.root.post(path, {"user_id": alice.id, "access_level": 30})).status == 201
        lowered = await forge.root.put(f"{path}/{alice.id}", {"access_level": 20})
        assert (lowered.status, lowered.body) == (400, {"message": {"access_level": [text]}})


async def test_inherited_members_are_listed_once_with_their_greatest_role(forge: Forge) -> None:
    alice, bob, carol = [await forge.user(name) for name in ("alice", "bob", "carol")]
    group = await forge.group(alice)
    subgroup = await forge.group(parent_id=group["id"])
    await forge.member("groups", subgroup["id"], bob, Role.REPORTER)
    project = await forge.project(
        namespace_id=subgroup["id"], members={Role.MAINTAINER: bob, Role.GUEST: carol}
    )

    async def levels(path: str) -> dict[int, int]:
        listed = (await carol.api.get(f"/projects/{project['id']}/members{path}")).body
        assert len({member["id"] for member in listed}) == len(listed)
        return {member["id"]: member["access_level"] for member in listed}

    root_id = (await forge.root.get("/user")).body["id"]
    assert await levels("") == {bob.id: 40, carol.id: 10}
    assert await levels("/all") == {alice.id: 50, bob.id: 40, carol.id: 10, root_id: 50}
    assert await levels(f"/all?query={alice.username}") == {alice.id: 50}
    assert await levels(f"/all?user_ids[]={alice.id}&user_ids[]={carol.id}") == {alice.id: 50, carol.id: 10}
    assert (await carol.api.get(f"/projects/{project['id']}/members/{alice.id}")).status == 404
    one = await carol.api.get(f"/projects/{project['id']}/members/all/{alice.id}")
    assert (one.status, one.body["access_level"]) == (200, 50)
    above = await forge.root.get(f"/groups/{subgroup['id']}/members/all")
    assert {member["id"]: member["access_level"] for member in above.body} == {
        alice.id: 50,
        bob.id: 20,
        root_id: 50,
    }


@pytest.mark.parametrize("path", ["members?query", "members/all?query", "users?search"])
async def test_private_addresses_find_members_for_administrators_only(forge: Forge, path: str) -> None:
    """Decision D11."""
    owner = await forge.user("owner")
    alice = await forge.user("alice", public_email=f"{new_name('public')}@example.org")
    public = (await owner.api.get(f"/users/{alice.id}")).body["public_email"]
    project = await forge.project(owner, members={Role.GUEST: alice})

    async def found(client: Client, text: str) -> list[int]:
        listed = await client.get(f"/projects/{project['id']}/{path}={text}")
        return [member["id"] for member in listed.body]

    assert await found(owner.api, alice.email) == []
    assert await found(owner.api, public.upper()) == [alice.id]
    assert await found(forge.root, alice.email.upper()) == [alice.id]


async def test_python_gitlab_manages_members(forge: Forge) -> None:
    alice = await forge.user("alice")
    group = await forge.group()
    project = await forge.project(namespace_id=group["id"])

    def use() -> None:
        with gitlab.Gitlab(forge.base, private_token=forge.root.token) as client:
            members = client.projects.get(project["path_with_namespace"]).members
            member = members.create({"user_id": alice.id, "access_level": gitlab.const.AccessLevel.DEVELOPER})
            member.access_level = 40
            member.save()
            assert members.get(alice.id).access_level == 40
            assert client.projects.get(project["id"]).members_all.get(alice.id).access_level == 40
            member.delete()
            of_group = client.groups.get(group["id"])
            of_group.members.create({"username": alice.username, "access_level": 30})
            assert alice.id in {one.id for one in of_group.members_all.list(iterator=True, per_page=1)}
            assert alice.id in {one.id for one in of_group.members.list(get_all=True)}

    await asyncio.to_thread(use)


async def test_members_of_a_public_project_are_shown_to_who_is_signed_in(forge: Forge) -> None:
    stranger = await forge.user("stranger")
    project = await forge.project(visibility="public")
    assert (await stranger.api.get(f"/projects/{project['id']}/members")).status == 200
    assert (await Client(forge.session, forge.base).get(f"/projects/{project['id']}/members")).status == 401


TODAY = datetime.date(2026, 6, 1)


# Rights in a project and in a group; `self` is about the person's own membership.
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
    """409 as in GitLab. Owners of groups above count, bots do not."""
    alice, bob = await forge.user("alice"), await forge.user("bob")
    group, shared = await forge.group(alice), await forge.group(alice)
    subgroup = await forge.group(parent_id=group["id"])
    await forge.member("groups", shared["id"], bob, Role.OWNER)
    for one in (group, shared):  # and therefore of the subgroup
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
