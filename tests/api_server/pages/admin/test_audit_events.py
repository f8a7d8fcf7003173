"""Audit events on their page: narrowed, as files, and verified."""

import csv
import io

import orjson

from tests.api_server.pages.admin.conftest import Scene
from tests.support.browser import PASSWORD, Browser, browsing
from tests.support.forge import SharedForges


async def _clerk(scene: Scene) -> str:
    """The username of somebody who was blocked."""
    clerk = await scene.forge.user("clerk")
    await scene.forge.root.put(f"/users/{clerk.id}", {"name": "=1+1"})
    await scene.forge.root.post(f"/users/{clerk.id}/block")
    return clerk.username


async def test_the_list_is_narrowed_by_all_filters(scene: Scene, boss: Browser) -> None:
    username = await _clerk(scene)
    await boss.get("/admin/audit_events?event_type=user_blocked&entity_type=User&author_username=root")
    assert username in boss.text
    await boss.get("/admin/audit_events?event_type=user_blocked&created_before=2001-01-01T00:00&entity_id=")
    assert "No audit events fit these filters." in boss.text
    await boss.get("/admin/audit_events?entity_type=Nonsense")
    assert boss.status == 400


async def test_what_the_filters_let_through_is_a_file(scene: Scene, boss: Browser) -> None:
    username = await _clerk(scene)
    query = "event_type=user_blocked&created_after=2020-01-01T00:00:00"
    await boss.get(f"/admin/audit_events?{query}")
    assert (
        'href="/admin/audit_events/export?event_type=user_blocked&amp;created_after=2020-01-01T00%3A00%3A00'
        in (boss.text)
    )
    await boss.get(f"/admin/audit_events/export?{query}&format=ndjson")
    events = [orjson.loads(line) for line in boss.text.splitlines()]
    assert events == (await scene.forge.root.get("/audit_events?event_type=user_blocked&per_page=100")).body
    await boss.get(f"/admin/audit_events/export?{query}&format=csv")
    assert boss.headers["Content-Disposition"] == 'attachment; filename="audit-events.csv"'
    rows = list(csv.DictReader(io.StringIO(boss.text)))
    assert [row["id"] for row in rows] == [str(event["id"]) for event in events]
    assert (rows[0]["entity_path"], rows[0]["event_name"]) == (username, "user_blocked")


async def test_a_spreadsheet_computes_nothing_that_users_have_named(scene: Scene, boss: Browser) -> None:
    username = await _clerk(scene)
    clerk = (await scene.forge.root.get(f"/users?username={username}")).body[0]
    await scene.forge.token(clerk["id"])
    await boss.get("/admin/audit_events/export?event_type=personal_access_token_created&format=csv")
    assert "'=1+1" in [row["target_details"] for row in csv.DictReader(io.StringIO(boss.text))]


async def test_the_chain_is_verified_on_the_page(scene: Scene, boss: Browser) -> None:
    await boss.get("/admin/audit_events")
    await boss.send("/admin/audit_events/verify")
    assert "The audit trail is sound: " in boss.text


async def test_the_page_is_there_in_the_tiers_that_have_the_events(shared_forge: SharedForges) -> None:
    forge = await shared_forge(tier="free")
    async with browsing(forge) as browser:
        await browser.sign_in(await forge.user("boss", admin=True, password=PASSWORD))
        for path in ("/admin/audit_events", "/admin/audit_events/export"):
            await browser.get(path)
            assert browser.status == 403
            assert "not available on the free tier" in browser.text
