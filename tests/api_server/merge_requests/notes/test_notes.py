"""Notes: creation, lists, changes and deletion, and the notes of the service itself."""

import io
from typing import Any

import orjson
import pytest

from api_server.merge_requests.system_notes import _people, _renamed
from api_server.state.listing import LISTED_TEXT
from api_server.web.routes import Role
from tests.support.forge import Forge, Person
from tests.support.merge_requests import commit, head_of, new_project, open_merge_request

from .conftest import Talk

FORBIDDEN = (403, {"message": "403 Forbidden"})
NOT_FOUND = (404, {"message": "404 Not found"})


async def test_a_note_is_shown_as_gitlab_shows_it(forge: Forge, talk: Talk) -> None:
    note = await talk.say(talk.stranger, "/close\n\n* <b>as it was sent</b> \U0001f600\r\n ")
    merge_request = (await talk.owner.api.get(talk.url)).body
    expected = {
        "id": note["id"],
        "type": None,
        "body": "/close\n\n* <b>as it was sent</b> \U0001f600\r\n ",
        "attachment": None,
        "author": {
            "id": talk.stranger.id,
            "username": talk.stranger.username,
            "public_email": None,
            "name": talk.stranger.username.title(),
            "state": "active",
            "locked": False,
            "avatar_url": None,
            "web_url": f"{forge.base}/{talk.stranger.username}",
        },
        "created_at": note["created_at"],
        "updated_at": note["created_at"],
        "system": False,
        "noteable_id": merge_request["id"],
        "noteable_type": "MergeRequest",
        "project_id": talk.project["id"],
        "resolvable": False,
        "confidential": False,
        "internal": False,
        "imported": False,
        "imported_from": "none",
        "noteable_iid": merge_request["iid"],
        "commands_changes": {},
    }
    assert note == expected
    assert list(note) == list(expected)
    shown = await talk.guest.api.get(f"{talk.url}/notes/{note['id']}")
    assert (shown.status, shown.body) == (200, expected)
    assert merge_request["state"] == "opened"
    assert merge_request["updated_at"] == note["created_at"]


async def test_notes_are_listed_newest_first_or_as_is_asked_for(talk: Talk) -> None:
    one, other = await talk.say(talk.guest, "one"), await talk.say(talk.guest, "other")
    await talk.owner.api.put(f"{talk.url}/notes/{one['id']}", {"body": "edited"})
    listed = await talk.guest.api.get(f"{talk.url}/notes?per_page=1")
    assert [note["id"] for note in listed.body] == [other["id"]]
    assert int(listed.headers["X-Total"]) >= 2
    ascending = (await talk.guest.api.get(f"{talk.url}/notes?sort=asc&per_page=100")).body
    assert [note["id"] for note in ascending][-2:] == [one["id"], other["id"]]
    by_change = (await talk.guest.api.get(f"{talk.url}/notes?order_by=updated_at&per_page=1")).body
    assert [note["body"] for note in by_change] == ["edited"]
    refused = await talk.guest.api.get(f"{talk.url}/notes?order_by=body&activity_filter=some")
    assert refused.status == 400


async def test_what_the_service_wrote_is_listed_by_itself(talk: Talk) -> None:
    await talk.say(talk.guest)
    await talk.owner.api.put(talk.url, {"description": "another"}, expect=200)
    for wanted, system in (
        ("only_comments", {False}),
        ("only_activity", {True}),
        ("all_notes", {True, False}),
    ):
        listed = await talk.guest.api.get(f"{talk.url}/notes?activity_filter={wanted}&per_page=100")
        assert {note["system"] for note in listed.body} == system


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        ({}, {"error": "body is missing"}),
        ({"body": " \n"}, {"message": '400 Bad request - Note {:note=>["can\'t be blank"]}'}),
        (
            {"body": "x" * 1_000_001},
            {"message": '400 Bad request - Note {:note=>["is too long (maximum is 1000000 characters)"]}'},
        ),
    ],
)
async def test_a_note_that_cannot_be_written_is_refused(
    talk: Talk, sent: dict[str, Any], body: dict[str, Any]
) -> None:
    refused = await talk.guest.api.post(f"{talk.url}/notes", sent)
    assert (refused.status, refused.body) == (400, body)


async def test_the_longest_note_is_kept(talk: Talk) -> None:
    longest = "ä" * 1_000_000
    body, headers = io.BytesIO(orjson.dumps({"body": longest})), {"Content-Type": "application/json"}
    note = await talk.guest.api.post(f"{talk.url}/notes", data=body, headers=headers)
    assert (note.status, note.body["body"] == longest) == (201, True)
    assert (await talk.owner.api.delete(f"{talk.url}/notes/{note.body['id']}")).status == 204


async def test_nobodys_notes_are_too_large_for_a_list_that_others_read(forge: Forge, talk: Talk) -> None:
    """Notes are cut in the list if they would be more than a page."""
    made = [await talk.say(talk.stranger, "x") for _ in range(11)]
    ids = [note["id"] for note in made]
    longest = "UPDATE notes SET body = repeat(%(text)s, 1000000) WHERE id = ANY (%(ids)s)"
    await forge.execute(longest, text="\x01", ids=ids)
    listed = await talk.reporter.api.get(f"{talk.url}/notes?per_page=11")
    assert [(note["id"], note["body"]) for note in listed.body] == [
        (number, "\x01" * LISTED_TEXT) for number in reversed(ids)
    ]
    threads = await talk.reporter.api.get(f"{talk.url}/discussions?per_page=100")
    bodies = [note["body"] for thread in threads.body for note in thread["notes"]]
    assert bodies[-11:] == ["\x01" * LISTED_TEXT] * 11
    alone = await talk.reporter.api.get(f"{talk.url}/notes/{ids[0]}")
    assert alone.body["body"] == "\x01" * 1_000_000
    for number in ids:
        await talk.maintainer.api.delete(f"{talk.url}/notes/{number}", expect=204)


async def test_who_wrote_a_note_and_maintainers_edit_and_delete_it(talk: Talk) -> None:
    note = await talk.say(talk.guest, "first")
    url = f"{talk.url}/notes/{note['id']}"
    for other in (talk.stranger, talk.developer, talk.author):
        assert (await other.api.put(url, {"body": "x"})).status == 403
        refused = await other.api.delete(url)
        assert (refused.status, refused.body) == FORBIDDEN
    edited = await talk.guest.api.put(url, {"body": "second"})
    assert (edited.status, edited.body) == (
        200,
        note | {"body": "second", "updated_at": edited.body["updated_at"]},
    )
    assert edited.body["updated_at"] > note["updated_at"]
    assert (await talk.guest.api.put(url, {"body": ""})).body == {"error": "body is empty"}
    assert (await talk.guest.api.put(url)).body == edited.body
    assert (await talk.maintainer.api.put(url, {"body": "third"})).body["body"] == "third"
    gone = await talk.maintainer.api.delete(url)
    assert (gone.status, gone.body) == (204, "")
    missing = await talk.guest.api.get(url)
    assert (missing.status, missing.body) == NOT_FOUND
    assert (await talk.guest.api.put(url, {"body": "x"})).status == 404


async def test_what_the_service_wrote_nobody_changes(talk: Talk) -> None:
    await talk.owner.api.put(talk.url, {"description": "yet another"})
    (note,) = (await talk.owner.api.get(f"{talk.url}/notes?activity_filter=only_activity&per_page=1")).body
    for answer in (
        await talk.owner.api.put(f"{talk.url}/notes/{note['id']}", {"body": "x"}),
        await talk.owner.api.delete(f"{talk.url}/notes/{note['id']}"),
    ):
        assert (answer.status, answer.body) == FORBIDDEN


async def test_internal_notes_are_for_members(talk: Talk) -> None:
    note = await talk.say(talk.reporter, "between us", internal=True)
    assert (note["internal"], note["confidential"]) == (True, True)
    assert (await talk.say(talk.reporter, confidential=True))["internal"] is True
    url = f"{talk.url}/notes/{note['id']}"
    assert (await talk.developer.api.get(url)).status == 200
    for outsider in (talk.guest, talk.stranger):
        assert (await outsider.api.get(url)).status == 404
        assert (await outsider.api.put(url, {"body": "x"})).status == 404
        listed = (await outsider.api.get(f"{talk.url}/notes?per_page=100")).body
        assert not any(item["internal"] for item in listed)
        threads = (await outsider.api.get(f"{talk.url}/discussions?per_page=100")).body
        assert not any(item["internal"] for thread in threads for item in thread["notes"])
        refused = await outsider.api.post(f"{talk.url}/notes", {"body": "x", "internal": True})
        assert (refused.status, refused.body) == FORBIDDEN


async def test_owners_say_when_a_note_was_written(talk: Talk) -> None:
    dated = await talk.say(talk.owner, "long ago", created_at="2015-03-01T12:00:00Z")
    assert (dated["created_at"], dated["updated_at"]) == ("2015-03-01T12:00:00.000Z",) * 2
    values = {"body": "now", "created_at": "2015-03-01T12:00:00Z", "merge_request_diff_head_sha": "x"}
    ignored = await talk.maintainer.api.post(f"{talk.url}/notes", values)
    assert ignored.headers["X-Ignored-Parameters"] == "merge_request_diff_head_sha, created_at"
    assert ignored.body["created_at"] > "2015-03-02"


async def test_a_merge_request_counts_what_users_said(talk: Talk) -> None:
    before = (await talk.owner.api.get(talk.url)).body["user_notes_count"]
    note = await talk.say(talk.guest)
    await talk.owner.api.put(talk.url, {"description": "and another"})
    listed = (await talk.owner.api.get(talk.url.rpartition("/")[0])).body
    assert [item["user_notes_count"] for item in listed] == [before + 1]
    await talk.guest.api.delete(f"{talk.url}/notes/{note['id']}")
    assert (await talk.owner.api.get(talk.url)).body["user_notes_count"] == before


async def test_of_what_is_not_there_nothing_is_said(talk: Talk) -> None:
    missing = talk.url.rpartition("/")[0] + "/999"
    for answer in (
        await talk.owner.api.get(f"{missing}/notes"),
        await talk.owner.api.post(f"{missing}/notes", {"body": "x"}),
        await talk.owner.api.get(f"{missing}/discussions"),
        await talk.owner.api.get(f"{talk.url}/notes/999999"),
    ):
        assert (answer.status, answer.body) == NOT_FOUND


async def test_there_is_an_end_to_what_is_said(
    forge: Forge,
) -> None:
    """The number of notes and the size of their text are limited."""
    with forge.changed_settings(notes_limit=2, notes_size_limit=3000):
        owner = await forge.user("owner")
        project = await new_project(forge, owner)
        opened = await open_merge_request(owner, project)
        url = f"/projects/{project['id']}/merge_requests/{opened['iid']}"
        made = await owner.api.post(f"{url}/notes", {"body": "x" * 2000}, expect=201)
        refused = await owner.api.post(f"{url}/notes", {"body": "x" * 1001})
        text = "Comments are too large together (maximum is 3000 bytes)"
        assert (refused.status, refused.body) == (
            400,
            {"message": f'400 Bad request - Note {{:base=>["{text}"]}}'},
        )
        longer = await owner.api.put(f"{url}/notes/{made.body['id']}", {"body": "x" * 3001})
        assert (longer.status, longer.body) == (refused.status, refused.body)
        diff = (await owner.api.get(f"{url}/diffs", expect=200)).body[0]
        place = {name: diff[name] for name in ("old_path", "new_path")} | opened["diff_refs"]
        place |= {"new_line": 1, "position_type": "text"}
        about_a_line = await owner.api.post(f"{url}/discussions", {"body": "x" * 900, "position": place})
        assert (about_a_line.status, about_a_line.body) == (refused.status, refused.body)
        assert (await owner.api.put(f"{url}/notes/{made.body['id']}", {"body": "x" * 3000})).status == 200
        assert (await owner.api.put(f"{url}/notes/{made.body['id']}", {"body": "x"})).status == 200
        assert (await owner.api.put(url, {"description": "one"})).status == 200
        refused = await owner.api.post(f"{url}/notes", {"body": "x"})
        assert refused.body == {
            "message": '400 Bad request - Note {:base=>["Maximum number of comments exceeded"]}'
        }
        assert (await owner.api.put(url, {"description": "two"})).status == 200
        assert len((await owner.api.get(f"{url}/notes")).body) == 2


@pytest.fixture(scope="module")
async def alice(forge: Forge) -> Person:
    return await forge.user("alice")


@pytest.fixture(scope="module")
async def project(forge: Forge, alice: Person) -> dict[str, Any]:
    return await new_project(forge, alice)


async def _written(alice: Person, url: str) -> list[str]:
    """Return the notes of the service, the oldest first, after checks that apply to all of them."""
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
