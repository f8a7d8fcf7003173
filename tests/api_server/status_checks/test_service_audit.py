"""What the audit trail is told of status check services."""

from typing import Any

import orjson

from tests.api_server.status_checks.conftest import ELSEWHERE, protect
from tests.support.forge import Forge, Person


async def events_of(forge: Forge, project: dict[str, Any]) -> list[Any]:
    return await forge.database.rows(
        """SELECT event_type, author_id, target_type, target_id, target_details, details::text
        FROM audit_events WHERE entity_type = 'Project' AND entity_id = %(id)s AND target_type = 'ExternalStatusCheck'
        ORDER BY id""",
        id=project["id"],
    )


async def test_every_change_is_audited_without_secrets(
    forge: Forge, alice: Person, project: dict[str, Any], checks: str
) -> None:
    main, stable = [await protect(alice, project, name) for name in ("main", "stable")]
    url = "http://user:hunter2@203.0.113.7/a?token=hunter2#hunter2"
    wanted = {"name": "QA", "external_url": url, "shared_secret": "hunter2"}
    made = (await alice.api.post(checks, wanted)).body
    one = f"{checks}/{made['id']}"
    for change in (
        {"name": "Quality"},
        {"external_url": f"{ELSEWHERE}/%7Eb?token=hunter2"},
        {"shared_secret": "hunter22"},
        {"protected_branch_ids": [main["id"], stable["id"]]},
        {"protected_branch_ids": [main["id"]]},
        {"protected_branch_ids": []},
        {"name": "Quality", "shared_secret": "hunter22"},  # nothing differs
    ):
        assert (await alice.api.put(one, change)).status == 200
    assert (await alice.api.delete(one)).status == 204
    events = await events_of(forge, project)
    told = [(event.event_type, orjson.loads(event.details)["custom_message"]) for event in events]
    assert told == [
        ("create_status_check", "Added QA status check with all branches"),
        ("external_status_check_name_updated", "Changed name from QA to Quality"),
        (
            "external_status_check_url_updated",
            "Changed external url from http://203.0.113.7/a to http://203.0.113.7/%7Eb",
        ),
        ("external_status_check_secret_updated", "Changed shared secret of Quality status check"),
        (
            "update_status_check",
            "Added protected branch main to Quality status check and removed all other branches "
            "from status check",
        ),
        ("update_status_check", "Added protected branch stable to Quality status check"),
        ("update_status_check", "Removed protected branch stable from Quality status check"),
        ("update_status_check", "Added all branches to Quality status check"),
        ("delete_status_check", "Removed Quality status check"),
    ]
    assert {(e.author_id, e.target_id) for e in events} == {(alice.id, made["id"])}
    assert not [event for event in events if "hunter2" in event.details]
    name = orjson.loads(events[1].details)
    assert (name["change"], name["from"], name["to"]) == ("name", "QA", "Quality")


async def test_a_check_for_branches_is_audited_with_their_names(
    forge: Forge, alice: Person, project: dict[str, Any], checks: str
) -> None:
    ids = [(await protect(alice, project, name))["id"] for name in ("a", "b")]
    wanted = {"name": "QA", "external_url": ELSEWHERE, "protected_branch_ids": ids}
    await alice.api.post(checks, wanted)
    (event,) = await events_of(forge, project)
    message = "Added QA status check with protected branch(es) a, b"
    assert orjson.loads(event.details)["custom_message"] == message


async def test_the_end_of_a_protection_tells_what_the_check_applies_to_now(
    forge: Forge, alice: Person, project: dict[str, Any], checks: str
) -> None:
    ids = [(await protect(alice, project, name))["id"] for name in ("main", "stable")]
    wanted = {"name": "QA", "external_url": ELSEWHERE, "protected_branch_ids": ids}
    made = (await alice.api.post(checks, wanted)).body
    for name in ("main", "stable"):
        path = f"/projects/{project['id']}/protected_branches/{name}"
        assert (await alice.api.delete(path)).status == 204
    events = (await events_of(forge, project))[1:]
    assert [
        (event.event_type, event.author_id, event.target_id, orjson.loads(event.details)["custom_message"])
        for event in events
    ] == [
        ("update_status_check", alice.id, made["id"], message)
        for message in (
            "Removed protected branch main from QA status check",
            "Added all branches to QA status check",
        )
    ]
