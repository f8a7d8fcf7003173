"""What the service notes of merge requests by itself, and the versions that they have had."""

from typing import Any

import pytest

from api_server.merge_requests.system_notes import _people, _renamed
from api_server.web.routes import Role
from tests.support.forge import Forge, Person
from tests.support.merge_requests import commit, head_of, new_project, open_merge_request


@pytest.fixture(scope="module")
async def alice(forge: Forge) -> Person:
    return await forge.user("alice")


@pytest.fixture(scope="module")
async def project(forge: Forge, alice: Person) -> dict[str, Any]:
    return await new_project(forge, alice)


async def _written(alice: Person, url: str) -> list[str]:
    """What the service has written, the oldest first, after a look at what all of it has in common."""
    notes = (await alice.api.get(f"{url}/notes?activity_filter=only_activity&sort=asc")).body
    assert all(note["system"] and not note["resolvable"] and note["type"] is None for note in notes)
    assert {note["author"]["id"] for note in notes} <= {alice.id}
    return [note["body"] for note in notes]


async def test_edits_are_noted(alice: Person, project: dict[str, Any]) -> None:
    opened = await open_merge_request(alice, project, "edited")
    url = f"/projects/{project['id']}/merge_requests/{opened['iid']}"
    await alice.api.post(f"/projects/{project['id']}/repository/branches", {"branch": "next", "ref": "main"})
    for change in (
        {"title": "Add the feature", "description": "Why"},
        {"title": "Draft: Add the feature"},
        {"title": "Add the feature", "target_branch": "next"},
        {"state_event": "close"},
        {"state_event": "reopen"},
    ):
        assert (await alice.api.put(url, change)).status == 200
    assert await _written(alice, url) == [
        "changed title from **Add {-a-} feature** to **Add {+the+} feature**",
        "changed the description",
        "marked this merge request as **draft**",
        "marked this merge request as **ready**",
        "changed target branch from `main` to `next`",
    ]


@pytest.mark.parametrize(
    ("old", "new", "bodies"),
    [
        ("One", "One two", ["changed title from **One** to **One{+ two+}**"]),
        ("aa", "aaa", ["changed title from **aa** to **aa{+a+}**"]),
        ("abab", "ab", ["changed title from **ab{-ab-}** to **ab**"]),
        (
            "A",
            "[Draft] B",
            ["marked this merge request as **draft**", "changed title from **{-A-}** to **{+[Draft] B+}**"],
        ),
        ("Draft: A", "(draft) A", []),
    ],
)
def test_a_title_shows_what_differs(old: str, new: str, bodies: list[str]) -> None:
    assert list(_renamed(old, new)) == bodies


def test_people_are_named() -> None:
    a, b, c, d = ({"id": number, "username": name} for number, name in enumerate("abcd"))
    assert _people([], [a], "assigned to", "unassigned") == "assigned to @a"
    assert (
        _people([a, d], [a, b, c], "assigned to", "unassigned") == "assigned to @b and @c and unassigned @d"
    )
    assert _people([a, b, c], [], "to", "not") == "not @a, @b, and @c"
    assert _people([a], [a], "to", "not") == ""


async def test_whom_it_is_up_to_is_noted(forge: Forge, alice: Person, project: dict[str, Any]) -> None:
    bob = await forge.new_member(project["id"], Role.DEVELOPER, "bob")
    opened = await open_merge_request(alice, project, "assigned")
    url = f"/projects/{project['id']}/merge_requests/{opened['iid']}"
    for people in (
        {"assignee_ids": [alice.id], "reviewer_ids": [bob.id]},
        {"assignee_ids": [bob.id], "reviewer_ids": []},
    ):
        assert (await alice.api.put(url, people)).status == 200
    assert await _written(alice, url) == [
        f"assigned to @{alice.username}",
        f"requested review from @{bob.username}",
        f"assigned to @{bob.username} and unassigned @{alice.username}",
        f"removed review request for @{bob.username}",
    ]


async def test_pushes_are_noted_and_make_versions(alice: Person, project: dict[str, Any]) -> None:
    opened = await open_merge_request(alice, project, "pushed")
    url = f"/projects/{project['id']}/merge_requests/{opened['iid']}"
    first = (await alice.api.get(f"{url}/versions")).body[0]
    head = await commit(alice.api, project, "pushed", commit_message="Use <b> & more\n\nWhy")
    versions = (await alice.api.get(f"{url}/versions")).body
    assert versions == [
        {
            "id": versions[0]["id"],
            "head_commit_sha": head,
            "base_commit_sha": opened["diff_refs"]["base_sha"],
            "start_commit_sha": opened["diff_refs"]["start_sha"],
            "created_at": versions[0]["created_at"],
            "merge_request_id": opened["id"],
            "state": "collected",
            "real_size": "2",
            "patch_id_sha": versions[0]["patch_id_sha"],
        },
        first,
    ]
    assert (first["head_commit_sha"], first["id"] < versions[0]["id"]) == (opened["sha"], True)
    page = f"/{project['path_with_namespace']}/-/merge_requests/{opened['iid']}/diffs"
    assert await _written(alice, url) == [
        f"added 1 commit\n\n<ul><li>{head[:8]} - Use &lt;b&gt; &amp; more</li></ul>\n\n"
        f"[Compare with previous version]({page}?diff_id={versions[0]['id']}&start_sha={opened['sha']})"
    ]
    shown = (await alice.api.get(f"{url}/versions/{first['id']}")).body
    assert {name: shown[name] for name in first} == first
    assert [item["id"] for item in shown["commits"]] == [opened["sha"]]
    assert [item["new_file"] for item in shown["diffs"]] == [True]
    missing = await alice.api.get(f"{url}/versions/999999")
    assert (missing.status, missing.body) == (404, {"message": "404 Not found"})


async def test_commits_of_the_target_and_many_of_ones_own_are_counted(
    alice: Person, project: dict[str, Any]
) -> None:
    opened = await open_merge_request(alice, project, "long")
    url = f"/projects/{project['id']}/merge_requests/{opened['iid']}"
    targets = await commit(alice.api, project, "main")
    merged = {"source_branch": "main", "target_branch": "long", "title": "Catch up"}
    other = (await alice.api.post(f"/projects/{project['id']}/merge_requests", merged)).body
    catch_up = f"/projects/{project['id']}/merge_requests/{other['iid']}"
    assert (await alice.api.put(f"{catch_up}/merge")).status == 200
    assert await head_of(alice.api, project, "main") == targets
    (body,) = await _written(alice, url)
    assert body.startswith(
        f"added 2 commits\n\n<ul><li>{opened['sha'][:8]}...{targets[:8]} - 1 commit from branch <code>main</code></li>"
    )
    await alice.api.post(f"/projects/{project['id']}/repository/branches", {"branch": "ahead", "ref": "long"})
    heads = [await commit(alice.api, project, "ahead") for _ in range(12)]
    ahead = merged | {"source_branch": "ahead"}
    fast = (await alice.api.post(f"/projects/{project['id']}/merge_requests", ahead)).body
    before = await head_of(alice.api, project, "long")
    merge = f"/projects/{project['id']}/merge_requests/{fast['iid']}/merge"
    assert (await alice.api.put(merge)).status == 200
    body = (await _written(alice, url))[-1]
    assert body.startswith(
        f"added 13 commits\n\n<ul><li>{heads[0][:8]}...{heads[2][:8]} - 3 earlier commits</li><li>{heads[3][:8]} - "
    )
    assert f"&start_sha={before})" in body
