"""Links of releases: their rules in GitLab's words, and where direct paths lead."""

import asyncio
from typing import Any

import pytest

from tests.api_server.releases.conftest import Scene

#: A text that no compression makes much shorter.
MANY_BYTES = "".join(map(chr, range(0x4E00, 0x4E00 + 2000)))
TAKEN = ["has already been taken"]


async def test_a_link_is_added_shown_changed_and_removed(scene: Scene) -> None:
    release = await scene.release()
    url = "https://example.org/%7Ebin/./x?sig=a%2Fb%3D"
    made = await scene.links(release, name="bin", url=url, filepath="/bin")
    address = f"{scene.forge.base}/api/v4{scene.releases}/{release['tag_name']}/downloads/bin"
    expected = {
        "id": made.body["id"],
        "name": "bin",
        "url": url,
        "direct_asset_url": address,
        "link_type": "other",
    }
    assert (made.status, made.body) == (201, expected)
    assert list(made.body) == list(expected)
    followed = await scene.reporter.api.get(address)
    assert (followed.status, followed.headers["Location"]) == (302, url)
    second = await scene.links(release, name="image", url="ftp://example.org/i", link_type="image")
    url = f"{scene.releases}/{release['tag_name']}/assets/links"
    assert (await scene.reporter.api.get(url)).body == [second.body, made.body]
    assert (await scene.reporter.api.get(f"{url}/{made.body['id']}")).body == made.body
    changed = await scene.api.put(f"{url}/{made.body['id']}", {"name": "app", "link_type": "package"})
    assert (changed.status, changed.body) == (200, made.body | {"name": "app", "link_type": "package"})
    gone = await scene.api.delete(f"{url}/{made.body['id']}")
    assert (gone.status, gone.body) == (200, changed.body)
    for answer in (
        await scene.api.delete(f"{url}/{made.body['id']}"),
        await scene.reporter.api.get(address),
        await scene.reporter.api.get(f"{scene.releases}/missing/assets/links"),
    ):
        assert (answer.status, answer.body) == (404, {"message": "404 Not found"})


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        ({"name": "x"}, {"error": "url is missing"}),
        ({"name": "", "url": "http://x"}, {"error": "name is empty"}),
        (
            {"name": "x", "url": "http://x", "link_type": "y"},
            {"error": "link_type does not have a valid value"},
        ),
        ({"name": "taken", "url": "http://x"}, {"message": {"name": TAKEN}}),
        ({"name": "x", "url": "http://taken"}, {"message": {"url": TAKEN}}),
        (
            {"name": "x", "url": "http://x", "direct_asset_path": "/taken"},
            {"message": {"filepath": TAKEN}},
        ),
        ({"name": "x", "url": "http://"}, {"message": {"url": ["is blocked: URI is invalid"]}}),
        ({"name": "x", "url": "http://a:b/"}, {"message": {"url": ["is blocked: URI is invalid"]}}),
        *(
            ({"name": "x", "url": url}, {"message": {"url": ["is blocked: URI is invalid"]}})
            for url in (
                "http://a\nb",
                "http://a:99999/",
                "http://a\\b/",
                "http://[::1]x/",
                "http://\xe9..com/",
            )
        ),
        (
            {"name": "x", "url": f"http://x/{MANY_BYTES}"},
            {"error": "url is too long (maximum is 2048 characters)"},
        ),
        (
            {"name": "x", "url": "file:///etc/passwd"},
            {"message": {"url": ["is blocked: Only allowed schemes are http, https, ftp"]}},
        ),
        *(
            ({"name": "x", "url": "http://x", "filepath": path}, {"message": {"filepath": ["is invalid"]}})
            for path in ("bin", "/bin/", "//bin", "/a b", "/bin-", "/b\u00fc/n")
        ),
        (
            {"name": "x", "url": "http://x", "filepath": "/" + "x" * 128},
            {"message": {"filepath": ["is too long (maximum is 128 characters)"]}},
        ),
    ],
)
async def test_a_link_that_cannot_be_is_refused(
    scene: Scene, refusing: dict[str, Any], sent: dict[str, Any], body: Any
) -> None:
    answer = await scene.links(refusing, **sent)
    assert (answer.status, answer.body) == (400, body)
    url = f"{scene.releases}/{refusing['tag_name']}/assets/links"
    assert len((await scene.api.get(url)).body) == 1


@pytest.fixture(scope="module")
async def refusing(scene: Scene) -> dict[str, Any]:
    """A release with one link."""
    link = {"name": "taken", "url": "http://taken", "direct_asset_path": "/taken"}
    return await scene.release(assets={"links": [link]})


async def test_a_change_keeps_to_the_rules_too(scene: Scene) -> None:
    release = await scene.release()
    first = await scene.links(release, name="a", url="http://a")
    await scene.links(release, name="b", url="http://b")
    url = f"{scene.releases}/{release['tag_name']}/assets/links/{first.body['id']}"
    for sent, body in (
        ({}, {"error": "name, url are missing, at least one parameter must be provided"}),
        ({"name": "b"}, {"message": {"name": TAKEN}}),
        ({"url": "x:y"}, {"message": {"url": ["is blocked: Only allowed schemes are http, https, ftp"]}}),
    ):
        answer = await scene.api.put(url, sent)
        assert (answer.status, answer.body) == (400, body)
    assert (await scene.api.get(url)).body == first.body


async def test_a_release_has_only_so_many_links_however_many_come_at_once(scene: Scene) -> None:
    most = scene.forge.settings.release_links_limit
    links = [{"name": str(number), "url": f"http://{number}"} for number in range(most + 1)]
    sent = {"tag_name": scene.new_tag(), "ref": "main", "assets": {"links": links}}
    refusal = {"message": f"Validation failed: Links are too many (maximum is {most})"}
    for too_many in (links, links[:1] * (most + 1)):  # looked at no further
        refused = await scene.api.post(scene.releases, sent | {"assets": {"links": too_many}})
        assert (refused.status, refused.body) == (400, refusal)
    release = await scene.release(assets={"links": links[: most - 2]})
    assert release["assets"]["count"] == most + 2
    added = await asyncio.gather(
        *(scene.links(release, name=f"more {number}", url=f"http://more/{number}") for number in range(5))
    )
    assert sorted(answer.status for answer in added) == [201] * 2 + [400] * 3
    assert all(answer.body == refusal for answer in added if answer.status == 400)
