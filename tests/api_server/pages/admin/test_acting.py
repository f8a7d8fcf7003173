"""What administrators do on pages: what the API does, with its rules and its audit events, and a word about it."""

from typing import Any

import pytest

from tests.api_server.pages.admin.conftest import Scene
from tests.support.browser import Browser
from tests.support.forge import Forge
from tests.support.merge_requests import new_project, open_merge_request


async def _events(forge: Forge, event_type: str) -> list[dict[str, Any]]:
    """The newest of that type."""
    answer = await forge.root.get(f"/audit_events?event_type={event_type}&per_page=1")
    return list(answer.body)


async def test_a_user_is_blocked_and_unblocked_where_the_list_stands(scene: Scene, boss: Browser) -> None:
    clerk = await scene.forge.user("clerk")
    here = f"/admin/users?search={clerk.username}"
    await boss.get(here)
    await boss.send(f"/admin/users/{clerk.id}/block")
    assert (boss.status, boss.path_qs) == (200, here)
    assert "The user is blocked." in boss.text
    assert (await clerk.api.get("/user")).status == 403
    (event,) = await _events(scene.forge, "user_blocked")
    assert (event["entity_id"], event["details"]["author_name"]) == (clerk.id, scene.boss.username.title())
    await boss.get("/admin/users?state=blocked")
    assert "The user is blocked." not in boss.text
    assert f"@{clerk.username}" in boss.text
    await boss.send(f"/admin/users/{clerk.id}/unblock")
    assert (await clerk.api.get("/user")).status == 200


async def test_administrators_do_not_block_themselves(scene: Scene, boss: Browser) -> None:
    await boss.get("/admin/users")
    await boss.send(f"/admin/users/{scene.boss.id}/block")
    assert "Nothing was done: You cannot block yourself." in boss.text


async def test_a_token_is_revoked(scene: Scene, boss: Browser) -> None:
    clerk = await scene.forge.user("clerk")
    await boss.get(f"/admin/tokens?username={clerk.username.upper()}&state=active")
    token_id = (await clerk.api.get("/personal_access_tokens/self")).body["id"]
    assert clerk.username in boss.text
    assert clerk.token not in boss.text
    await boss.send(f"/admin/tokens/{token_id}/revoke")
    assert "The token is revoked: it opens nothing any more." in boss.text
    assert "No tokens fit these filters." in boss.text
    assert (await clerk.api.get("/user")).status == 401


async def test_a_runner_is_paused_resumed_and_removed(scene: Scene, boss: Browser) -> None:
    made = await scene.forge.root.post(
        "/user/runners", {"runner_type": "instance_type", "description": "builder"}
    )
    runner, page = f"/runners/{made.body['id']}", f"/admin/runners/{made.body['id']}"
    await boss.get("/admin/runners?status=never_contacted")
    assert "builder" in boss.text
    await boss.send(f"{page}/pause", paused="true")
    assert (await scene.forge.root.get(runner)).body["paused"]
    await boss.send(f"{page}/resume", paused="false")
    assert not (await scene.forge.root.get(runner)).body["paused"]
    await boss.send(f"{page}/remove")
    assert "The runner is removed." in boss.text
    assert (await scene.forge.root.get(runner)).status == 404
    await boss.send(f"{page}/remove")
    assert "Nothing was done: it is not there any more." in boss.text


async def test_a_mirror_runs_when_it_is_asked_to(scene: Scene, boss: Browser) -> None:
    project = await scene.forge.project(initialize_with_readme=True)
    target = {"url": "https://alice:secret@198.51.100.7/x.git", "enabled": True}
    made = (await scene.forge.root.post(f"/projects/{project['id']}/remote_mirrors", target)).body
    await boss.get("/admin/mirrors")
    assert "https://*****:*****@198.51.100.7/x.git" in boss.text
    await boss.send(f"/admin/mirrors/{made['id']}/sync", id=str(project["id"]))
    assert "The mirror runs soon" in boss.text
    off = await scene.forge.root.put(
        f"/projects/{project['id']}/remote_mirrors/{made['id']}", {"enabled": False}
    )
    assert off.status == 200
    await boss.send(f"/admin/mirrors/{made['id']}/sync", id=str(project["id"]))
    assert "Nothing was done: Cannot proceed with the push mirroring." in boss.text


async def test_a_paused_check_is_resumed(scene: Scene, boss: Browser) -> None:
    project = await new_project(scene.forge, scene.boss)
    checks = f"/projects/{project['id']}/external_status_checks"
    check = {"name": "Quality", "external_url": "https://198.51.100.7/hook"}
    made = (await scene.forge.root.post(checks, check)).body
    await open_merge_request(scene.boss, project)
    async with scene.forge.database.transaction() as transaction:
        await transaction.run(
            "UPDATE external_status_checks SET paused_at = %(now)s, pause_reason = 'It failed for days'"
        )
    await boss.get("/admin/deliveries")
    await boss.send(f"/admin/status_checks/{made['id']}/resume", id=str(project["id"]), paused="false")
    assert "The check is resumed: deliveries to it go out again." in boss.text
    assert not (await scene.forge.root.get(f"{checks}/{made['id']}")).body["paused"]


async def test_what_a_form_refuses_stays_in_it(scene: Scene, boss: Browser) -> None:
    await boss.get("/admin/settings")
    given = {"outbound_local_requests_whitelist": "10.0.0.0/8\nno/network/x", "default_projects_limit": "7"}
    await boss.send("/admin/settings", deny_all_requests_except_allowed="true", **given)
    assert boss.status == 400
    assert (
        "Allow list: no/network/x is not an address, a network or a domain with an optional port."
        in boss.text
    )
    assert "10.0.0.0/8\nno/network/x</textarea>" in boss.text
    assert 'name="deny_all_requests_except_allowed" type="checkbox" value="true" checked' in boss.text
    given["outbound_local_requests_whitelist"] = "10.0.0.0/8, example.org:8080"
    await boss.send("/admin/settings", **given)
    assert (boss.path, "The settings are saved." in boss.text) == ("/admin/settings", True)
    shown = (await scene.forge.root.get("/application/settings")).body
    assert shown["outbound_local_requests_whitelist"] == ["10.0.0.0/8", "example.org:8080"]
    assert (shown["default_projects_limit"], shown["deny_all_requests_except_allowed"]) == (7, False)
    assert (await _events(scene.forge, "application_setting_updated"))[0]["details"]["author_name"]


async def test_settings_of_the_process_show_no_secret(scene: Scene, boss: Browser) -> None:
    await boss.get("/admin/settings")
    assert "<code>database_url</code>" in boss.text
    for secret in (scene.forge.settings.database_url, scene.forge.settings.root_token):
        assert secret not in boss.text
    assert str(scene.forge.settings.data_dir) in boss.text


@pytest.mark.parametrize(
    "back", ["https://example.org/", "//example.org", "/admin\r\nX: y", "/adminx", "/group"]
)
async def test_a_form_leads_back_to_administrators_pages_only(boss: Browser, back: str) -> None:
    await boss.get("/admin/audit_events")
    await boss.send("/admin/audit_events/verify", back=back)
    assert boss.path == "/admin"


async def test_a_form_that_is_not_ours_does_nothing(scene: Scene, boss: Browser) -> None:
    clerk = await scene.forge.user("clerk")
    await boss.get("/admin/users")
    await boss.send(f"/admin/users/{clerk.id}/block", csrf_token="another")
    assert boss.status == 403
    assert (await clerk.api.get("/user")).status == 200
