"""Who sees which groups and projects, in whichever way she comes to them; what she does not see is 404 everywhere."""

import base64
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from api_server.web.access import Role
from tests.support.forge import Answer, Client, Forge, Person, new_name

Json = dict[str, Any]
VIEWERS = (
    "anonymous",
    "external",
    "insider",
    "minimal",
    "guest",
    "developer",
    "maintainer",
    "owner",
    "admin",
)

#: What viewers get of a group, by the way in which they come to it. A list answers 200 where the group is on it.
GROUP_WAYS = (
    "show", "list", "projects", "members", "taken", "create", "transfer", "subgroup", "change", "add", "invite",
)  # fmt: skip
#: Of members and administrators, whatever the group's visibility.
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
NOBODY = "401 401 401 401 401 401 401 401 401 401 401"
GROUPS = {
    "private": {"external": HIDDEN, "insider": HIDDEN},
    "internal": {"external": HIDDEN, "insider": SEEN},
    "public": {"external": SEEN, "insider": SEEN},
}


async def _viewer(forge: Forge, kind: str, source: str, source_id: int) -> tuple[Client, Person | None]:
    """A client of that kind, and who it is where it is a user of its own."""
    if kind in ("anonymous", "admin"):
        return (forge.root if kind == "admin" else forge.anonymous), None
    person = await forge.user(kind, external=kind == "external")
    if kind not in ("external", "insider"):
        role = Role.MINIMAL_ACCESS if kind == "minimal" else Role[kind.upper()]
        await forge.member(source, source_id, person, role)
    return person.api, person


async def _group_answers(forge: Forge, client: Client, viewer: Person | None, group: Json) -> dict[str, int]:
    other = await forge.user("other")
    inside = await forge.group(parent_id=group["id"], visibility=group["visibility"])
    mine = await forge.project(viewer)
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
        "invite": client.post(f"{url}/invitations", {"email": "a@example.org", "access_level": 10}),
    }
    answers = {way: await answer for way, answer in ways.items()}
    statuses = {way: answer.status for way, answer in answers.items()}
    if statuses["list"] == 200 and group["id"] not in [one["id"] for one in answers["list"].body]:
        statuses["list"] = 404
    if statuses["taken"] == 200 and not answers["taken"].body["exists"]:
        statuses["taken"] = 404
    return statuses


@pytest.mark.parametrize("viewer", VIEWERS)
@pytest.mark.parametrize("visibility", GROUPS)
async def test_groups(forge: Forge, visibility: str, viewer: str) -> None:
    group = await forge.group(visibility=visibility)
    client, person = await _viewer(forge, viewer, "groups", group["id"])
    expected = NOBODY if viewer == "anonymous" else (MEMBERS | GROUPS[visibility])[viewer]
    answers = await _group_answers(forge, client, person, group)
    assert answers == dict(zip(GROUP_WAYS, map(int, expected.split()), strict=True))


#: What viewers get of a project. `commits` are its repository through the API, `path` and `visibility` are changes.
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
        "anonymous": "401 401 401 401 401 404 401 401 401 401 401",
        "external": PROJECT_HIDDEN,
        "insider": PROJECT_HIDDEN,
        "guest": PROJECT_GUEST,
    },
    "internal": {
        "anonymous": "401 401 401 401 401 404 401 401 401 401 401",
        "external": PROJECT_HIDDEN,
        "insider": PROJECT_SEEN,
        "guest": PROJECT_SEEN,
    },
    "public": {
        "anonymous": "401 401 401 401 200 200 401 401 401 401 401",
        "external": PROJECT_SEEN,
        "insider": PROJECT_SEEN,
        "guest": PROJECT_SEEN,
    },
}
PROJECT_VIEWERS = ("anonymous", "external", "insider", "guest", *PROJECT_MEMBERS)


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


@pytest.mark.parametrize("viewer", PROJECT_VIEWERS)
@pytest.mark.parametrize("visibility", PROJECTS)
async def test_projects(forge: Forge, visibility: str, viewer: str) -> None:
    project = await forge.project(visibility=visibility, initialize_with_readme=True)
    client, _ = await _viewer(forge, viewer, "projects", project["id"])
    expected = (PROJECT_MEMBERS | PROJECTS[visibility])[viewer].split()
    answers = await _project_answers(forge, client, project)
    assert answers == dict(zip(PROJECT_WAYS, map(int, expected), strict=True))


@pytest.mark.parametrize(("role", "status"), [(Role.MINIMAL_ACCESS, 404), (Role.GUEST, 200)])
async def test_a_role_above_opens_what_is_private_below(forge: Forge, role: Role, status: int) -> None:
    """Minimal Access opens groups, but no project."""
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
