"""What is done on pages writes what the API's routes write."""

from collections.abc import AsyncIterator

from tests.api_server.audit.deeds import deed
from tests.api_server.audit.things import Things
from tests.support.browser import browsing

PAUSE = "UPDATE external_status_checks SET paused_at = %(now)s, pause_reason = 'It failed' WHERE id = %(id)s"


async def _done(
    things: Things, path: str, *, seen: str = "/admin/settings", **fields: str
) -> AsyncIterator[None]:
    """The form of the page `seen` at that path, sent by an administrator who has signed in before."""
    boss = await things.forge.user(admin=True)
    async with browsing(things.forge) as browser:
        await browser.enter(things.forge, boss)
        await browser.get(seen)
        yield
        await browser.send(path, **fields)
        assert browser.status == 200
        assert "Nothing was done" not in browser.text


async def _path(things: Things, project: str) -> str:
    """The full path of a project."""
    found = await things.forge.root.get(f"/projects/{await things.get(project)}")
    return f"/{found.body['path_with_namespace']}"


@deed("POST /{project}/-/pipelines/{id}/delete", "destroy_pipeline")
async def a_pipeline(things: Things) -> AsyncIterator[None]:
    page = f"{await _path(things, 'ci')}/-/pipelines/{await things.get('pipeline')}"
    async for _ in _done(things, f"{page}/delete", seen=page):
        yield


@deed("POST /{project}/-/jobs/{id}/erase", "job_erased")
async def a_job(things: Things) -> AsyncIterator[None]:
    job = await things.get("finished_job")
    page = f"{await _path(things, 'ci')}/-/jobs/{job}"
    async for _ in _done(things, f"{page}/erase", seen=page):
        yield


@deed("POST /{project}/-/merge_requests/{iid}/redeliver", "status_check_delivery_redelivered")
async def a_delivery_of_a_merge_request(things: Things) -> AsyncIterator[None]:
    delivery, check = await things.get("delivery"), await things.get("asked")
    page = f"{await _path(things, 'repository')}/-/merge_requests/{await things.get('merge_request')}"
    ids = {"delivery_id": str(delivery), "check_id": str(check)}
    async for _ in _done(things, f"{page}/redeliver", seen=page, **ids):
        yield


@deed("POST /admin/users/{id}/block", "user_blocked")
async def a_user(things: Things) -> AsyncIterator[None]:
    async for _ in _done(things, f"/admin/users/{await things.get('user')}/block"):
        yield


@deed("POST /admin/users/{id}/unblock", "user_unblocked")
async def a_blocked_user(things: Things) -> AsyncIterator[None]:
    async for _ in _done(things, f"/admin/users/{await things.get('blocked')}/unblock"):
        yield


@deed("POST /admin/tokens/{id}/revoke", "personal_access_token_revoked")
async def a_token(things: Things) -> AsyncIterator[None]:
    async for _ in _done(things, f"/admin/tokens/{await things.get('token')}/revoke"):
        yield


@deed("POST /admin/runners/{id}/pause", "runner_updated")
async def a_runner(things: Things) -> AsyncIterator[None]:
    async for _ in _done(things, f"/admin/runners/{await things.get('runner')}/pause", paused="true"):
        yield


@deed("POST /admin/runners/{id}/resume", "runner_updated")
async def a_paused_runner(things: Things) -> AsyncIterator[None]:
    runner = await things.get("runner")
    await things.forge.root.put(f"/runners/{runner}", {"paused": True})
    async for _ in _done(things, f"/admin/runners/{runner}/resume", paused="false"):
        yield


@deed("POST /admin/runners/{id}/remove", "runner_unregistered")
async def a_useless_runner(things: Things) -> AsyncIterator[None]:
    async for _ in _done(things, f"/admin/runners/{await things.get('runner')}/remove"):
        yield


@deed("POST /admin/deliveries/{delivery_id}/redeliver", "status_check_delivery_redelivered")
async def a_delivery(things: Things) -> AsyncIterator[None]:
    delivery = await things.get("delivery")
    ids = {"id": str(await things.get("repository")), "check_id": str(await things.get("asked"))}
    async for _ in _done(things, f"/admin/deliveries/{delivery}/redeliver", **ids):
        yield


@deed("POST /admin/status_checks/{check_id}/resume", "update_status_check")
async def a_paused_check(things: Things) -> AsyncIterator[None]:
    project, check = str(await things.get("project")), await things.get("check")
    await things.forge.execute(PAUSE, id=check)
    async for _ in _done(things, f"/admin/status_checks/{check}/resume", paused="false", id=project):
        yield


@deed("POST /admin/settings", "application_setting_updated")
async def settings_of_the_instance(things: Things) -> AsyncIterator[None]:
    shown = (await things.forge.root.get("/application/settings")).body
    fields = {
        "default_projects_limit": str(shown["default_projects_limit"] - 1),
        "outbound_local_requests_whitelist": "\n".join(shown["outbound_local_requests_whitelist"]),
    }
    fields |= {name: "true" for name, value in shown.items() if value is True}
    async for _ in _done(things, "/admin/settings", **fields):
        yield
