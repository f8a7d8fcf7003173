"""Threads: their beginning, replies and resolution, and the lines that notes may be about."""

import asyncio
from typing import Any

import gitlab
import pytest

from tests.support.forge import Forge
from tests.support.merge_requests import commit, new_project, open_merge_request

from .conftest import Talk

FORBIDDEN = (403, {"message": "403 Forbidden"})
NO_DISCUSSION = (404, {"message": "404 Discussion Not Found"})


async def test_a_thread_can_be_resolved(talk: Talk) -> None:
    thread = await talk.discuss(talk.guest, "Why?")
    (note,) = thread["notes"]
    assert (list(thread), thread["individual_note"]) == (["id", "individual_note", "notes"], False)
    assert (note["type"], note["body"], note["resolvable"]) == ("DiscussionNote", "Why?", True)
    assert [note[name] for name in ("resolved", "resolved_by", "resolved_at")] == [False, None, None]
    names = list(note)
    assert names[names.index("resolvable") :][:5] == [
        "resolvable",
        "resolved",
        "resolved_by",
        "resolved_at",
        "confidential",
    ]
    url = f"{talk.url}/discussions/{thread['id']}"
    answer = await talk.reply(talk.stranger, thread["id"], "Because")
    assert (answer["type"], answer["resolved"]) == ("DiscussionNote", False)
    resolved = await talk.author.api.put(f"{url}?resolved=true", expect=200)
    assert [
        (item["id"], item["resolved"], item["resolved_by"]["id"], item["resolved_at"] is not None)
        for item in resolved.body["notes"]
    ] == [(item["id"], True, talk.author.id, True) for item in (note, answer)]
    assert (await talk.guest.api.get(url)).body == resolved.body
    again = await talk.developer.api.put(url, {"resolved": True})
    assert again.body == resolved.body
    opened = await talk.developer.api.put(url, {"resolved": False})
    assert [item["resolved_at"] for item in opened.body["notes"]] == [None, None]


async def test_what_is_said_in_a_resolved_thread_is_resolved_too(talk: Talk) -> None:
    thread = await talk.discuss(talk.guest)
    await talk.author.api.put(f"{talk.url}/discussions/{thread['id']}", {"resolved": True})
    late = await talk.reply(talk.stranger, thread["id"])
    assert (late["resolved"], late["resolved_by"]["id"]) == (True, talk.stranger.id)


async def test_who_resolves(talk: Talk) -> None:
    """Developers, and the author of the merge request; the author of a note, too."""
    thread = await talk.discuss(talk.guest)
    url = f"{talk.url}/discussions/{thread['id']}"
    note = f"{url}/notes/{thread['notes'][0]['id']}"
    for other in (talk.guest, talk.reporter, talk.stranger):
        refused = await other.api.put(url, {"resolved": True})
        assert (refused.status, refused.body) == FORBIDDEN
    refused = await talk.reporter.api.put(note, {"resolved": True})
    assert (refused.status, refused.body) == FORBIDDEN
    own = await talk.guest.api.put(note, {"resolved": True})
    assert (own.status, own.body["resolved"], own.body["resolved_by"]["id"]) == (200, True, talk.guest.id)
    for person in (talk.developer, talk.author):
        assert (await person.api.put(url, {"resolved": False})).status == 200
        assert (await person.api.put(note, {"resolved": True})).status == 200


async def test_a_note_by_itself_becomes_a_thread_when_it_is_answered(talk: Talk) -> None:
    note = await talk.say(talk.guest)
    threads = (await talk.guest.api.get(f"{talk.url}/discussions?per_page=100")).body
    (thread,) = [item for item in threads if item["notes"][0]["id"] == note["id"]]
    assert (thread["individual_note"], len(thread["id"])) == (True, 40)
    url = f"{talk.url}/discussions/{thread['id']}"
    refused = await talk.author.api.put(url, {"resolved": True})
    assert (refused.status, refused.body) == FORBIDDEN
    refused = await talk.author.api.put(f"{url}/notes/{note['id']}", {"resolved": True})
    assert (refused.status, refused.body) == (400, {"message": "400 Bad request - Note is not resolvable"})
    await talk.reply(talk.author, thread["id"])
    shown = (await talk.guest.api.get(url)).body
    assert shown["individual_note"] is False
    assert [(item["type"], item["resolvable"]) for item in shown["notes"]] == [("DiscussionNote", True)] * 2


async def test_an_answer_is_as_internal_as_the_thread(talk: Talk) -> None:
    note = await talk.say(talk.reporter, internal=True)
    threads = (await talk.reporter.api.get(f"{talk.url}/discussions?per_page=100")).body
    (thread,) = [item for item in threads if item["notes"][0]["id"] == note["id"]]
    url = f"{talk.url}/discussions/{thread['id']}"
    assert (await talk.reply(talk.developer, thread["id"]))["internal"] is True
    for answer in (
        await talk.guest.api.get(url),
        await talk.guest.api.post(f"{url}/notes", {"body": "x"}),
        await talk.guest.api.put(url, {"resolved": True}),
    ):
        assert (answer.status, answer.body) == NO_DISCUSSION


async def test_what_the_service_wrote_is_not_answered(talk: Talk) -> None:
    await talk.owner.api.put(talk.url, {"description": "something else"})
    threads = (await talk.owner.api.get(f"{talk.url}/discussions?per_page=100")).body
    thread = next(item for item in threads if item["notes"][0]["system"])
    refused = await talk.owner.api.post(f"{talk.url}/discussions/{thread['id']}/notes", {"body": "x"})
    assert (refused.status, refused.body) == (
        400,
        {"message": "400 Bad request - Discussion can not be replied to."},
    )


async def test_threads_are_listed_oldest_first(talk: Talk) -> None:
    one, other = await talk.discuss(talk.guest), await talk.discuss(talk.guest)
    await talk.reply(talk.guest, one["id"])
    listed = await talk.guest.api.get(f"{talk.url}/discussions?per_page=100")
    assert [item["id"] for item in listed.body][-2:] == [one["id"], other["id"]]
    assert int(listed.headers["X-Total"]) == len(listed.body)
    notes = await talk.guest.api.get(f"{talk.url}/discussions/{one['id']}/notes")
    assert [note["body"] for note in notes.body] == ["Why?", "Because"]


async def test_notes_of_a_thread_are_edited_and_deleted_there(talk: Talk) -> None:
    thread, other = await talk.discuss(talk.guest), await talk.discuss(talk.guest)
    note = thread["notes"][0]["id"]
    url, elsewhere = (f"{talk.url}/discussions/{item['id']}/notes/{note}" for item in (thread, other))
    assert (await talk.guest.api.get(url)).body == thread["notes"][0]
    assert (await talk.guest.api.put(url, {"body": "Edited"})).body["body"] == "Edited"
    for sent, error in (
        ({}, "body, resolved are missing, exactly one parameter must be provided"),
        ({"body": "x", "resolved": True}, "body, resolved are mutually exclusive"),
    ):
        refused = await talk.guest.api.put(url, sent)
        assert (refused.status, refused.body) == (400, {"error": error})
    for answer in (
        await talk.guest.api.get(elsewhere),
        await talk.guest.api.put(elsewhere, {"body": "x"}),
        await talk.guest.api.delete(elsewhere),
    ):
        assert (answer.status, answer.body) == (404, {"message": "404 Not found"})
    assert (await talk.stranger.api.delete(url)).status == 403
    assert (await talk.guest.api.delete(url)).status == 204
    gone = await talk.guest.api.get(f"{talk.url}/discussions/{thread['id']}")
    assert (gone.status, gone.body) == NO_DISCUSSION
    empty = await talk.guest.api.get(f"{talk.url}/discussions/{thread['id']}/notes")
    assert (empty.status, empty.body) == (404, {"message": "404 Notes Not Found"})


@pytest.fixture
async def quarrel(forge: Forge):
    """A merge request with a thread, in a project where all threads have to be resolved."""
    owner = await forge.user("owner")
    project = await new_project(forge, owner)
    opened = await open_merge_request(owner, project)
    url = f"/projects/{project['id']}"
    changed = await owner.api.put(url, {"only_allow_merge_if_all_discussions_are_resolved": True})
    assert changed.body["only_allow_merge_if_all_discussions_are_resolved"] is True
    url = f"{url}/merge_requests/{opened['iid']}"
    thread = (await owner.api.post(f"{url}/discussions", {"body": "No"})).body
    return owner, url, thread


async def test_nothing_is_merged_before_all_is_resolved(quarrel) -> None:
    owner, url, thread = quarrel
    shown = (await owner.api.get(url)).body
    assert (shown["blocking_discussions_resolved"], shown["detailed_merge_status"]) == (
        False,
        "discussions_not_resolved",
    )
    refused = await owner.api.put(f"{url}/merge")
    assert (refused.status, refused.body["message"]) == (405, "405 Method Not Allowed")
    await owner.api.post(f"{url}/notes", {"body": "a note by itself keeps nobody waiting"})
    await owner.api.put(f"{url}/discussions/{thread['id']}", {"resolved": True})
    assert (await owner.api.get(url)).body["blocking_discussions_resolved"] is True
    assert (await owner.api.put(f"{url}/merge")).body["state"] == "merged"


async def test_threads_keep_nobody_waiting_where_the_project_does_not_ask(quarrel) -> None:
    owner, url, _ = quarrel
    project = url.partition("/merge_requests")[0]
    await owner.api.put(project, {"only_allow_merge_if_all_discussions_are_resolved": False})
    assert (await owner.api.get(url)).body["blocking_discussions_resolved"] is True
    assert (await owner.api.put(f"{url}/merge")).body["state"] == "merged"


async def test_python_gitlab_talks(forge: Forge, talk: Talk) -> None:
    def use() -> None:
        with gitlab.Gitlab(forge.base, private_token=talk.developer.token) as client:
            project = client.projects.get(talk.project["id"])
            merge_request = project.mergerequests.get(int(talk.url.rpartition("/")[2]))
            note = merge_request.notes.create({"body": "From a bot"})
            note.body = "From a bot, again"
            note.save()
            assert merge_request.notes.get(note.id).body == "From a bot, again"
            assert note.id in [item.id for item in merge_request.notes.list(get_all=True)]
            note.delete()
            position = talk.place(new_line=10, old_line=None)
            thread = merge_request.discussions.create({"body": "Here", "position": position})
            thread.notes.create({"body": "And here"})
            thread.resolved = True
            thread.save()
            again = merge_request.discussions.get(thread.id)
            assert [item["resolved"] for item in again.attributes["notes"]] == [True, True]
            first = again.notes.get(again.attributes["notes"][0]["id"])
            first.resolved = False
            first.save()
            first.delete()
            newest = merge_request.diffs.list(get_all=True)[0]
            assert newest.head_commit_sha == merge_request.sha
            version = merge_request.diffs.get(newest.id)
            assert {diff["new_path"] for diff in version.diffs} == {"app.py", "new.py", "moved.py"}

    await asyncio.to_thread(use)


async def test_a_page_behind_everything_is_empty(talk: Talk) -> None:
    everything = await talk.owner.api.get(f"{talk.url}/discussions?page={2**63 - 1}")
    assert (everything.status, everything.body) == (200, [])


NO_LINE = '400 Bad request - Note {:line_code=>["can\'t be blank", "must be a valid line code"]}'


@pytest.mark.parametrize(
    ("where", "there"),
    [
        # Added, removed and unchanged lines: 2 and 3 are changed, 8 is removed, 11 is added.
        ({"new_line": 2}, True),
        ({"new_line": 3}, True),
        ({"old_line": 2}, True),
        ({"old_line": 8}, True),
        ({"new_line": 10}, True),
        ({"old_line": 1, "new_line": 1}, True),
        ({"old_line": 7, "new_line": 7}, True),
        ({"old_line": 9, "new_line": 8}, True),
        ({"old_line": 10, "new_line": 9}, True),
        # A line of one side is not one of both, and a line of both is not one of one side.
        ({"new_line": 1}, False),
        ({"old_line": 1}, False),
        ({"old_line": 9, "new_line": 9}, False),
        ({"old_line": 2, "new_line": 2}, False),
        ({"old_line": 8, "new_line": 8}, False),
        ({"old_line": 11, "new_line": 10}, False),
        ({"new_line": 11}, False),
        ({"old_line": 0, "new_line": 0}, False),
        ({"new_line": -1}, False),
        # One path may be omitted.
        ({"old_path": None, "new_line": 2}, True),
        ({"new_path": None, "old_line": 2}, True),
        ({"old_path": None, "new_path": None, "new_line": 2}, False),
        # A new file, a moved one, unchanged files, and files that do not exist.
        ({"old_path": "new.py", "new_path": "new.py", "new_line": 2}, True),
        ({"old_path": "new.py", "new_path": "new.py", "new_line": 3}, False),
        ({"old_path": "new.py", "new_path": "new.py", "old_line": 1}, False),
        ({"old_path": "old.py", "new_path": "moved.py", "old_line": 5, "new_line": 5}, True),
        ({"old_path": "old.py", "new_path": "moved.py", "old_line": 11, "new_line": 11}, False),
        ({"old_path": "old.py", "new_path": "old.py", "old_line": 5}, True),
        ({"old_path": "README.md", "new_path": "README.md", "old_line": 1, "new_line": 1}, False),
        ({"old_path": "gone.py", "new_path": "gone.py", "new_line": 1}, False),
        ({"old_path": "app.py/", "new_path": "app.py/", "new_line": 2}, False),
        # Commits that do not exist.
        ({"head_sha": "0" * 40, "new_line": 2}, False),
        ({"base_sha": "main", "new_line": 2}, False),
        ({"head_sha": "feature", "new_line": 2}, False),
    ],
)  # fmt: skip
async def test_a_note_stands_at_a_line_of_the_difference(
    talk: Talk, where: dict[str, Any], there: bool
) -> None:
    wanted = {"body": "Here", "position": talk.place(**where)}
    made = await talk.guest.api.post(f"{talk.url}/discussions", wanted)
    if not there:
        assert (made.status, made.body) == (400, {"message": NO_LINE})
        return
    assert made.status == 201, made
    (note,) = made.body["notes"]
    names = (
        "base_sha",
        "start_sha",
        "head_sha",
        "old_path",
        "new_path",
        "position_type",
        "old_line",
        "new_line",
    )
    expected = {"old_line": None, "new_line": None, "line_range": None} | talk.place(**where)
    assert (note["type"], note["commit_id"], note["position"]) == ("DiffNote", None, expected)
    assert list(note["position"]) == [*names, "line_range"]
    assert list(note)[list(note).index("project_id") :][:4] == [
        "project_id",
        "commit_id",
        "position",
        "resolvable",
    ]


async def test_a_range_is_kept_and_answers_stand_where_the_thread_does(talk: Talk) -> None:
    start = {"line_code": "a_1_2", "type": "new", "old_line": None, "new_line": 2}
    spanned = {"start": start, "end": start | {"new_line": 3}}
    thread = await talk.discuss(talk.guest, position=talk.place(new_line=3, line_range=spanned))
    position = thread["notes"][0]["position"]
    assert position["line_range"] == spanned
    answer = await talk.reply(talk.stranger, thread["id"])
    assert (answer["type"], answer["position"], answer["resolvable"]) == ("DiffNote", position, True)


async def test_a_form_says_where_too(talk: Talk) -> None:
    fields = {f"position[{name}]": str(value) for name, value in talk.place(new_line=2).items()}
    made = await talk.guest.api.request("POST", f"{talk.url}/discussions", data=fields | {"body": "Here"})
    assert (made.status, made.body["notes"][0]["position"]["new_line"]) == (201, 2)


@pytest.mark.parametrize(
    ("position", "body"),
    [
        (
            {},
            {"message": NO_LINE.replace("]}", '], :position=>["is incomplete"]}')},
        ),
        ({"position_type": "sound"}, {"error": "position[position_type] does not have a valid value"}),
        (
            {"position_type": "image"},
            {"error": "position[position_type] image is not supported by this service"},
        ),
        ({"new_line": "x"}, {"error": "position[new_line] is invalid"}),
        ({"base_sha": None}, {"error": "position[base_sha] is empty"}),
    ],
)
async def test_what_is_no_position_is_refused(
    talk: Talk, position: dict[str, Any], body: dict[str, Any]
) -> None:
    wanted = {"body": "Here", "position": talk.place(**position)}
    refused = await talk.guest.api.post(f"{talk.url}/discussions", wanted)
    assert (refused.status, refused.body) == (400, body)


async def test_what_is_too_large_to_show_or_no_text_has_no_lines(talk: Talk) -> None:
    head = await commit(
        talk.author.api, talk.project, "large", "large.txt", start_branch="main", content="x\n" * 2**18 + "x"
    )
    head = await commit(
        talk.author.api, talk.project, "large", "binary", content="YQBiCg==", encoding="base64"
    )
    for path in ("large.txt", "binary"):
        place = talk.place(head_sha=head, old_path=path, new_path=path, new_line=1)
        refused = await talk.guest.api.post(f"{talk.url}/discussions", {"body": "Here", "position": place})
        assert (refused.status, refused.body) == (400, {"message": NO_LINE})
