"""Who sees which groups and projects, and that none is more visible than its group (decision D11)."""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import attrs
import pytest

from api_server.web.routes import Role
from tests.support.deviations import Deviations
from tests.support.forge import Answer, Client, Forge, Person, new_name
from tests.support.waiting import until_somebody_waits

Json = dict[str, Any]
#: Requests of viewers about a group. A list counts as 200 if the group is in it.
GROUP_WAYS = (
    "show", "list", "projects", "members", "taken", "create", "transfer", "subgroup", "change", "add", "invite",
)  # fmt: skip
#: The answers to members and administrators, whatever the group's visibility is.
MEMBERS = {
    "minimal":    "200 200 200 200 200 403 400 403 403 403 403",
    "guest":      "200 200 200 200 200 403 400 403 403 403 403",
    "developer":  "200 200 200 200 200 201 400 403 403 403 403",
    "maintainer": "200 200 200 200 200 201 200 403 403 403 403",
    "owner":      "200 200 200 200 200 201 200 201 200 201 201",
    "admin":      "200 200 200 200 200 201 200 201 200 201 201",
}  # fmt: skip
SEEN = "200 200 200 200 200 403 400 403 403 403 403"
HIDDEN = "404 404 404 404 404 404 404 404 404 404 404"
NOBODY = "401 404 401 401 401 401 401 401 401 401 401"
GROUPS = {
    "private": {"anonymous": NOBODY, "external": HIDDEN, "insider": HIDDEN},
    "internal": {"anonymous": NOBODY, "external": HIDDEN, "insider": SEEN},
    "public": {"anonymous": NOBODY.replace("404", "200"), "external": SEEN, "insider": SEEN},
}


@attrs.frozen
class Viewers:
    """The viewers: users by their kind; other kinds are administrators or anonymous."""

    forge: Forge
    people: dict[str, Person]

    def client(self, kind: str) -> Client:
        if kind == "admin":
            return self.forge.root
        return self.people[kind].api if kind in self.people else self.forge.anonymous

    async def let_in(self, source: str, source_id: int, kinds: Iterable[str]) -> None:
        """Give the users of these kinds the role with the same name."""
        for kind in kinds:
            if kind in self.people:
                role = Role.MINIMAL_ACCESS if kind == "minimal" else Role[kind.upper()]
                await self.forge.member(source, source_id, self.people[kind], role)


@pytest.fixture(scope="module")
async def viewers(forge: Forge) -> Viewers:
    kinds = ("external", "insider", "minimal", "guest", "reporter", "developer", "maintainer", "owner")
    return Viewers(forge, {kind: await forge.user(kind, external=kind == "external") for kind in kinds})


async def _group_answers(viewers: Viewers, kind: str, group: Json, inside: Json) -> dict[str, int]:
    forge, client = viewers.forge, viewers.client(kind)
    other = await forge.user("other")
    mine = await forge.project(viewers.people.get(kind))
    new = new_name("new")
    url = f"/groups/{group['id']}"
    ways: dict[str, Awaitable[Answer]] = {
        "show": client.get(url),
        "list": client.get(f"/groups?search={group['path']}"),
        "projects": client.get(f"{url}/projects"),
        "members": client.get(f"{url}/members"),
        "taken": client.get(f"/namespaces/{inside['path']}/exists?parent_id={group['id']}"),
        "create": client.post("/projects", {"path": new, "namespace_id": group["id"]}),
        "transfer": client.put(f"/projects/{mine['id']}/transfer", {"namespace": group["full_path"]}),
        "subgroup": client.post("/groups", {"name": new, "path": f"{new}-below", "parent_id": group["id"]}),
        "change": client.put(url, {"description": "changed"}),
        "add": client.post(f"{url}/members", {"user_id": other.id, "access_level": 10}),
        "invite": client.post(f"{url}/invitations", {"email": f"{new}@example.org", "access_level": 10}),
    }
    answers = {way: await answer for way, answer in ways.items()}
    statuses = {way: answer.status for way, answer in answers.items()}
    if statuses["list"] == 200 and group["id"] not in [row["id"] for row in answers["list"].body]:
        statuses["list"] = 404
    if statuses["taken"] == 200 and not answers["taken"].body["exists"]:
        statuses["taken"] = 404
    return statuses


@pytest.mark.parametrize(
    "kinds", [("anonymous", "external", "insider"), tuple(MEMBERS)], ids=["others", "members"]
)
@pytest.mark.parametrize("visibility", GROUPS)
async def test_groups(forge: Forge, viewers: Viewers, visibility: str, kinds: tuple[str, ...]) -> None:
    group = await forge.group(visibility=visibility)
    inside = await forge.group(parent_id=group["id"], visibility=visibility)
    await viewers.let_in("groups", group["id"], MEMBERS)
    deviations = Deviations()
    for kind in kinds:
        expected = (MEMBERS | GROUPS[visibility])[kind]
        answers = await _group_answers(viewers, kind, group, inside)
        with deviations.of(kind):
            assert answers == dict(zip(GROUP_WAYS, map(int, expected.split()), strict=True))
    assert not deviations, deviations.report


#: Requests of viewers about a project. `commits` is its repository through the API, `path` and `visibility` are
#: changes.
PROJECT_WAYS = (
    "show", "list", "members", "commits", "git", "raw", "change", "path", "visibility", "transfer", "delete",
)  # fmt: skip
PROJECT_MEMBERS = {
    "reporter":   "200 200 200 200 200 200 403 403 403 403 403",
    "developer":  "200 200 200 200 200 200 403 403 403 403 403",
    "maintainer": "200 200 200 200 200 200 200 403 403 403 403",
    "owner":      "200 200 200 200 200 200 200 200 200 200 202",
    "admin":      "200 200 200 200 200 200 200 200 200 200 202",
}  # fmt: skip
PROJECT_SEEN = "200 200 200 200 200 200 403 403 403 403 403"
#: Guests see a private project, but not its files.
PROJECT_GUEST = "200 200 200 403 403 404 403 403 403 403 403"
PROJECT_HIDDEN = "404 404 404 404 404 404 404 404 404 404 404"
PROJECTS = {
    "private": {
        "anonymous": "401 404 401 401 401 404 401 401 401 401 401", "external": PROJECT_HIDDEN,
        "insider": PROJECT_HIDDEN, "guest": PROJECT_GUEST,
    },
    "internal": {
        "anonymous": "401 404 401 401 401 404 401 401 401 401 401", "external": PROJECT_HIDDEN,
        "insider": PROJECT_SEEN, "guest": PROJECT_SEEN,
    },
    "public": {
        "anonymous": "401 200 401 401 200 200 401 401 401 401 401", "external": PROJECT_SEEN,
        "insider": PROJECT_SEEN, "guest": PROJECT_SEEN,
    },
}  # fmt: skip


def _basic(client: Client) -> dict[str, str]:
    if client.token is None:
        return {}
    return {"Authorization": f"Basic {base64.b64encode(f'x:{client.token}'.encode()).decode()}"}


async def _project_answers(forge: Forge, client: Client, project: Json) -> dict[str, int]:
    url, page = f"/projects/{project['id']}", f"{forge.base}/{project['path_with_namespace']}"
    refs = f"{page}.git/info/refs?service=git-upload-pack"
    target = await forge.group()
    ways: dict[str, Callable[[], Awaitable[Answer]]] = {
        "show": lambda: client.get(url),
        "list": lambda: client.get(f"/projects?search={project['path']}"),
        "members": lambda: client.get(f"{url}/members"),
        "commits": lambda: client.get(f"{url}/repository/commits"),
        "git": lambda: forge.anonymous.get(refs, headers=_basic(client)),
        "raw": lambda: client.get(f"{page}/-/raw/main/README.md"),
        "change": lambda: client.put(url, {"description": "changed"}),
        "path": lambda: client.put(url, {"path": new_name("moved")}),
        "visibility": lambda: client.put(url, {"visibility": _another(project["visibility"])}),
        "transfer": lambda: client.put(f"{url}/transfer", {"namespace": target["id"]}),
        "delete": lambda: client.delete(url),
    }
    answers = {}
    for way, asked in ways.items():
        if way == "transfer" and client.token and (await client.get(url)).status == 200:
            me = (await client.get("/user")).body["id"]
            await forge.root.post(f"/groups/{target['id']}/members", {"user_id": me, "access_level": 50})
        answer = await asked()
        listed = way != "list" or answer.status != 200 or project["id"] in [one["id"] for one in answer.body]
        answers[way] = answer.status if listed else 404
    return answers


def _another(visibility: str) -> str:
    return "internal" if visibility == "private" else "private"


@pytest.mark.parametrize(
    "kinds",
    [("anonymous", "external", "insider", "guest"), tuple(PROJECT_MEMBERS)],
    ids=["others", "members"],
)
@pytest.mark.parametrize("visibility", PROJECTS)
async def test_projects(forge: Forge, viewers: Viewers, visibility: str, kinds: tuple[str, ...]) -> None:
    deviations, project = Deviations(), None
    for kind in kinds:
        if project is None:
            project = await forge.project(visibility=visibility, initialize_with_readme=True)
            await viewers.let_in("projects", project["id"], ["guest", *PROJECT_MEMBERS])
        expected = (PROJECT_MEMBERS | PROJECTS[visibility])[kind].split()
        answers = await _project_answers(forge, viewers.client(kind), project)
        with deviations.of(kind):
            assert answers == dict(zip(PROJECT_WAYS, map(int, expected), strict=True))
        if answers["delete"] == 202:
            project = None
    assert not deviations, deviations.report


@pytest.mark.parametrize(("role", "status"), [(Role.MINIMAL_ACCESS, 404), (Role.GUEST, 200)])
async def test_a_role_above_opens_what_is_private_below(forge: Forge, role: Role, status: int) -> None:
    """Minimal Access gives access to groups, but not to projects."""
    alice = await forge.user("alice")
    group = await forge.group(visibility="private")
    subgroup = await forge.group(parent_id=group["id"], visibility="private")
    project = await forge.project(namespace_id=subgroup["id"])
    await forge.member("groups", group["id"], alice, role)
    assert (await alice.api.get(f"/groups/{subgroup['id']}")).status == 200
    assert (await alice.api.get(f"/projects/{project['id']}")).status == status
    listed = (await alice.api.get(f"/projects?search={project['path']}")).body
    assert [one["id"] for one in listed] == ([project["id"]] if status == 200 else [])


async def test_a_membership_opens_nothing_from_its_last_day_on(forge: Forge) -> None:
    alice = await forge.user("alice")
    group = await forge.group(visibility="private")
    project = await forge.project(namespace_id=group["id"])
    await forge.member("groups", group["id"], alice, Role.DEVELOPER)
    ends = "UPDATE members SET expires_at = %(now)s::date + %(days)s WHERE user_id = %(id)s"
    for days, status in ((1, 200), (0, 404)):
        async with forge.database.transaction() as transaction:
            await transaction.run(ends, days=days, id=alice.id)
        urls = (f"/groups/{group['id']}", f"/projects/{project['id']}")
        assert [(await alice.api.get(url)).status for url in urls] == [status, status]
        for kind, made in (("groups", group), ("projects", project)):
            listed = (await alice.api.get(f"/{kind}?search={made['path']}")).body
            assert [one["id"] for one in listed] == ([made["id"]] if status == 200 else [])


async def test_a_project_is_not_made_more_visible_than_its_group(forge: Forge) -> None:
    for limit, wanted in (("private", "internal"), ("private", "public"), ("internal", "public")):
        group = await forge.group(visibility=limit)
        text = f"{wanted} is not allowed in a {limit} group."
        refusal = (400, {"message": {"visibility_level": [text]}})
        new = {"path": new_name("new"), "namespace_id": group["id"], "visibility": wanted}
        made = await forge.root.post("/projects", new)
        assert (made.status, made.body) == refusal
        project = await forge.project(namespace_id=group["id"], visibility=limit)
        changed = await forge.root.put(f"/projects/{project['id']}", {"visibility": wanted})
        assert (changed.status, changed.body) == refusal
        assert (await forge.root.get(f"/projects/{project['id']}")).body["visibility"] == limit


async def test_a_project_of_a_users_own_is_as_visible_as_she_likes(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    for visibility in ("internal", "public", "private"):
        changed = await alice.api.put(f"/projects/{project['id']}", {"visibility": visibility})
        assert (changed.status, changed.body["visibility"]) == (200, visibility)


@pytest.mark.parametrize(
    ("limit", "shown"), [("private", "private"), ("internal", "internal"), ("public", "public")]
)
async def test_a_project_that_is_transferred_shows_no_more_than_its_new_group(
    forge: Forge, limit: str, shown: str
) -> None:
    group, project = await forge.group(visibility=limit), await forge.project(visibility="public")
    moved = await forge.root.put(f"/projects/{project['id']}/transfer", {"namespace": group["id"]})
    assert (moved.status, moved.body["visibility"]) == (200, shown)


async def test_a_group_is_not_made_more_visible_than_the_one_above(forge: Forge) -> None:
    parent = await forge.group(visibility="internal")
    name = new_name("new")
    new = {"name": name, "path": name, "parent_id": parent["id"]}
    text = "public is not allowed since the parent group has a internal visibility."
    made = await forge.root.post("/groups", new | {"visibility": "public"})
    refusal = f'Failed to save group {{:visibility_level=>["{text}"]}}'
    assert (made.status, made.body) == (400, {"message": refusal})
    group = (await forge.root.post("/groups", new)).body
    assert group["visibility"] == "internal"
    changed = await forge.root.put(f"/groups/{group['id']}", {"visibility": "public"})
    assert (changed.status, changed.body) == (400, {"message": {"visibility_level": [text]}})


async def test_a_group_is_not_made_less_visible_than_what_is_in_it(forge: Forge) -> None:
    group = await forge.group(visibility="public")
    project = await forge.project(namespace_id=group["id"], visibility="internal")
    subgroup = await forge.group(parent_id=group["id"], visibility="public")

    async def refused(wanted: str) -> list[str]:
        answer = await forge.root.put(f"/groups/{group['id']}", {"visibility": wanted})
        return [] if answer.status == 200 else answer.body["message"]["visibility_level"]

    projects = "private is not allowed since this group contains projects with higher visibility."
    subgroups = "{} is not allowed since there are sub-groups with higher visibility."
    assert await refused("private") == [projects, subgroups.format("private")]
    assert await refused("internal") == [subgroups.format("internal")]
    await forge.root.put(f"/groups/{subgroup['id']}", {"visibility": "private"})
    assert await refused("private") == [projects]
    await forge.root.put(f"/projects/{project['id']}", {"visibility": "private"})
    assert await refused("private") == []


async def test_what_is_changed_at_once_fits_together_all_the_same(forge: Forge) -> None:
    """A group is made private while something public is created in it, made public in it, or moved into it."""
    for number in range(8):
        group = await forge.group(visibility="public")
        inside = await forge.project(namespace_id=group["id"])
        outside = await forge.project(visibility="public")
        new = {"path": f"p{number}", "namespace_id": group["id"], "visibility": "public"}
        below = {"name": "g", "path": f"g{number}", "parent_id": group["id"], "visibility": "public"}
        await asyncio.gather(
            forge.root.post("/projects", new),
            forge.root.post("/groups", below),
            forge.root.put(f"/projects/{inside['id']}", {"visibility": "public"}),
            forge.root.put(f"/projects/{outside['id']}/transfer", {"namespace": group["id"]}),
            forge.root.put(f"/groups/{group['id']}", {"visibility": "private"}),
        )
        limit = (await forge.root.get(f"/groups/{group['id']}")).body["visibility"]
        projects = (await forge.root.get(f"/groups/{group['id']}/projects")).body
        subgroups = (await forge.root.get(f"/groups/{group['id']}/subgroups")).body
        if limit == "private":
            assert {one["visibility"] for one in [*projects, *subgroups]} <= {"private"}


async def test_what_only_owners_change(forge: Forge) -> None:
    """Visibility and path; a maintainer may send their current values."""
    alice = await forge.user("alice")
    project = await forge.project(members={Role.MAINTAINER: alice})
    url = f"/projects/{project['id']}"
    for wanted in ({"visibility": "public"}, {"path": "other"}, {"name": "Other", "visibility": "internal"}):
        refused = await alice.api.put(url, wanted)
        assert (refused.status, refused.body) == (403, {"message": "403 Forbidden"})
    allowed = {"name": "Other", "description": "New", "visibility": "private", "path": project["path"]}
    changed = await alice.api.put(url, allowed)
    assert (changed.status, changed.body["name"]) == (200, "Other")


WAYS: dict[str, Callable[[Forge, Json], Awaitable[Callable[[], Awaitable[Answer]]]]] = {}


def _way(prepare: Callable[[Forge, Json], Awaitable[Callable[[], Awaitable[Answer]]]]) -> None:
    WAYS[prepare.__name__] = prepare


@_way
async def create_a_project(forge: Forge, group: Json) -> Callable[[], Awaitable[Answer]]:
    new = {"path": new_name("new"), "namespace_id": group["id"], "visibility": "public"}
    return lambda: forge.root.post("/projects", new)


@_way
async def change_a_project(forge: Forge, group: Json) -> Callable[[], Awaitable[Answer]]:
    project = await forge.project(namespace_id=group["id"])
    return lambda: forge.root.put(f"/projects/{project['id']}", {"visibility": "public"})


@_way
async def transfer_a_project(forge: Forge, group: Json) -> Callable[[], Awaitable[Answer]]:
    project = await forge.project(visibility="public")
    return lambda: forge.root.put(f"/projects/{project['id']}/transfer", {"namespace": group["id"]})


@_way
async def create_a_subgroup(forge: Forge, group: Json) -> Callable[[], Awaitable[Answer]]:
    name = new_name("new")
    new = {"name": name, "path": name, "parent_id": group["id"], "visibility": "public"}
    return lambda: forge.root.post("/groups", new)


@_way
async def change_a_subgroup(forge: Forge, group: Json) -> Callable[[], Awaitable[Answer]]:
    subgroup = await forge.group(parent_id=group["id"], visibility="private")
    return lambda: forge.root.put(f"/groups/{subgroup['id']}", {"visibility": "public"})


HIDE = "UPDATE namespaces SET visibility = 'private' WHERE id = %(id)s"
SHOWN_BELOW = """
    SELECT visibility FROM projects WHERE namespace_id = %(id)s AND visibility <> 'private'
    UNION ALL SELECT visibility FROM namespaces WHERE parent_id = %(id)s AND visibility <> 'private'
"""


@pytest.mark.parametrize("way", WAYS)
async def test_nothing_is_shown_in_a_group_that_somebody_is_making_private(forge: Forge, way: str) -> None:
    group = await forge.group(visibility="public")
    show = await WAYS[way](forge, group)
    async with forge.database.transaction() as hiding:
        await hiding.run(HIDE, id=group["id"])
        showing = asyncio.ensure_future(show())
        await until_somebody_waits(forge.database)
    answer = await showing
    assert answer.status == (200 if way == "transfer_a_project" else 400), answer
    assert await forge.database.rows(SHOWN_BELOW, id=group["id"]) == []
