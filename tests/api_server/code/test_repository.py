"""Repositories through the API: commits, trees, branches and tags, and who may read them."""

import asyncio
import subprocess
from typing import Any

import gitlab
import pytest
from pygit2 import Signature
from pygit2.enums import ObjectType

from api_server.web.routes import Role
from tests.support.ci import ONE_JOB, ci_project
from tests.support.deviations import Deviations
from tests.support.forge import Forge, Person
from tests.support.merge_requests import commit, head_of


async def titles(alice: Person, project: dict[str, Any], query: str = "") -> list[str]:
    answer = await alice.api.get(f"{project['url']}/commits?{query}", expect=200)
    return [one["title"] for one in answer.body]


async def test_commits_newest_first_by_ref_path_and_author(alice: Person, project: dict[str, Any]) -> None:
    everything = ["Merge side", "Second", "On the side", "First"]
    assert sorted(await titles(alice, project)) == sorted(everything)
    assert (await titles(alice, project))[0] == "Merge side"
    assert await titles(alice, project, "ref_name=side") == ["On the side", "First"]
    assert await titles(alice, project, "first_parent=true") == ["Merge side", "Second", "First"]
    assert await titles(alice, project, "path=src/a.py") == ["On the side", "First"]
    assert await titles(alice, project, "path=src/*.py") == []
    assert await titles(alice, project, "author=alice%40example.org&ref_name=side") == [
        "On the side",
        "First",
    ]
    assert await titles(alice, project, "author=%5B") == []
    assert await titles(alice, project, "until=2001-01-01T00:00:00Z") == []
    assert len(await titles(alice, project, "since=2001-01-01T00:00:00Z")) == 4
    assert len(await titles(alice, project, "all=true&order=topo")) == 4
    head = await head_of(alice.api, project, "side")
    assert await titles(alice, project, f"ref_name={head}") == ["On the side", "First"]


#: Titles by range, or the status of an invalid one.
RANGES: dict[str, list[str] | int] = {
    "side..main": ["Merge side", "Second"],
    "refs/heads/side..HEAD": ["Merge side", "Second"],
    "main..side": [],
    "{second}..side": ["On the side"],
    "{second}...side": ["Second", "On the side"],
    "side...{second}": ["Second", "On the side"],
    "side..": ["Merge side", "Second"],
    "..side": [],
    "side..nowhere": 404,
    "nowhere..side": 404,
    "side..main..side": 404,
    "..": 404,
    "...": 404,
    "side....main": 404,
    "^side": 404,
}


async def test_commits_of_a_range(alice: Person, project: dict[str, Any]) -> None:
    second = await project["git"]("rev-parse", "main^")
    told: dict[str, list[str] | int] = {}
    for named in RANGES:
        url = f"{project['url']}/commits?ref_name={named.format(second=second)}"
        answer = await alice.api.get(url)
        told[named] = answer.status
        if answer.status == 200:
            told[named] = sorted(
                (one["title"] for one in answer.body), key=["Merge side", "Second", "On the side"].index
            )
    assert told == RANGES
    paged = await alice.api.get(
        f"{project['url']}/commits?ref_name=side..main&per_page=1&page=2&with_stats=true"
    )
    assert [(one["title"], one["stats"]["total"]) for one in paged.body] == [("Second", 3)]


async def test_pages_of_commits_say_whether_there_are_more_but_not_how_many(
    alice: Person, project: dict[str, Any]
) -> None:
    answer = await alice.api.get(f"{project['url']}/commits?per_page=3")
    assert (len(answer.body), answer.headers["X-Next-Page"]) == (3, "2")
    assert "X-Total" not in answer.headers
    rest = await alice.api.get(f"{project['url']}/commits?per_page=3&page=2")
    assert ([one["title"] for one in rest.body], rest.headers["X-Next-Page"]) == (["First"], "")
    beyond = await alice.api.get(f"{project['url']}/commits?page=9223372036854775807")
    assert (beyond.status, beyond.body) == (200, [])


async def test_commits_of_nothing(forge: Forge, alice: Person, project: dict[str, Any]) -> None:
    missing = await alice.api.get(f"{project['url']}/commits?ref_name=gone")
    assert (missing.status, missing.body) == (404, {"message": "404 Reference Not Found"})
    empty = await forge.project(alice)
    answer = await alice.api.get(f"/projects/{empty['id']}/repository/commits")
    assert (answer.status, answer.body) == (200, [])


async def test_one_commit_with_what_it_changed(forge: Forge, alice: Person, project: dict[str, Any]) -> None:
    sha = await head_of(alice.api, project, "side")
    answer = await alice.api.get(f"{project['url']}/commits/side", expect=200)
    (listed,) = (
        await alice.api.get(f"{project['url']}/commits?ref_name=side&per_page=1&with_stats=true")
    ).body
    more = {"status": None, "project_id": project["id"], "last_pipeline": None}
    assert answer.body == listed | more
    assert answer.body["id"] == sha
    assert answer.body["stats"] == {"additions": 1, "deletions": 0, "total": 1}
    assert answer.body["web_url"] == f"{project['web_url']}/-/commit/{sha}"
    assert "stats" not in (await alice.api.get(f"{project['url']}/commits/{sha}?stats=false")).body
    first = (await alice.api.get(f"{project['url']}/commits/{listed['parent_ids'][0]}")).body
    assert first["stats"] == {"additions": 3, "deletions": 0, "total": 3}
    gone = await alice.api.get(f"{project['url']}/commits/gone")
    assert (gone.status, gone.body) == (404, {"message": "404 Commit Not Found"})


async def test_a_commit_shows_its_last_pipeline(forge: Forge) -> None:
    project = await ci_project(forge, visibility="public")
    pipeline = await project.pipeline(ONE_JOB)
    where = f"{project.url}/repository/commits/{pipeline['sha']}"
    shown = (await project.api.get(where)).body
    (listed,) = (await project.api.get(f"{project.url}/pipelines?sha={pipeline['sha']}&per_page=1")).body
    assert (shown["status"], shown["last_pipeline"]) == ("pending", listed)
    await forge.root.put(project.url, {"public_jobs": False})
    stranger = await forge.user()
    assert (await stranger.api.get(where)).body["last_pipeline"] is None


async def test_a_folder_and_all_below_it(alice: Person, project: dict[str, Any]) -> None:
    async def paths(query: str = "") -> list[tuple[str, str]]:
        answer = await alice.api.get(f"{project['url']}/tree?{query}", expect=200)
        return [(one["type"], one["path"]) for one in answer.body]

    assert await paths() == [("tree", "src"), ("blob", "README.md")]
    assert await paths("path=src/") == [("tree", "src/deep"), ("blob", "src/a.py")]
    assert await paths("recursive=true&ref=side") == [
        ("tree", "src"), ("tree", "src/deep"), ("blob", "README.md"), ("blob", "src/a.py"),
        ("blob", "src/deep/b.py"),
    ]  # fmt: skip
    page = await alice.api.get(f"{project['url']}/tree?recursive=true&per_page=2&page=2")
    assert (page.headers["X-Total"], page.headers["X-Next-Page"]) == ("5", "3")
    (first, *_) = (await alice.api.get(f"{project['url']}/tree")).body
    assert first == {"id": first["id"], "name": "src", "type": "tree", "path": "src", "mode": "040000"}
    for query, thing in (
        ("ref=gone", "Tree"),
        ("path=gone", "invalid revision or path"),
        ("path=README.md", "invalid revision or path"),
    ):
        missing = await alice.api.get(f"{project['url']}/tree?{query}")
        assert (missing.status, missing.body) == (404, {"message": f"404 {thing} Not Found"})


async def test_tags_are_made_and_removed(forge: Forge, alice: Person, project: dict[str, Any]) -> None:
    sha = await head_of(alice.api, project, "side")
    light = await alice.api.post(f"{project['url']}/tags", {"tag_name": "v1", "ref": "side"}, expect=201)
    assert (light.body["name"], light.body["target"], light.body["message"]) == ("v1", sha, "")
    assert light.body["commit"]["id"] == sha
    note = {"tag_name": "v2/final", "ref": sha, "message": "Release\nNotes"}
    annotated = await alice.api.post(f"{project['url']}/tags", note)
    assert annotated.body["message"] == "Release\nNotes"
    assert annotated.body["target"] != sha == annotated.body["commit"]["id"]
    assert annotated.body == (await alice.api.get(f"{project['url']}/tags/v2%2Ffinal")).body
    await project["git"]("fetch", "--quiet", "--tags", project["remote"])
    assert await project["git"]("tag", "--list") == "v1\nv2/final"
    for wanted, problem in (
        ({"tag_name": "v1", "ref": "main"}, "Tag v1 already exists"),
        ({"tag_name": "v3", "ref": "gone"}, "Target gone is invalid"),
        ({"tag_name": "a..b", "ref": "main"}, "Tag name invalid"),
        ({"tag_name": "v1/below", "ref": "main"}, "Tag v1/below already exists"),
    ):
        refused = await alice.api.post(f"{project['url']}/tags", wanted)
        assert (refused.status, refused.body) == (400, {"message": problem})
    assert (await alice.api.delete(f"{project['url']}/tags/v2%2Ffinal")).status == 204
    gone = await alice.api.delete(f"{project['url']}/tags/v2%2Ffinal")
    assert (gone.status, gone.body) == (404, {"message": "404 Tag Not Found"})
    assert [one["name"] for one in (await alice.api.get(f"{project['url']}/tags")).body] == ["v1"]


async def test_no_branch_and_no_tag_of_an_archived_project_moves(
    alice: Person, project: dict[str, Any]
) -> None:
    await alice.api.post(f"{project['url']}/tags", {"tag_name": "v1", "ref": "side"})
    assert (await alice.api.post(f"/projects/{project['id']}/archive")).status == 201
    for moved in (
        await alice.api.post(f"{project['url']}/branches", {"branch": "new", "ref": "main"}),
        await alice.api.delete(f"{project['url']}/branches/side"),
        await alice.api.post(f"{project['url']}/tags", {"tag_name": "v2", "ref": "main"}),
        await alice.api.delete(f"{project['url']}/tags/v1"),
    ):
        assert moved.status == 403, moved


async def test_a_tag_makes_a_pipeline_as_a_pushed_one_does(forge: Forge) -> None:

    project = await ci_project(forge)
    await project.commit(ONE_JOB, message="Run")
    await project.api.post(
        f"{project.url}/repository/tags", {"tag_name": "v1", "ref": "topic", "message": "m"}, expect=201
    )

    (pipeline,) = await project.api.until(f"{project.url}/pipelines?ref=v1")
    assert pipeline["source"] == "push"


READS = (
    "commits", "commits/main", "commits/main/diff", "compare?from=main&to=main", "tree", "branches", "branches/main",
    "tags", "files/README.md?ref=main", "files/README.md/raw?ref=main", "archive.tar",
)  # fmt: skip


@pytest.mark.parametrize(
    ("visibility", "role", "status"),
    [
        ("private", Role.GUEST, 403),
        ("private", Role.REPORTER, 200),
        ("internal", None, 200),
        ("public", None, 200),
        ("public", Role.GUEST, 200),
    ],
)
async def test_who_may_read_a_repository(
    forge: Forge, alice: Person, visibility: str, role: Role | None, status: int
) -> None:
    """Everybody who may clone it; guests of private projects see that a repository exists, but not its content."""
    project = await forge.project(alice, visibility=visibility)
    await commit(alice.api, project, "main", "README.md")
    reader = await forge.user()
    if role is not None:
        await forge.member("projects", project["id"], reader, role)
    where = f"/projects/{project['id']}/repository"
    assert {read: (await reader.api.get(f"{where}/{read}")).status for read in READS} == dict.fromkeys(
        READS, status
    )
    await forge.root.put(f"/projects/{project['id']}", {"repository_access_level": "disabled"})
    assert {(await reader.api.get(f"{where}/{read}")).status for read in READS} == {403}


async def test_python_gitlab_reads_a_repository(forge: Forge, alice: Person, project: dict[str, Any]) -> None:
    def walk() -> None:
        found = gitlab.Gitlab(forge.base, private_token=alice.token).projects.get(project["id"])
        assert len(list(found.commits.list(iterator=True, per_page=2, ref_name="main"))) == 4
        assert found.commits.get("main").stats["total"] > 0
        assert len(found.repository_tree(recursive=True, get_all=True)) == 5
        found.tags.create({"tag_name": "v1", "ref": "main"})
        found.tags.get("v1").delete()
        action = {"action": "create", "file_path": "new.txt", "content": "x"}
        made = found.commits.create({"branch": "main", "commit_message": "New", "actions": [action]})
        assert made.title == "New"

    await asyncio.to_thread(walk)


async def test_several_files_are_one_commit(forge: Forge, alice: Person, project: dict[str, Any]) -> None:
    actions = [
        {"action": "create", "file_path": "bin/run", "content": "IyE=", "encoding": "base64"},
        {"action": "chmod", "file_path": "bin/run", "execute_filemode": True},
        {"action": "update", "file_path": "README.md", "content": "three\n"},
        {"action": "move", "file_path": "src/c.py", "previous_path": "src/a.py"},
        {"action": "delete", "file_path": "src/deep/b.py"},
    ]
    wanted = {"branch": "new", "start_branch": "side", "commit_message": "All at once", "actions": actions}
    made = await alice.api.post(
        f"{project['url']}/commits", wanted | {"author_email": "bob@example.org"}, expect=201
    )
    assert made.body == (await alice.api.get(f"{project['url']}/commits/new")).body
    assert (made.body["title"], made.body["author_email"]) == ("All at once", "bob@example.org")
    assert made.body["parent_ids"] == [await head_of(alice.api, project, "side")]
    tree = (await alice.api.get(f"{project['url']}/tree?ref=new&recursive=true")).body
    assert [(one["path"], one["mode"]) for one in tree if one["type"] == "blob"] == [
        ("README.md", "100644"), ("bin/run", "100755"), ("src/c.py", "100644"),
    ]  # fmt: skip
    moved = await alice.api.get(f"{project['url']}/files/src%2Fc.py/raw?ref=new")
    assert moved.body == "a\nmore\n"


async def test_a_commit_with_one_impossible_action_is_not_made(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    base = {"branch": "side", "commit_message": "No"}
    good = {"action": "create", "file_path": "new.txt", "content": "x"}
    head = await head_of(alice.api, project, "side")
    for bad, problem in (
        (
            {"action": "create", "file_path": "README.md"},
            "A file or folder named 'README.md' already exists.",
        ),
        ({"action": "update", "file_path": "gone"}, "A file named 'gone' does not exist."),
        (
            {"action": "move", "file_path": "b", "previous_path": "gone"},
            "A file named 'gone' does not exist.",
        ),
        ({"action": "chmod", "file_path": "gone"}, "A file named 'gone' does not exist."),
        ({"action": "create", "file_path": "../x"}, "'../x' is not a valid path for a file."),
    ):
        refused = await alice.api.post(f"{project['url']}/commits", base | {"actions": [good, bad]})
        assert (refused.status, refused.body) == (400, {"message": problem})
    assert await head_of(alice.api, project, "side") == head
    missing = await alice.api.post(f"{project['url']}/commits", base)
    assert (missing.status, missing.body) == (400, {"error": "actions is missing"})
    bob = await forge.new_member(project["id"], Role.DEVELOPER, "bob")
    protected = await bob.api.post(f"{project['url']}/commits", base | {"branch": "main", "actions": [good]})
    assert protected.status == 403


async def test_a_branch_is_made_shown_listed_and_removed(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    url = f"{project['url']}/branches"
    made = await alice.api.post(url, {"branch": "topic/one", "ref": "side"})
    commit = (await alice.api.get(f"{project['url']}/commits/side")).body
    shown = {
        "name": "topic/one",
        "commit": {key: commit[key] for key in made.body["commit"]},
        "merged": True,
        "protected": False,
        "developers_can_push": False,
        "developers_can_merge": False,
        "can_push": True,
        "default": False,
        "web_url": f"{forge.base}/{project['path_with_namespace']}/-/tree/topic/one",
    }
    assert (made.status, made.body) == (201, shown)
    assert (await alice.api.get(f"{url}/topic%2Fone")).body == shown
    listed = (await alice.api.get(url)).body
    assert [branch["name"] for branch in listed] == ["main", "side", "topic/one"]
    assert listed[2] | {"commit": shown["commit"]} == shown
    main = (await alice.api.get(f"{url}/main")).body
    assert (main["default"], main["protected"], main["developers_can_push"]) == (True, True, False)
    change = {"branch": "topic/one", "content": "x", "commit_message": "Go on"}
    await alice.api.post(f"{project['url']}/files/x", change, expect=201)
    assert [each["merged"] for each in (await alice.api.get(url)).body] == [False, True, False]
    assert (await alice.api.get(f"{url}/topic%2Fone")).body["merged"] is False
    assert (await alice.api.delete(f"{url}/topic%2Fone")).status == 204
    assert (await alice.api.get(f"{url}/topic%2Fone")).status == 404


#: Method, path below the branches, body; the answer.
REFUSED: list[tuple[str, str, dict[str, str] | None, int, dict[str, str]]] = [
    ("POST", "", {"branch": "new", "ref": "none"}, 400, {"message": "Invalid reference name: none"}),
    ("POST", "", {"branch": "side", "ref": "main"}, 400, {"message": "Branch already exists"}),
    ("POST", "", {"branch": "new"}, 400, {"error": "ref is missing"}),
    ("POST", "", {"ref": "main"}, 400, {"error": "branch is missing"}),
    ("GET", "/none", None, 404, {"message": "404 Branch Not Found"}),
    ("DELETE", "/none", None, 404, {"message": "404 Branch Not Found"}),
    ("DELETE", "/main", None, 400, {"message": "The default branch of a project cannot be deleted."}),
]


async def test_what_cannot_be_is_refused_in_gitlabs_words(alice: Person, project: dict[str, Any]) -> None:
    url, deviations = f"{project['url']}/branches", Deviations()
    for method, path, body, status, told in REFUSED:
        with deviations.of(f"{method} {path} {body}"):
            answer = await alice.api.request(method, f"{url}{path}", json=body)
            assert (answer.status, answer.body) == (status, told)
    assert not deviations, deviations.report


async def test_a_branch_of_an_empty_repository_begins_with_a_readme(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    url = f"/projects/{project['id']}/repository"
    other = await alice.api.post(f"{url}/branches", {"branch": "topic", "ref": "develop"})
    assert (other.status, other.body) == (400, {"message": "Invalid reference name: develop"})
    made = await alice.api.post(f"{url}/branches", {"branch": "topic", "ref": "main"})
    assert (made.status, made.body["name"]) == (201, "topic"), made
    assert made.body["commit"]["message"] == "Add README.md"
    branches = (await alice.api.get(f"{url}/branches")).body
    shown = [(one["name"], one["default"], one["protected"]) for one in branches]
    assert shown == [("main", True, True), ("topic", False, False)]
    assert {one["commit"]["id"] for one in branches} == {made.body["commit"]["id"]}
    readme = (await alice.api.get(f"{url}/files/README.md?ref=topic")).body
    assert (readme["size"], readme["content"]) == (0, "")
    project = (await alice.api.get(f"/projects/{project['id']}")).body
    assert (project["empty_repo"], project["default_branch"]) == (False, "main")


async def test_the_default_branch_of_an_empty_repository_is_made_of_itself(forge: Forge) -> None:
    project = await forge.project()
    url = f"/projects/{project['id']}/repository/branches"
    made = await forge.root.post(url, {"branch": "main", "ref": "main"})
    assert (made.status, made.body["name"], made.body["default"]) == (201, "main", True)
    assert [one["name"] for one in (await forge.root.get(url)).body] == ["main"]


Scene = tuple[Person, str]


@pytest.fixture(scope="module")
async def scene(forge: Forge) -> Scene:
    """Commits are in another order than the names of their branches and tags; `v1.10` is on an old one, but was
    created last."""
    alice = await forge.user()
    project = await forge.project(alice, initialize_with_readme=True)
    repository = forge.repository(project["id"])
    tree = repository.lookup_reference("refs/heads/main").peel().tree.id
    for day, (branch, tag) in enumerate([("x-b", "v1.9"), ("x-c", "v1.2"), ("x-a", "w")]):
        made = repository.create_commit(None, _on(day), _on(day), "Change", tree, [])
        repository.references.create(f"refs/heads/{branch}", made)
        repository.references.create(f"refs/tags/{tag}", made)
    older = repository.lookup_reference("refs/tags/v1.9").target
    repository.create_tag("v1.10", older, ObjectType.COMMIT, _on(9), "late")
    return alice, f"/projects/{project['id']}/repository"


def _on(day: int) -> Signature:
    return Signature("Alice", "alice@example.org", 1_700_000_000 + 86_400 * day)


async def names(scene: Scene, query: str) -> Any:
    alice, url = scene
    answer = await alice.api.get(f"{url}/{query}")
    return [one["name"] for one in answer.body] if answer.status == 200 else answer.body


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "abc"),
        ("&sort=name_asc", "abc"),
        ("&sort=updated_asc", "bca"),
        ("&sort=updated_desc", "acb"),
        ("&sort=updated_desc&per_page=1&page=2", "c"),
    ],
)
async def test_branches_come_by_name_or_by_their_commits(scene: Scene, query: str, expected: str) -> None:
    assert await names(scene, f"branches?search=x-{query}") == [f"x-{one}" for one in expected]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["v1.10", "w", "v1.2", "v1.9"]),
        ("?sort=asc", ["v1.9", "v1.2", "w", "v1.10"]),
        ("?order_by=name", ["w", "v1.9", "v1.2", "v1.10"]),
        ("?order_by=version&sort=asc", ["v1.2", "v1.9", "v1.10", "w"]),
        ("?order_by=version&search=v1", ["v1.10", "v1.9", "v1.2"]),
    ],
)
async def test_tags_come_by_their_making_name_or_version(
    scene: Scene, query: str, expected: list[str]
) -> None:
    assert await names(scene, f"tags{query}") == expected


#: A search, and its results among the branches `main`, `x-a`, `x-b`, `x-c`, and the tags.
SEARCHES = [
    ("branches?search=A", ["main", "x-a"]),
    ("branches?search=^X-", ["x-a", "x-b", "x-c"]),
    ("branches?search=^a", []),
    ("branches?search=A%24", ["x-a"]),
    ("branches?search=-", ["x-a", "x-b", "x-c"]),
    ("branches?search=^", ["main", "x-a", "x-b", "x-c"]),
    ("tags?search=^v1.1&order_by=name", ["v1.10"]),
    ("tags?search=9%24&order_by=name", ["v1.9"]),
]


async def test_a_search_is_for_a_part_a_beginning_or_an_end(scene: Scene) -> None:
    deviations = Deviations()
    for query, found in SEARCHES:
        with deviations.of(query):
            assert await names(scene, query) == found
    assert not deviations, deviations.report


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("branches?sort=asc", "sort does not have a valid value"),
        ("tags?order_by=size", "order_by does not have a valid value"),
        ("tags?sort=name_asc", "sort does not have a valid value"),
    ],
)
async def test_other_orders_are_refused(scene: Scene, query: str, error: str) -> None:
    assert await names(scene, query) == {"error": error}


RAW = (
    b"tree %s\nparent %s\nauthor J\xfcrgen <j\xfc@example.org>1700000000 +0100\n"
    b"committer J\xfcrgen <j\xfc@example.org>1700000000 +0100\nencoding ISO-8859-1\n\nGr\xfc\xdfe\n"
)
TEXT = {
    "title": "Grüße",
    "message": "Grüße\n",
    "author_name": "Jürgen",
    "author_email": "jü@example.org",
    "authored_date": "2023-11-14T23:13:20.000+01:00",
}


async def test_a_commit_in_latin_1_is_shown_and_picked_as_text(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    git, url = project["git"], project["url"]
    base = await git("rev-parse", "side^")
    raw = RAW % ((await git("rev-parse", "side^{tree}")).encode(), base.encode())
    sha = (
        subprocess.run(
            ["git", "hash-object", "-t", "commit", "-w", "--stdin", "--literally"],
            cwd=git.folder,
            input=raw,
            stdout=subprocess.PIPE,
            check=True,
        )
        .stdout.decode()
        .strip()
    )
    await git("push", "--quiet", project["remote"], f"{sha}:refs/heads/latin", f"{base}:refs/heads/target")
    picked = await alice.api.post(f"{url}/commits/{sha}/cherry_pick", {"branch": "target"}, expect=201)
    shown = [
        (await alice.api.get(f"{url}/commits/{sha}")).body,
        (await alice.api.get(f"{url}/commits?ref_name=latin")).body[0],
        (await alice.api.get(f"{url}/branches/latin")).body["commit"],
        picked.body,
    ]
    told = [{key: commit[key] for key in TEXT} for commit in shown]
    again = TEXT | {"message": f"Grüße\n\n(cherry picked from commit {sha})"}
    assert told == [TEXT, TEXT, TEXT, again]
    assert picked.body["id"] == await head_of(alice.api, project, "target")
    async with forge.session.get(
        f"{forge.base}/api/v4{url}/commits?ref_name=latin&author=J%C3%BCrgen",
        headers={"PRIVATE-TOKEN": alice.token},
    ) as answer:
        assert [commit["id"] for commit in await answer.json()] == [sha]
