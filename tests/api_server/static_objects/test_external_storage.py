"""Users go to the external storage where one is configured, and it comes for them."""

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from api_server.web.routes import Role
from tests.api_server.static_objects.places import new_place
from tests.support.forge import Forge

STORAGE_TOKEN = "storage-token-of-the-tests"


@pytest.fixture
async def stored(forge: Forge) -> AsyncIterator[Forge]:
    """A server with an external storage configured."""
    storage = {
        "static_objects_external_storage_url": "https://cdn.example.org",
        "static_objects_external_storage_auth_token": STORAGE_TOKEN,
    }
    with forge.changed_settings(raw_rate_limit=1):
        async with forge.instance_settings(**storage):
            yield forge


async def test_users_are_sent_to_the_external_storage(stored: Forge, tmp_path: Path) -> None:
    place = await new_place(stored, tmp_path / "public", "public")
    answer = await place.get("/-/raw/main/b%C3%BCro.xhtml?inline=false&foo=bar&token=flso-x")
    assert answer.status == 401  # a token that is not valid is never passed on
    answer = await place.get("/-/raw/main/b%c3%bcro%2Exhtml?inline=false&foo=bar")
    assert (answer.status, answer.headers["Location"]) == (
        302,
        f"https://cdn.example.org/{place.path}/-/raw/main/b%c3%bcro%2Exhtml?inline=false",
    )


async def test_the_redirect_of_a_private_object_carries_the_users_own_token(
    stored: Forge, tmp_path: Path
) -> None:
    place = await new_place(stored, tmp_path / "private", "private")
    bob = await stored.user("bob")
    await stored.member("projects", place.project["id"], bob, Role.REPORTER)
    assert (await place.get("/-/archive/main/x.zip")).status == 404  # a stranger never gets a redirect
    answer = await place.get("/-/archive/main/x.zip?append_sha=true", bob)
    location = urlsplit(answer.headers["Location"])
    query = parse_qs(location.query)
    assert (answer.status, location.netloc, location.path) == (
        302,
        "cdn.example.org",
        f"/{place.path}/-/archive/main/x.zip",
    )
    assert (query["append_sha"], query["token"][0][:5]) == (["true"], "flso-")
    storage = {"X-Service-External-Storage-Token": STORAGE_TOKEN}
    token = {"X-Service-Static-Object-Token": query["token"][0]}
    path = "/-/raw/main/README.md"
    for _ in range(3):  # beyond the rate limit, which the storage does not meet
        assert (await place.get(path, headers=storage | token)).body == "# Hello\n"
    assert (await place.get(path, headers=storage)).status == 404
    wrong = {"X-Service-External-Storage-Token": "wrong"}
    assert (await place.get(path, headers=wrong | token)).status == 403
    await stored.root.post(f"/users/{bob.id}/block")
    assert (await place.get(path, headers=storage | token)).status == 403
