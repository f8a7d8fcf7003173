"""Projects: life cycle, what is shown of them, and to whom."""

from api_server.web.access import Role
from tests.support.forge import Forge


async def test_archiving_and_unarchiving(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    for action, archived in (("archive", True), ("unarchive", False)):
        answer = await alice.api.post(f"/projects/{project['id']}/{action}")
        assert answer.status == 201
        assert answer.body == project | {"archived": archived, "updated_at": answer.body["updated_at"]}


async def test_lists_of_an_external_user_leave_internal_things_out(forge: Forge) -> None:
    external = await forge.user("external", external=True)
    insider = await forge.user("insider")
    group = await forge.group(visibility="internal")
    project = await forge.project(visibility="internal")
    for path, made in (("/projects", project), ("/groups", group)):
        query = f"{path}?search={made['path']}"
        assert [item["id"] for item in (await insider.api.get(query)).body] == [made["id"]]
        assert (await external.api.get(query)).body == []
        assert (await external.api.get(f"{path}/{made['id']}")).status == 404


async def test_lists_by_role(forge: Forge) -> None:
    """`membership`, `min_access_level` and `owned` look at inherited roles too."""
    alice = await forge.user("alice")
    group = await forge.group(visibility="private")
    subgroup = await forge.group(parent_id=group["id"], visibility="private")
    await forge.member("groups", group["id"], alice, Role.DEVELOPER)
    inherited = await forge.project(namespace_id=subgroup["id"])
    guest = await forge.project(members={Role.GUEST: alice})
    own = await forge.project(alice)
    await forge.project(visibility="public")

    async def ids(query: str, path: str = "/projects") -> list[int]:
        return sorted(item["id"] for item in (await alice.api.get(f"{path}?{query}")).body)

    hers = [inherited["id"], guest["id"], own["id"]]
    assert await ids("membership=true") == hers
    assert await ids("visibility=private") == hers
    assert await ids("min_access_level=30") == [inherited["id"], own["id"]]
    assert await ids("owned=true") == [own["id"]]
    assert await ids("owned=true&min_access_level=10") == [own["id"]]
    below = f"/groups/{group['id']}/projects"
    assert await ids("", below) == []
    assert await ids("include_subgroups=true", below) == [inherited["id"]]
    assert await ids("include_subgroups=true&owned=true", below) == []
    assert await ids("include_subgroups=true&min_access_level=30", below) == [inherited["id"]]
    groups = [group["id"], subgroup["id"]]
    assert await ids("min_access_level=30", "/groups") == groups
    assert await ids("owned=true", "/groups") == []
    assert set(groups) <= set(await ids("per_page=100", "/groups"))


async def test_a_search_takes_every_character_as_itself(forge: Forge) -> None:
    project = await forge.project(name="100% sure_of it", path=f"sure-{forge.settings.port}")
    for text, found in (("100%25+SURE_", True), ("1%25it", False), ("sure%25of", False), ("sureXof", False)):
        listed = (await forge.root.get(f"/projects?search={text}")).body
        assert (project["id"] in [item["id"] for item in listed]) == found, text
