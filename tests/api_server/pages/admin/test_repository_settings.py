"""The page on which an administrator sets the external storage of static objects."""

from tests.api_server.pages.admin.conftest import Scene
from tests.support.browser import Browser

PATH = "/admin/application_settings/repository"
URL = "static_objects_external_storage_url"
TOKEN = "static_objects_external_storage_auth_token"


async def test_an_administrator_sets_the_external_storage(scene: Scene, boss: Browser) -> None:
    await boss.get(PATH)
    await boss.send(PATH, **{URL: "https://cdn.example.org", TOKEN: ""})
    assert (boss.status, boss.path) == (400, PATH)
    assert "External storage authentication token can&#39;t be blank." in boss.text
    assert 'value="https://cdn.example.org"' in boss.text
    await boss.send(PATH, **{URL: "https://cdn.example.org", TOKEN: "hidden-token"})
    assert (boss.status, boss.path) == (200, PATH)
    assert "The settings are saved." in boss.text
    assert "hidden-token" not in boss.text
    shown = (await scene.forge.root.get("/application/settings")).body
    assert (shown[URL], shown[TOKEN]) == ("https://cdn.example.org", "hidden-token")
    await boss.send(PATH, **{URL: "", TOKEN: ""})
    assert (await scene.forge.root.get("/application/settings")).body[URL] is None
