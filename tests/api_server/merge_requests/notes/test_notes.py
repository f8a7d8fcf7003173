"""Notes by themselves: written, shown, listed, edited and deleted, and by whom."""

import io
from typing import Any

import orjson
import pytest

from tests.support.forge import Forge
from tests.support.merge_requests import new_project, open_merge_request

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
    """Of how many notes, and of how much text."""
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
        assert (await owner.api.put(f"{url}/notes/{made.body['id']}", {"body": "x" * 3000})).status == 200
        assert (await owner.api.put(f"{url}/notes/{made.body['id']}", {"body": "x"})).status == 200
        assert (await owner.api.put(url, {"description": "one"})).status == 200
        refused = await owner.api.post(f"{url}/notes", {"body": "x"})
        assert refused.body == {
            "message": '400 Bad request - Note {:base=>["Maximum number of comments exceeded"]}'
        }
        assert (await owner.api.put(url, {"description": "two"})).status == 200
        assert len((await owner.api.get(f"{url}/notes")).body) == 2
