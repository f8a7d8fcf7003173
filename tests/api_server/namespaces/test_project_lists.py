"""Lists of projects: their forms, and what they are searched for."""

from tests.support.deviations import Deviations
from tests.support.forge import Client, Forge


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


#: What strangers ask for, and which of the three projects they are shown.
STRANGERS = [
    ("", ["public"]),
    ("&simple=true", ["public"]),
    ("&visibility=public", ["public"]),
    ("&visibility=internal", []),
    ("&visibility=private", []),
    ("&archived=true", []),
    ("&membership=true", ["public"]),
    ("&owned=true&min_access_level=50", ["public"]),
    ("&order_by=last_activity_at&pagination=keyset", None),
    ("&pagination=keyset&order_by=id", ["public"]),
]


async def test_strangers_see_the_public_projects_with_few_keys(forge: Forge) -> None:
    alice, word = await forge.user("alice"), f"w{forge.settings.port}"
    made = {
        visibility: await forge.project(alice, name=f"{word} {visibility}", visibility=visibility)
        for visibility in ("public", "internal", "private")
    }
    few = (await alice.api.get(f"/projects?simple=true&search={word}&visibility=public")).body
    deviations = Deviations()
    for query, names in STRANGERS:
        with deviations.of(query):
            answer = await forge.anonymous.get(f"/projects?search={word}{query}")
            assert answer.status == (405 if names is None else 200)
            assert names is None or answer.body == (few if names else [])
    assert not deviations, deviations.report
    assert few[0]["id"] == made["public"]["id"]
    assert few[0].keys() == (await alice.api.get("/projects?simple=true&per_page=1")).body[0].keys()
    assert (await Client(forge.session, forge.base, "no-such-token").get("/projects")).status == 401
    assert (await forge.anonymous.get("/projects?sudo=root")).status == 403


async def test_a_search_takes_every_character_as_itself(forge: Forge) -> None:
    project = await forge.project(name="100% sure_of it", path=f"sure-{forge.settings.port}")
    for text, found in (("100%25+SURE_", True), ("1%25it", False), ("sure%25of", False), ("sureXof", False)):
        listed = (await forge.root.get(f"/projects?search={text}")).body
        assert (project["id"] in [item["id"] for item in listed]) == found, text
