"""Releases and their links: how the API shows, creates, changes and removes them."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import attrs
import gitlab
import pytest

from api_server.web.routes import Role
from tests.support.ci import ci_project, run
from tests.support.forge import Answer, Client, Forge, Person
from tests.support.git_client import Git, git_url
from tests.support.merge_requests import head_of, new_project

_numbers = itertools.count(1)


@attrs.frozen
class Scene:
    """A private project of `owner`, with a developer, a reporter and a guest."""

    forge: Forge
    project: dict[str, Any]
    owner: Person
    developer: Person
    reporter: Person
    guest: Person
    head: str

    @property
    def url(self) -> str:
        return f"/projects/{self.project['id']}"

    @property
    def releases(self) -> str:
        return f"{self.url}/releases"

    @property
    def web(self) -> str:
        return str(self.project["web_url"])

    @property
    def api(self) -> Client:
        return self.developer.api

    def new_tag(self) -> str:
        return f"v{next(_numbers)}.0"

    async def release(self, **values: Any) -> dict[str, Any]:
        """Create a release with its tag."""
        made = await self.api.post(self.releases, {"tag_name": self.new_tag(), "ref": "main"} | values)
        assert made.status == 201, made
        return dict(made.body)

    async def links(self, release: dict[str, Any], **values: Any) -> Answer:
        return await self.api.post(f"{self.releases}/{release['tag_name']}/assets/links", values)


@pytest.fixture(scope="module")
async def scene(forge: Forge) -> Scene:
    owner, developer = await forge.user("owner"), await forge.user("developer")
    reporter, guest = await forge.user("reporter"), await forge.user("guest")
    project = await new_project(forge, owner)
    for person, role in ((developer, Role.DEVELOPER), (reporter, Role.REPORTER), (guest, Role.GUEST)):
        await forge.member("projects", project["id"], person, role)
    head = await head_of(owner.api, project, "main")
    return Scene(forge, project, owner, developer, reporter, guest, head)


_SOURCES = ("zip", "tar.gz", "tar.bz2", "tar")


def sources(scene: Scene, tag: str) -> list[dict[str, str]]:
    name = f"{scene.project['path']}-{tag.replace('/', '-')}"
    return [{"format": one, "url": f"{scene.web}/-/archive/{tag}/{name}.{one}"} for one in _SOURCES]


def _pages(scene: Scene, tag: str) -> dict[str, str]:
    web = scene.web
    filters = f"release_tag={tag}&scope=all&state="
    return {
        "closed_issues_url": f"{web}/-/issues?{filters}closed",
        "closed_merge_requests_url": f"{web}/-/merge_requests?{filters}closed",
        "edit_url": f"{web}/-/releases/{tag}/edit",
        "merged_merge_requests_url": f"{web}/-/merge_requests?{filters}merged",
        "opened_issues_url": f"{web}/-/issues?{filters}opened",
        "opened_merge_requests_url": f"{web}/-/merge_requests?{filters}opened",
        "self": f"{web}/-/releases/{tag}",
    }


def link(link_id: int, name: str, url: str, **values: Any) -> dict[str, Any]:
    return {"id": link_id, "name": name, "url": url, "direct_asset_url": url, "link_type": "other"} | values


def expected_release(scene: Scene, tag: str, links: list[Any], **values: Any) -> dict[str, Any]:
    """Return the expected release, in GitLab's order of keys."""
    keys = ("created_at", "released_at", "upcoming_release", "author", "commit", "commit_path", "tag_path")
    given = {"tag_name": tag, "upcoming_release": False} | values
    return {
        **{key: given[key] for key in ("name", "tag_name", "description", *keys)},
        "assets": {"count": 4 + len(links), "sources": sources(scene, tag), "links": links},
        "evidences": [],
        "_links": _pages(scene, tag),
    }


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
    """The tag is removed through the API, or by a push."""
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
    """release-cli and glab do this in jobs."""
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


#: A text that compression does not make much shorter.
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
    for too_many in (links, links[:1] * (most + 1)):  # not looked at any further
        refused = await scene.api.post(scene.releases, sent | {"assets": {"links": too_many}})
        assert (refused.status, refused.body) == (400, refusal)
    release = await scene.release(assets={"links": links[: most - 2]})
    assert release["assets"]["count"] == most + 2
    added = await asyncio.gather(
        *(scene.links(release, name=f"more {number}", url=f"http://more/{number}") for number in range(5))
    )
    assert sorted(answer.status for answer in added) == [201] * 2 + [400] * 3
    assert all(answer.body == refusal for answer in added if answer.status == 400)
