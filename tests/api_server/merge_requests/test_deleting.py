"""Deleting merge requests, and showing all of their changes at once."""

import asyncio
from typing import Any

import gitlab
import pytest

from api_server.git import new_commits
from api_server.git.errors import StorageUnavailableError
from api_server.merge_requests import changes
from tests.support.forge import Forge, Person
from tests.support.merge_requests import commit, open_merge_request


@pytest.mark.parametrize("state", ["opened", "closed", "merged"])
async def test_a_deleted_merge_request_is_gone_with_its_head_and_its_number_is_not_given_again(
    forge: Forge, alice: Person, project: dict[str, Any], state: str
) -> None:
    made = await open_merge_request(alice, project, assignee_ids=[alice.id])
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    if state == "closed":
        await alice.api.put(one, {"state_event": "close"})
    elif state == "merged":
        await alice.api.put(f"{one}/merge")
    assert (await alice.api.get(f"{one}/merge_ref")).status == (200 if state == "opened" else 400)
    answer = await alice.api.delete(one)
    assert (answer.status, answer.body) == (204, "")
    assert (await alice.api.get(one)).status == (await alice.api.delete(one)).status == 404
    assert kept(forge, project) == []
    assert (await open_merge_request(alice, project, "again"))["iid"] == 2
    events = (await alice.api.get(f"/projects/{project['id']}/audit_events")).body
    (event,) = [event for event in events if event["details"]["event_name"] == "delete_merge_request"]
    assert (
        event["details"]
        | {
            "custom_message": "Removed merge request !1",
            "target_id": made["id"],
            "target_type": "MergeRequest",
            "target_details": "!1 Add a feature",
        }
        == event["details"]
    )


def kept(forge: Forge, project: dict[str, Any]) -> list[str]:
    refs = forge.repository(project["id"]).references
    return [ref for ref in refs if ref.startswith("refs/merge-requests/")]


async def test_what_git_cannot_forget_is_not_deleted(
    forge: Forge, alice: Person, project: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commits could be fetched for ever."""
    one = f"/projects/{project['id']}/merge_requests/{(await open_merge_request(alice, project))['iid']}"

    async def no_room(*_: Any) -> None:
        raise StorageUnavailableError

    with monkeypatch.context() as patched:
        patched.setattr(changes, "remove_internal_ref", no_room)
        assert (await alice.api.delete(one)).status == 503
    assert (await alice.api.get(one)).status == 200
    assert (await alice.api.delete(one)).status == 204
    assert kept(forge, project) == []


async def test_what_merging_would_make_is_not_kept_of_what_is_deleted_meanwhile(
    forge: Forge, alice: Person, project: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await open_merge_request(alice, project)
    one, real = f"/projects/{project['id']}/merge_requests/{made['iid']}", new_commits.merge

    async def deleted(*how: Any) -> str:
        assert (await alice.api.delete(one)).status == 204
        return await real(*how)

    with monkeypatch.context() as patched:
        patched.setattr(new_commits, "merge", deleted)
        assert (await alice.api.get(f"{one}/merge_ref")).status == 404
    assert kept(forge, project) == []


async def test_all_changes_are_shown_with_the_merge_request(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project)
    await commit(alice.api, project, "feature", "more.txt", content="more\n")
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    shown = (await alice.api.get(one)).body
    changes = (await alice.api.get(f"{one}/diffs")).body
    answer = await alice.api.get(f"{one}/changes?unidiff=true")
    assert (answer.status, answer.body) == (200, shown | {"changes": changes, "overflow": False})
    assert answer.headers["X-Ignored-Parameters"] == "unidiff"
    assert len(changes) == 2


async def test_no_more_changes_are_shown_than_the_setting_says(forge: Forge) -> None:
    with forge.changed_settings(diff_max_files=1):
        alice = await forge.user("alice")
        project = await forge.project(alice, initialize_with_readme=True)
        made = await open_merge_request(alice, project)
        await commit(alice.api, project, "feature")
        one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
        shown = (await alice.api.get(f"{one}/changes")).body
        assert (len(shown["changes"]), shown["overflow"]) == (1, True)


async def test_python_gitlab_shows_changes_and_deletes(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project)

    def use() -> None:
        client = gitlab.Gitlab(forge.base, private_token=alice.token)
        found = client.projects.get(project["id"]).mergerequests.get(made["iid"])
        assert len(found.changes()["changes"]) == 1
        assert list(found.closes_issues(get_all=True)) == []
        found.delete()
        assert client.projects.get(project["id"]).mergerequests.list(get_all=True) == []

    await asyncio.to_thread(use)
