"""The page on which an administrator sets the external storage of static objects."""

from typing import Any

from tests.support.browser import PASSWORD, browsing


async def test_an_administrator_sets_the_external_storage_on_a_page(new_forge: Any) -> None:
    path = "/admin/application_settings/repository"
    async with new_forge() as forge:
        boss = await forge.user("boss", admin=True, force_random_password=False, password=PASSWORD)
        clerk = await forge.user("clerk", force_random_password=False, password=PASSWORD)
        async with browsing(forge) as browser:
            assert (await browser.get(path)).path == "/-/sign_in"
            await browser.sign_in(clerk)
            assert (await browser.get(path)).status == 403
        async with browsing(forge) as browser:
            await browser.sign_in(boss, return_to=path)
            assert (browser.title, browser.path) == ("Repository settings", path)
            fields = {"static_objects_external_storage_url": "https://cdn.example.org"}
            await browser.send(path, **fields)
            assert "External storage authentication token can&#39;t be blank." in browser.text
            assert 'value="https://cdn.example.org"' in browser.text
            await browser.send(path, **fields, static_objects_external_storage_auth_token="hidden-token")
            assert "The settings are saved." in browser.text
            assert "hidden-token" not in browser.text
        shown = (await forge.root.get("/application/settings")).body
        assert shown["static_objects_external_storage_url"] == "https://cdn.example.org"
        assert shown["static_objects_external_storage_auth_token"] == "hidden-token"
