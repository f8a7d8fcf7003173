"""Members of groups and projects: who sees, adds, changes and removes whom (decision D1)."""

import asyncio
import datetime

import gitlab
import pytest

from api_server.web.routes import Role
from tests.api_server.namespaces.trail import events
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
