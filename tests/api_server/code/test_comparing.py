"""What differs between commits, and archives: through the API."""

import io
import tarfile
from typing import Any

import pytest

from tests.support.forge import Forge, Person
from tests.support.merge_requests import head_of


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


async def test_archives_are_limited_for_each_user(forge: Forge) -> None:
    with forge.changed_settings(archive_rate_limit=1):
        alice = await forge.user("alice")
        project = await forge.project(alice, initialize_with_readme=True)
        where = f"/projects/{project['id']}/repository/archive"
        assert (await alice.api.get(where)).status == 200
        refused = await alice.api.get(where)
        assert (refused.status, int(refused.headers["Retry-After"]) > 0) == (429, True)
