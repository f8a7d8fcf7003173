"""Notes about lines: where they may stand, as git tells the difference."""

from typing import Any

import pytest

from tests.support.merge_requests import commit

from .conftest import Talk

NO_LINE = '400 Bad request - Note {:line_code=>["can\'t be blank", "must be a valid line code"]}'


@pytest.mark.parametrize(
    ("where", "there"),
    [
        # Added, removed, and left as they are: lines 2 and 3 became others, 8 went away, 11 came.
        ({"new_line": 2}, True),
        ({"new_line": 3}, True),
        ({"old_line": 2}, True),
        ({"old_line": 8}, True),
        ({"new_line": 10}, True),
        ({"old_line": 1, "new_line": 1}, True),
        ({"old_line": 7, "new_line": 7}, True),
        ({"old_line": 9, "new_line": 8}, True),
        ({"old_line": 10, "new_line": 9}, True),
        # What is there on one side only is not there on both, and the other way round.
        ({"new_line": 1}, False),
        ({"old_line": 1}, False),
        ({"old_line": 9, "new_line": 9}, False),
        ({"old_line": 2, "new_line": 2}, False),
        ({"old_line": 8, "new_line": 8}, False),
        ({"old_line": 11, "new_line": 10}, False),
        ({"new_line": 11}, False),
        ({"old_line": 0, "new_line": 0}, False),
        ({"new_line": -1}, False),
        # One path may be left out.
        ({"old_path": None, "new_line": 2}, True),
        ({"new_path": None, "old_line": 2}, True),
        ({"old_path": None, "new_path": None, "new_line": 2}, False),
        # A file that is new, one that has moved, and what has not changed, or is none.
        ({"old_path": "new.py", "new_path": "new.py", "new_line": 2}, True),
        ({"old_path": "new.py", "new_path": "new.py", "new_line": 3}, False),
        ({"old_path": "new.py", "new_path": "new.py", "old_line": 1}, False),
        ({"old_path": "old.py", "new_path": "moved.py", "old_line": 5, "new_line": 5}, True),
        ({"old_path": "old.py", "new_path": "moved.py", "old_line": 11, "new_line": 11}, False),
        ({"old_path": "old.py", "new_path": "old.py", "old_line": 5}, True),
        ({"old_path": "README.md", "new_path": "README.md", "old_line": 1, "new_line": 1}, False),
        ({"old_path": "gone.py", "new_path": "gone.py", "new_line": 1}, False),
        ({"old_path": "app.py/", "new_path": "app.py/", "new_line": 2}, False),
        # Commits that are not there.
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
