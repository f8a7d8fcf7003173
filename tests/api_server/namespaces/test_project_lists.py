"""Lists of projects: their forms, and what they are searched for."""

from tests.support.forge import Forge


async def test_simple_lists_have_few_keys(forge: Forge) -> None:
    group = await forge.group(alice := await forge.user("alice"))
    project = await forge.project(alice, namespace_id=group["id"])
    for path in (
        f"/groups/{group['id']}/projects?",
        "/projects?",
        "/projects?owned=true&",
        "/projects?visibility=private&",
    ):
        full = (await alice.api.get(f"{path}per_page=1")).body[0]
        listed = await alice.api.get(f"{path}per_page=1&simple=true")
        assert (full["id"], listed.headers.get("X-Ignored-Parameters")) == (project["id"], None)
        assert listed.body == [{key: full[key] for key in listed.body[0]}]
        assert len(listed.body[0]) == 20
        assert {"_links", "permissions", "owner"}.isdisjoint(listed.body[0])


async def test_a_search_takes_every_character_as_itself(forge: Forge) -> None:
    project = await forge.project(name="100% sure_of it", path=f"sure-{forge.settings.port}")
    for text, found in (("100%25+SURE_", True), ("1%25it", False), ("sure%25of", False), ("sureXof", False)):
        listed = (await forge.root.get(f"/projects?search={text}")).body
        assert (project["id"] in [item["id"] for item in listed]) == found, text
