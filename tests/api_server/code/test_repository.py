"""Repositories through the API: commits, trees, tags, and who may read them."""

import asyncio
import io
import tarfile
from pathlib import Path
from typing import Any

import gitlab
import pytest

from api_server.web.access import Role
from tests.support.ci import ONE_JOB, ci_project, eventually
from tests.support.forge import Forge, Person
from tests.support.git_client import Git, git_url
from tests.support.merge_requests import commit, head_of


@pytest.fixture
async def alice(forge: Forge) -> Person:
    return await forge.user("alice")


@pytest.fixture
async def project(forge: Forge, alice: Person, tmp_path: Path) -> dict[str, Any]:
    """`main` with three commits, pushed; the last merges `side` into it."""
    made = await forge.project(alice)
    git = Git(tmp_path / "work")
    await git.init()
    await git.commit_files({"README.md": "one\n", "src/a.py": "a\n", "src/deep/b.py": "b\n"}, "First")
    await git("checkout", "--quiet", "-b", "side")
    await git.commit_files({"src/a.py": "a\nmore\n"}, "On the side")
    await git("checkout", "--quiet", "main")
    await git.commit_files({"README.md": "two\nlines\n"}, "Second")
    await git("merge", "--quiet", "--no-ff", "-m", "Merge side", "side")
    url = git_url(forge, made["path_with_namespace"], alice)
    await git("push", "--quiet", url, "main", "side")
    return made | {"url": f"/projects/{made['id']}/repository", "git": git, "remote": url}


async def titles(alice: Person, project: dict[str, Any], query: str = "") -> list[str]:
    answer = await alice.api.get(f"{project['url']}/commits?{query}")
    assert answer.status == 200, answer
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
    answer = await alice.api.get(f"{project['url']}/commits/side")
    assert answer.status == 200
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
        answer = await alice.api.get(f"{project['url']}/tree?{query}")
        assert answer.status == 200, answer
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
    light = await alice.api.post(f"{project['url']}/tags", {"tag_name": "v1", "ref": "side"})
    assert light.status == 201
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


async def test_a_tag_makes_a_pipeline_as_a_pushed_one_does(forge: Forge) -> None:

    project = await ci_project(forge)
    await project.commit(ONE_JOB, message="Run")
    made = await project.api.post(
        f"{project.url}/repository/tags", {"tag_name": "v1", "ref": "topic", "message": "m"}
    )
    assert made.status == 201

    async def pipelines() -> Any:
        return (await project.api.get(f"{project.url}/pipelines?ref=v1")).body

    (pipeline,) = await eventually(pipelines)
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
    """Whoever may clone it: guests of private projects see that there is one, not what is in it."""
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
    made = await alice.api.post(f"{project['url']}/commits", wanted | {"author_email": "bob@example.org"})
    assert made.status == 201
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
    bob = await forge.user("bob")
    await forge.member("projects", project["id"], bob, Role.DEVELOPER)
    protected = await bob.api.post(f"{project['url']}/commits", base | {"branch": "main", "actions": [good]})
    assert protected.status == 403


def summary(files: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    kinds = ("new_file", "deleted_file", "renamed_file")
    return [
        (next((kind for kind in kinds if one[kind]), "changed"), one["old_path"], one["new_path"])
        for one in files
    ]


@pytest.fixture
async def changed(alice: Person, project: dict[str, Any]) -> dict[str, Any]:
    """A commit on `topic`, made of `side`, with one change of each kind."""
    actions = [
        {"action": "create", "file_path": "bin", "content": "AAEC", "encoding": "base64"},
        {"action": "create", "file_path": "big", "content": "x" * 600_000},
        {"action": "update", "file_path": "README.md", "content": "one\ntwo\n", "execute_filemode": True},
        {"action": "move", "file_path": "lib/a.py", "previous_path": "src/a.py"},
        {"action": "delete", "file_path": "src/deep/b.py"},
    ]
    wanted = {"branch": "topic", "start_branch": "side", "commit_message": "All kinds", "actions": actions}
    assert (await alice.api.post(f"{project['url']}/commits", wanted)).status == 201
    return project


KINDS = [
    ("changed", "README.md", "README.md"),
    ("new_file", "big", "big"),
    ("new_file", "bin", "bin"),
    ("renamed_file", "src/a.py", "lib/a.py"),
    ("deleted_file", "src/deep/b.py", "src/deep/b.py"),
]


async def test_the_diff_of_a_commit(alice: Person, changed: dict[str, Any]) -> None:
    answer = await alice.api.get(f"{changed['url']}/commits/topic/diff")
    assert (answer.status, answer.headers["X-Total"]) == (200, "5")
    assert sorted(summary(answer.body), key=lambda one: one[2]) == sorted(KINDS, key=lambda one: one[2])
    files = {one["new_path"]: one for one in answer.body}
    assert files["README.md"] == {
        "diff": "@@ -1 +1,2 @@\n one\n+two\n", "collapsed": False, "too_large": False, "new_path": "README.md",
        "old_path": "README.md", "a_mode": "100644", "b_mode": "100755", "new_file": False, "renamed_file": False,
        "deleted_file": False, "generated_file": None,
    }  # fmt: skip
    assert files["bin"]["diff"] == "Binary files /dev/null and b/bin differ\n"
    assert (files["big"]["diff"], files["big"]["too_large"]) == ("", True)
    assert (files["big"]["a_mode"], files["src/deep/b.py"]["b_mode"]) == ("0", "0")
    assert files["lib/a.py"]["diff"] == ""
    page = await alice.api.get(f"{changed['url']}/commits/topic/diff?per_page=2&page=3")
    assert (page.body, page.headers["X-Next-Page"]) == (answer.body[4:], "")
    first = (await alice.api.get(f"{changed['url']}/commits?ref_name=side")).body[-1]["id"]
    root = (await alice.api.get(f"{changed['url']}/commits/{first}/diff")).body
    assert {one[0] for one in summary(root)} == {"new_file"}
    gone = await alice.api.get(f"{changed['url']}/commits/gone/diff")
    assert (gone.status, gone.body) == (404, {"message": "404 Commit Not Found"})


async def test_branches_are_compared_from_where_they_parted(alice: Person, changed: dict[str, Any]) -> None:
    compared = (await alice.api.get(f"{changed['url']}/compare?from=main&to=topic")).body
    assert [one["title"] for one in compared["commits"]] == ["All kinds"]
    assert compared["commit"] == compared["commits"][-1]
    assert len(compared["diffs"]) == 5
    assert compared["compare_same_ref"] is False
    straight = (await alice.api.get(f"{changed['url']}/compare?from=main&to=topic&straight=true")).body
    (readme,) = [one for one in straight["diffs"] if one["new_path"] == "README.md"]
    assert "-lines" in readme["diff"]
    same = (await alice.api.get(f"{changed['url']}/compare?from=main&to=main")).body
    assert (same["commits"], same["commit"], same["diffs"], same["compare_same_ref"]) == ([], None, [], True)
    gone = await alice.api.get(f"{changed['url']}/compare?from=gone&to=main")
    assert (gone.status, gone.body) == (404, {"message": "404 Commit Not Found"})
    missing = await alice.api.get(f"{changed['url']}/compare?from=main")
    assert (missing.status, missing.body) == (400, {"error": "to is missing"})


async def test_a_merge_request_shows_what_it_brings(alice: Person, changed: dict[str, Any]) -> None:
    """Also after the merge, and after the source has gone."""
    wanted = {"source_branch": "topic", "target_branch": "side", "title": "All kinds"}
    base = f"/projects/{changed['id']}/merge_requests"
    made = (await alice.api.post(base, wanted)).body
    where = f"{base}/{made['iid']}"
    listed = (await alice.api.get(f"{where}/commits")).body
    assert [one["title"] for one in listed] == ["All kinds"]
    diffs = (await alice.api.get(f"{where}/diffs")).body
    assert diffs == (await alice.api.get(f"{changed['url']}/commits/topic/diff")).body
    assert (await alice.api.put(f"{where}/merge", {"should_remove_source_branch": True})).status == 200
    assert (await alice.api.get(f"{where}/commits")).body == listed
    assert (await alice.api.get(f"{where}/diffs")).body == diffs
    assert (await alice.api.get(f"{base}/99/diffs")).status == 404


async def test_an_archive_is_what_the_archive_page_serves(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    sha = await head_of(alice.api, project, "side")
    answer = await alice.api.get(f"{project['url']}/archive.zip?sha=side")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/zip")
    name = f"{project['path']}-side-{sha}"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{name}.zip"'
    page = await alice.api.get(f"{forge.base}/{project['path_with_namespace']}/-/archive/side/x.zip")
    assert page.headers["ETag"] == answer.headers["ETag"]
    known = await alice.api.get(
        f"{project['url']}/archive.zip?sha=side", headers={"If-None-Match": answer.headers["ETag"]}
    )
    assert known.status == 304

    async with forge.session.get(
        f"{forge.base}/api/v4{project['url']}/archive?sha={sha}&path=src",
        headers={"PRIVATE-TOKEN": alice.token},
    ) as packed:
        assert packed.headers["Content-Disposition"].endswith(f'{project["path"]}-{sha}-src.tar.gz"')
        with tarfile.open(fileobj=io.BytesIO(await packed.read())) as archive:
            assert f"{project['path']}-{sha}-src/src/a.py" in archive.getnames()


async def test_archives_that_cannot_be(forge: Forge, alice: Person, project: dict[str, Any]) -> None:
    for path in ("archive?sha=gone", "archive.rar", "archive?path=gone"):
        missing = await alice.api.get(f"{project['url']}/{path}")
        assert (missing.status, missing.body) == (404, {"message": "404 File Not Found"}), path
    empty = await forge.project(alice)
    assert (await alice.api.get(f"/projects/{empty['id']}/repository/archive")).status == 404


async def test_archives_are_limited_for_each_user(new_forge: Any) -> None:
    async with new_forge(archive_rate_limit=1) as forge:
        project = await forge.project(initialize_with_readme=True)
        where = f"/projects/{project['id']}/repository/archive"
        assert (await forge.root.get(where)).status == 200
        refused = await forge.root.get(where)
        assert (refused.status, int(refused.headers["Retry-After"]) > 0) == (429, True)
