"""The storage edges on their page: how each is, what it has stored, and forgetting."""

from typing import Any

from tests.api_server.pages.admin.conftest import PURGE_TOKEN, STORAGE_TOKEN, Scene, running_edge
from tests.support.browser import PASSWORD, Browser, browsing
from tests.support.ports import free_port


async def _stored(scene: Scene, name: str) -> str:
    """The path of a public file that the edge has stored under that name, and given out once more."""
    settings = {
        "static_objects_external_storage_url": scene.edge,
        "static_objects_external_storage_auth_token": STORAGE_TOKEN,
    }
    assert (await scene.forge.root.put("/application/settings", settings)).status == 200
    project = await scene.forge.project(visibility="public", initialize_with_readme=True)
    path = f"/{project['path_with_namespace']}/-/raw/main/README.md?inline={name}"
    for _ in range(2):
        assert (await scene.forge.anonymous.get(f"{scene.edge}{path}")).status == 200
    return path


async def test_an_edge_tells_how_it_is_and_what_it_has_stored(scene: Scene, boss: Browser) -> None:
    path = await _stored(scene, "true")
    await boss.get("/admin/edges")
    assert scene.edge in boss.text
    for told in ("reached", "token right", "hit 1"):
        assert told in boss.text
    await boss.get(f"/admin/edges?edge=0&prefix={path.partition('/-/')[0]}")
    assert path in boss.text
    await boss.get("/admin/edges?edge=0&prefix=/nothing/like/that")
    assert "Nothing is stored there." in boss.text


async def test_what_is_purged_is_not_stored_any_more(scene: Scene, boss: Browser) -> None:
    path = await _stored(scene, "false")
    prefix = path.partition("/-/")[0]
    await boss.get(f"/admin/edges?edge=0&prefix={prefix}")
    await boss.send("/admin/edges/purge", edge="0", prefix=prefix)
    assert "are not served any more" in boss.text
    assert "Nothing is stored there." in boss.text


async def test_an_edge_that_does_not_exist_is_not_purged(boss: Browser) -> None:
    await boss.get("/admin/edges")
    await boss.send("/admin/edges/purge", edge="7", prefix="/")
    assert "Not all was purged. There is no such edge: the setting edge_urls names them." in boss.text


async def test_what_is_wrong_with_an_edge_is_said(new_forge: Any) -> None:
    """Of three: nobody is there, it has another token, it has none."""
    nobody = f"http://127.0.0.1:{free_port()}"
    async with (
        running_edge({"purge_token": f"another-{PURGE_TOKEN}"}) as other,
        running_edge({}) as none,
        new_forge(edge_urls=[nobody, other, none], edge_purge_token=PURGE_TOKEN) as forge,
        browsing(forge) as browser,
    ):
        await browser.sign_in(await forge.user("boss", admin=True, password=PASSWORD))
        await browser.get("/admin/edges")
        for told in ("It cannot be reached: ", "It refuses our token: ", "It has no such route: "):
            assert told in browser.text
