"""Releases: what the API shows of them, and making, changing and removing them."""

import asyncio
from pathlib import Path
from typing import Any

import gitlab
import pytest

from tests.api_server.releases.conftest import Scene
from tests.api_server.releases.expected import expected_release, link, sources
from tests.support.ci import ci_project, run
from tests.support.forge import Forge
from tests.support.git_client import Git, git_url

EVENTS = """
    SELECT event_type, author_id, target_details, details ->> 'custom_message' AS message FROM audit_events
    WHERE entity_type = 'Project' AND entity_id = %(id)s AND target_type = 'Release'
        AND details ->> 'custom_message' LIKE %(tag)s ORDER BY id
"""


async def test_a_release_makes_its_tag_and_is_shown_as_gitlab_shows_it(scene: Scene) -> None:
    tag = scene.new_tag()
    sent = {
        "tag_name": tag,
        "ref": "main",
        "tag_message": "The first",
        "name": "First",
        "description": "## Changes",
        "assets": {
            "links": [
                {"name": "notes", "url": "https://example.org/notes", "link_type": "runbook"},
                {"name": "bin", "url": "https://example.org/a/b?c=d", "direct_asset_path": "/bin/app"},
            ]
        },
    }
    made = await scene.api.post(scene.releases, sent)
    assert made.status == 201, made
    body = made.body
    commit = (await scene.api.get(f"{scene.url}/repository/commits/{scene.head}?stats=false")).body
    author = (await scene.api.get(f"/users/{scene.developer.id}")).body
    path = f"/{scene.project['path_with_namespace']}"
    direct = f"{scene.forge.base}/api/v4{scene.releases}/{tag}/downloads/bin/app"
    (bin_id, notes_id) = [link["id"] for link in body["assets"]["links"]]
    expected = expected_release(
        scene,
        tag,
        name="First",
        description="## Changes",
        created_at=body["created_at"],
        released_at=body["created_at"],
        author={key: author[key] for key in body["author"]},
        commit={key: commit[key] for key in body["commit"]},
        commit_path=f"{path}/-/commit/{scene.head}",
        tag_path=f"{path}/-/tags/{tag}",
        links=[
            link(bin_id, "bin", "https://example.org/a/b?c=d", direct_asset_url=direct),
            link(notes_id, "notes", "https://example.org/notes", link_type="runbook"),
        ],
    )
    assert body == expected
    assert list(body) == list(expected)
    assert body["commit"]["id"] == scene.head
    assert (await scene.api.get(f"{scene.releases}/{tag}")).body == body
    for source in body["assets"]["sources"]:
        archive = await scene.forge.root.get(source["url"])
        assert archive.status == 200
        assert f"-{tag}" in archive.headers["Content-Disposition"]


async def test_tags_show_their_releases(scene: Scene) -> None:
    tag = (await scene.release(tag_message="The first", description="## Changes"))["tag_name"]
    made_tag = (await scene.api.get(f"{scene.url}/repository/tags/{tag}")).body
    assert (made_tag["message"], made_tag["release"]) == (
        "The first",
        {"tag_name": tag, "description": "## Changes"},
    )
    listed = await scene.api.get(f"{scene.url}/repository/tags?search={tag}")
    assert [one["release"] for one in listed.body] == [made_tag["release"]]


async def test_a_tag_that_is_there_needs_no_ref_and_gives_its_name(scene: Scene) -> None:
    tag = f"lib/{scene.new_tag()}"
    await scene.api.post(f"{scene.url}/repository/tags", {"tag_name": tag, "ref": "main"})
    made = await scene.api.post(scene.releases, {"tag_name": tag})
    assert (made.status, made.body["name"], made.body["description"]) == (201, tag, None)
    assert made.body["assets"]["sources"] == sources(scene, tag)
    encoded = tag.replace("/", "%2F")
    assert made.body["_links"]["self"] == f"{scene.web}/-/releases/{encoded}"
    assert (await scene.api.get(f"{scene.releases}/{encoded}")).body == made.body
    again = await scene.api.post(scene.releases, {"tag_name": tag})
    assert (again.status, again.body) == (409, {"message": "Release already exists"})


@pytest.mark.parametrize(
    ("sent", "status", "body"),
    [
        ({}, 400, {"error": "tag_name is missing"}),
        ({"tag_name": "nowhere"}, 422, {"message": "Ref is not specified"}),
        ({"tag_name": "no-ref", "ref": "missing"}, 400, {"message": "Target missing is invalid"}),
        ({"tag_name": "a b", "ref": "main"}, 400, {"message": "Tag name invalid"}),
        (
            {"tag_name": "x", "ref": "main", "assets": {"links": [{"name": "a"}]}},
            400,
            {"error": "assets[links][0][url] is missing"},
        ),
        (
            {"tag_name": "x", "ref": "main", "assets": {"links": [{"name": "a", "url": "javascript:x"}]}},
            400,
            {"message": "Validation failed: Links url is blocked: Only allowed schemes are http, https, ftp"},
        ),
        (
            {
                "tag_name": "x",
                "ref": "main",
                "assets": {"links": [{"name": "a", "url": "http://a"}, {"name": "a", "url": "http://b"}]},
            },
            400,
            {"message": "Validation failed: Links have duplicate values (a)"},
        ),
    ],
)
async def test_what_cannot_be_released_is_refused_and_leaves_no_tag(
    scene: Scene, sent: dict[str, Any], status: int, body: Any
) -> None:
    answer = await scene.api.post(scene.releases, sent)
    assert (answer.status, answer.body) == (status, body)
    tags = (await scene.api.get(f"{scene.url}/repository/tags?per_page=100")).body
    assert sent.get("tag_name") not in [tag["name"] for tag in tags]


async def test_a_release_is_changed_and_removed_and_its_tag_stays(scene: Scene) -> None:
    made = await scene.release(description="before")
    url = f"{scene.releases}/{made['tag_name']}"
    later = {"name": "Later", "description": "after", "released_at": "2999-01-02T03:04:05Z"}
    changed = await scene.api.put(url, later)
    assert changed.status == 200, changed
    assert changed.body == made | {
        "name": "Later",
        "description": "after",
        "released_at": "2999-01-02T03:04:05.000Z",
        "upcoming_release": True,
    }
    ignored = await scene.api.put(url, {"milestones": ["1.0"]})
    assert (ignored.status, ignored.body) == (200, changed.body)
    assert ignored.headers["X-Ignored-Parameters"] == "milestones"
    gone = await scene.api.delete(url)
    assert (gone.status, gone.body) == (200, changed.body)
    assert (await scene.api.get(url)).body == {"message": "404 Not Found"}
    for answer in (await scene.api.put(url, {"name": "x"}), await scene.api.delete(url)):
        assert (answer.status, answer.body) == (404, {"message": "Release does not exist"})
    tag = await scene.api.get(f"{scene.url}/repository/tags/{made['tag_name']}")
    assert (tag.status, tag.body["release"]) == (200, None)
    rows = await scene.forge.database.rows(EVENTS, id=scene.project["id"], tag=f"% {made['tag_name']}")
    assert [(row.event_type, row.author_id, row.target_details, row.message) for row in rows] == [
        (event, scene.developer.id, name, f"{deed} release {made['tag_name']}")
        for event, name, deed in (
            ("release_created", made["tag_name"], "Created"),
            ("release_updated", "Later", "Updated"),
            ("release_deleted_audit_event", "Later", "Deleted"),
        )
    ]


async def test_a_release_goes_with_its_tag(scene: Scene, tmp_path: Path) -> None:
    """Removed through the API, or by a push."""
    by_api, by_push = await scene.release(), await scene.release()
    await scene.owner.api.delete(f"{scene.url}/repository/tags/{by_api['tag_name']}")
    git = Git(tmp_path)
    await git.init()
    remote = git_url(scene.forge, scene.project["path_with_namespace"], scene.owner)
    await git("push", "--quiet", remote, f":refs/tags/{by_push['tag_name']}")
    for gone in (by_api, by_push):
        assert (await scene.api.get(f"{scene.releases}/{gone['tag_name']}")).status == 404
        rows = await scene.forge.database.rows(EVENTS, id=scene.project["id"], tag=f"% {gone['tag_name']}")
        assert [(row.event_type, row.author_id) for row in rows] == [
            ("release_created", scene.developer.id),
            ("release_deleted_audit_event", scene.owner.id),
        ]


async def test_no_release_outlives_its_tag_that_is_removed_at_the_same_time(scene: Scene) -> None:
    for _ in range(5):
        tag = scene.new_tag()
        await scene.api.post(f"{scene.url}/repository/tags", {"tag_name": tag, "ref": "main"})
        made, removed = await asyncio.gather(
            scene.api.post(scene.releases, {"tag_name": tag}),
            scene.owner.api.delete(f"{scene.url}/repository/tags/{tag}"),
        )
        assert (made.status in (201, 404, 422), removed.status) == (True, 204), made
        assert (await scene.api.get(f"{scene.releases}/{tag}")).status == 404


async def test_releases_are_listed_by_date_and_the_latest_is_led_to(forge: Forge, scene: Scene) -> None:
    project = await forge.project(scene.owner, initialize_with_readme=True)
    url = f"/projects/{project['id']}/releases"
    none_yet = await scene.owner.api.get(f"{url}/permalink/latest")
    assert (none_yet.status, none_yet.body) == (404, {"message": "404 Not Found"})
    for tag, day in (("b", "02"), ("c", "03"), ("a", "01")):
        sent = {"tag_name": tag, "ref": "main", "released_at": f"2020-01-{day}T00:00:00Z"}
        assert (await scene.owner.api.post(url, sent)).status == 201

    async def names(query: str = "") -> list[str]:
        return [one["tag_name"] for one in (await scene.owner.api.get(f"{url}?{query}")).body]

    assert await names() == ["c", "b", "a"]
    assert await names("sort=asc") == ["a", "b", "c"]
    assert await names("order_by=created_at") == ["a", "c", "b"]
    assert await names("updated_after=2999-01-01T00:00:00Z") == []
    page = await scene.owner.api.get(f"{url}?per_page=2&page=2&include_html_description=false")
    assert ([one["tag_name"] for one in page.body], page.headers["X-Total"]) == (["a"], "3")
    assert page.headers["X-Ignored-Parameters"] == "include_html_description"
    wrong = await scene.owner.api.get(f"{url}?order_by=name")
    assert (wrong.status, wrong.body) == (400, {"error": "order_by does not have a valid value"})
    latest = await scene.owner.api.get(f"{url}/permalink/latest")
    assert (latest.status, latest.headers["Location"]) == (302, f"{forge.base}/api/v4{url}/c")
    below = await scene.owner.api.get(f"{url}/permalink/latest/assets/links")
    assert below.headers["Location"] == f"{forge.base}/api/v4{url}/c/assets/links"


async def test_reporters_read_developers_write_guests_do_neither(scene: Scene) -> None:
    made = await scene.release()
    url = f"{scene.releases}/{made['tag_name']}"
    read = await scene.reporter.api.get(url)
    without_edit = {key: page for key, page in made["_links"].items() if key != "edit_url"}
    assert (read.status, read.body) == (200, made | {"_links": without_edit})
    for answer in (
        await scene.reporter.api.put(url, {"name": "x"}),
        await scene.reporter.api.post(scene.releases, {"tag_name": "x", "ref": "main"}),
        await scene.guest.api.get(url),
        await scene.guest.api.get(scene.releases),
    ):
        assert (answer.status, answer.body) == (403, {"message": "403 Forbidden"})


async def test_a_release_of_a_protected_tag_is_for_those_who_may_make_it(scene: Scene) -> None:
    name = scene.new_tag()
    await scene.owner.api.post(f"{scene.url}/protected_tags", {"name": name})
    refused = await scene.api.post(scene.releases, {"tag_name": name, "ref": "main"})
    words = "You are not allowed to create this tag as it is protected."
    assert (refused.status, refused.body) == (403, {"message": words})
    made = await scene.owner.api.post(scene.releases, {"tag_name": name, "ref": "main"})
    assert made.status == 201, made
    links = {"name": "a", "url": "http://a"}
    for answer in (
        await scene.api.put(f"{scene.releases}/{name}", {"name": "x"}),
        await scene.api.post(f"{scene.releases}/{name}/assets/links", links),
        await scene.api.delete(f"{scene.releases}/{name}"),
    ):
        assert (answer.status, answer.body) == (403, {"message": "403 Forbidden"})


async def test_a_job_makes_a_release_with_its_token(forge: Forge) -> None:
    """As release-cli and glab do in jobs."""
    project = await ci_project(forge)
    job = await project.job()
    headers = {"JOB-TOKEN": await run(forge, job["id"])}
    url = f"{project.url}/releases"
    sent = {"tag_name": "v1", "ref": job["commit"]["id"], "description": "d"}
    made = await forge.anonymous.post(url, sent, headers=headers)
    assert (made.status, made.body["author"]["id"]) == (201, project.developer.id), made
    link = {"name": "a", "url": "http://a"}
    linked = await forge.anonymous.post(f"{url}/v1/assets/links", link, headers=headers)
    assert linked.status == 201, linked
    shown = await forge.anonymous.get(f"{url}/v1", headers=headers)
    assert shown.body["assets"]["links"] == [linked.body]


async def test_python_gitlab_makes_releases(scene: Scene) -> None:
    tag = scene.new_tag()

    def use() -> None:
        with gitlab.Gitlab(scene.forge.base, private_token=scene.developer.token) as client:
            releases = client.projects.get(scene.project["id"]).releases
            made = releases.create({"tag_name": tag, "ref": "main", "description": "first"})
            made.description = "second"
            made.save()
            assert releases.get(tag).description == "second"
            assert tag in [one.tag_name for one in releases.list(get_all=True)]
            link = made.links.create({"name": "bin", "url": "https://example.org/bin"})
            link.url = "https://example.org/new"
            link.save()
            assert [one.url for one in made.links.list(get_all=True)] == ["https://example.org/new"]
            made.links.delete(link.id)
            releases.delete(tag)
            with pytest.raises(gitlab.GitlabGetError):
                releases.get(tag)

    await asyncio.to_thread(use)
