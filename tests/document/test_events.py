"""The only notification that the service sends, and its content."""

import re
from typing import Any

from .gates import Gate
from .statements import says

UTC = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")


def names_in(sentence: str) -> set[str]:
    """Return the fields that a sentence of the document lists."""
    return set(re.findall(r"`(\w+)`", sentence))


PROJECT = (
    "Project block: `id` integer, `name`, `description`, `web_url`, `avatar_url` (string or null), `git_ssh_url`,"
    " `git_http_url`, `namespace`, `visibility_level` (integer), `path_with_namespace`, `default_branch`,"
    " `ci_config_path` (string or null), `homepage`, `url`, `ssh_url`, `http_url`."
)
NUMBERS = (
    "Merge request block (`object_attributes`): `id`, `iid`, `author_id`, `assignee_id`, `head_pipeline_id`,"
    " `milestone_id`, `merge_user_id`, `updated_by_id`, `last_edited_by_id`, `source_project_id`, `target_project_id`,"
    " `state_id` (integers or null);"
)
TEXTS = (
    "`title`, `description`, `source_branch`, `target_branch`, `state` (`opened` seen), `merge_status`,"
    " `detailed_merge_status`, `merge_commit_sha`, `merge_error`, `url`, `human_total_time_spent`, `human_time_change`,"
    " `human_time_estimate` (strings or null);"
)
TIMES = "`created_at`, `updated_at` (format `YYYY-MM-DD HH:MM:SS UTC`), `last_edited_at`;"
FLAGS = (
    "`merge_when_pipeline_succeeds`, `work_in_progress`, `blocking_discussions_resolved`, `first_contribution`"
    " (booleans);"
)
COUNTS = "`time_estimate`, `total_time_spent`, `time_change` (integers);"
LISTS = "`assignee_ids`, `reviewer_ids`, `labels` (arrays);"
COMMIT = "`last_commit` {`id`, `message`, `title`, `timestamp` ISO 8601, `url`, `author` {`name`, `email`}}."


@says(
    "events",
    "| object_kind | string, `merge_request` |",
    "| event_type | string, `merge_request` |",
    "| user | {id integer, name, username, avatar_url strings, email string} |",
    "| project | Project block |",
    "| object_attributes | Merge request block |",
    "| labels | array |",
    "| changes | object |",
    "| repository | {name, url, description, homepage} strings |",
    "| external_approval_rule | {id integer, name string, external_url string} |",
)
async def test_the_shape_of_the_payload(gate: Gate) -> None:
    (payload, *_) = await gate.sent_to(await gate.check())
    assert (payload["object_kind"], payload["event_type"]) == ("merge_request", "merge_request")
    for name, fields in (
        ("user", {"id": int} | dict.fromkeys(("name", "username", "avatar_url", "email"), str)),
        ("repository", dict.fromkeys(("name", "url", "description", "homepage"), str)),
        ("external_approval_rule", {"id": int, "name": str, "external_url": str}),
    ):
        assert all(isinstance(payload[name][field], kind) for field, kind in fields.items()), payload[name]
    assert (type(payload["labels"]), type(payload["changes"])) == (list, dict)


@says("events", PROJECT, "`source`, `target` (Project blocks);")
async def test_the_project_block(gate: Gate) -> None:
    (payload, *_) = await gate.sent_to(await gate.check())
    attributes = payload["object_attributes"]
    for block in (payload["project"], attributes["source"], attributes["target"]):
        assert names_in(PROJECT) == set(block)
        for name, value in block.items():
            kinds: Any = int if name in ("id", "visibility_level") else str
            assert isinstance(value, kinds) or (name in ("avatar_url", "ci_config_path") and value is None), (
                name
            )


@says(
    "events",
    NUMBERS,
    TEXTS,
    TIMES,
    "`merge_params` (object, seen `force_remove_source_branch` string);",
    FLAGS,
    COUNTS,
    LISTS,
    COMMIT,
)
async def test_the_merge_request_block(gate: Gate) -> None:
    (payload, *_) = await gate.sent_to(await gate.check())
    shown = payload["object_attributes"]
    for sentence, kinds in (
        (NUMBERS, int | None),
        (TEXTS, str | None),
        (FLAGS, bool),
        (COUNTS, int),
        (LISTS, list),
    ):
        for name in names_in(sentence) - {"object_attributes", "opened"}:
            assert isinstance(shown[name], kinds), (name, shown[name])
    assert shown["state"] == "opened"
    assert all(UTC.fullmatch(shown[name]) for name in ("created_at", "updated_at"))
    assert shown["last_edited_at"] is None
    assert isinstance(shown["merge_params"]["force_remove_source_branch"], str)
    assert names_in(COMMIT) - {"last_commit", "name", "email"} == set(shown["last_commit"])
    assert set(shown["last_commit"]["author"]) == {"name", "email"}
