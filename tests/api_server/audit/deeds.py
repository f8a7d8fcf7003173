"""What writes audit events beside requests to the API: pages, background work, and operators' commands."""

import asyncio
import datetime
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
from click.testing import CliRunner

from api_server.accounts import emails, password_queries
from api_server.accounts import passwords as resets
from api_server.invitations.changes import KEPT_UNANSWERED, clear_away
from api_server.state.secrets import digest
from api_server.status_checks.dispatcher import DISPATCHER
from api_server.web.context import SERVICES
from forgelet.command_line import forgelet
from tests.api_server.audit.things import Things
from tests.api_server.audit.trail import MAKE_OLD_MONTH
from tests.api_server.status_checks.receiver import answer, running_receiver
from tests.support.browser import PASSWORD, Browser, browsing

Making = Callable[[Things], AsyncIterator[None]]


@attrs.frozen
class Deed:
    """What is done, which yields once, when all is there; `what` is a route, or says it in words."""

    what: str
    events: tuple[str, ...]
    made: Making
    #: Of a server of its own.
    settings: dict[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.what}: {self.made.__name__}"


DEEDS: list[Deed] = []


def deed(what: str, events: str, **settings: Any) -> Callable[[Making], Making]:
    def add(made: Making) -> Making:
        DEEDS.append(Deed(what, tuple(sorted(events.split())), made, settings or None))
        return made

    return add


# --- pages


async def _send(browser: Browser, path: str, status: int = 200, **fields: str) -> None:
    await browser.send(path, **fields)
    assert browser.status == status, browser.text


@deed("POST /-/sign_in", "authenticated_with_password")
async def the_right_password(things: Things) -> AsyncIterator[None]:
    person = await things.get("person_with_password")
    async with browsing(things.forge) as browser:
        await browser.get("/-/sign_in")
        yield
        await _send(browser, "/-/sign_in", login=person.username, password=PASSWORD)


@deed("POST /-/sign_in", "login_failed_with_standard_authentication")
async def a_wrong_password(things: Things) -> AsyncIterator[None]:
    person = await things.get("person_with_password")
    async with browsing(things.forge) as browser:
        await browser.get("/-/sign_in")
        yield
        await _send(browser, "/-/sign_in", 401, login=person.username, password="wrong")


@deed("POST /-/sign_in", "login_failed_with_standard_authentication")
async def an_unknown_login(things: Things) -> AsyncIterator[None]:
    async with browsing(things.forge) as browser:
        await browser.get("/-/sign_in")
        yield
        await _send(browser, "/-/sign_in", 401, login="nobody", password=PASSWORD)


@deed("POST /-/invites/{token}/accept", "member_created")
async def an_invitation(things: Things) -> AsyncIterator[None]:
    page, person = await things.get("invitation_page"), await things.get("invited_person")
    async with browsing(things.forge) as browser:
        await browser.enter(things.forge, person)
        await browser.get(page)
        yield
        await _send(browser, f"{page}/accept")


@deed("POST /-/invites/{token}/accept", "member_destroyed")
async def an_invitation_of_a_member(things: Things) -> AsyncIterator[None]:
    page, person = await things.get("invitation_page"), await things.get("invited_person")
    await things.add_member(person.id)
    async with browsing(things.forge) as browser:
        await browser.enter(things.forge, person)
        await browser.get(page)
        yield
        await _send(browser, f"{page}/accept")


@deed("POST /-/invites/{token}/decline", "member_destroyed")
async def an_invitation_declined(things: Things) -> AsyncIterator[None]:
    page = await things.get("invitation_page")
    async with browsing(things.forge) as browser:
        await browser.get(page)
        yield
        await _send(browser, f"{page}/decline")


@deed("POST /-/emails/{id}/{token}", "email_confirmed")
async def an_address(things: Things) -> AsyncIterator[None]:
    person, email = await things.get("person"), await things.get("email")
    row = await things.forge.database.row("SELECT id, email FROM user_emails WHERE id = %(id)s", id=email)
    token = emails.confirmation_token(things.forge.server.app[SERVICES].vault, row)
    async with browsing(things.forge) as browser:
        await browser.enter(things.forge, person)
        await browser.get(f"/-/emails/{email}/{token}")
        yield
        await _send(browser, f"/-/emails/{email}/{token}")


@deed("POST /-/password", "password_reset_requested", work=True)
async def a_forgotten_password(things: Things) -> AsyncIterator[None]:
    address = await things.get("address")
    async with browsing(things.forge) as browser:
        await browser.get("/-/password/new")
        yield
        await _send(browser, "/-/password", email=address)
        await things.until_recorded("password_reset_requested")


@deed("POST /-/password/{token}", "user_password_updated")
async def a_new_password(things: Things) -> AsyncIterator[None]:
    async with things.forge.database.transaction() as transaction:
        expires_at = transaction.now + resets.LIFETIME
        await password_queries.keep(transaction, await things.get("user"), digest("flpwd-x"), expires_at)
    async with browsing(things.forge) as browser:
        await browser.get("/-/password/flpwd-x")
        yield
        fields = dict.fromkeys(("password", "password_confirmation"), "even longer")
        await _send(browser, "/-/password/flpwd-x", **fields)


@deed("POST /-/user_settings/password", "user_password_updated")
async def another_password(things: Things) -> AsyncIterator[None]:
    await things.get("person_with_password")
    async with browsing(things.forge) as browser:
        await _settings(things, browser, "password")
        yield
        fields = dict.fromkeys(("password", "password_confirmation"), "even longer")
        await _send(browser, "/-/user_settings/password", present_password=PASSWORD, **fields)


@deed("POST /-/user_settings/personal_access_tokens", "personal_access_token_created")
async def a_token_of_her_own(things: Things) -> AsyncIterator[None]:
    async with browsing(things.forge) as browser:
        await _settings(things, browser, "personal_access_tokens")
        yield
        await _send(browser, "/-/user_settings/personal_access_tokens", name="mine", scope_api="1")


@deed("POST /-/user_settings/personal_access_tokens/{id}/revoke", "personal_access_token_revoked")
async def a_token_given_up(things: Things) -> AsyncIterator[None]:
    token = await things.get("token")
    async with browsing(things.forge) as browser:
        await _settings(things, browser, "personal_access_tokens")
        yield
        await _send(browser, f"/-/user_settings/personal_access_tokens/{token}/revoke")


@deed("POST /-/user_settings/emails", "email_created")
async def a_further_address(things: Things) -> AsyncIterator[None]:
    async with browsing(things.forge) as browser:
        await _settings(things, browser)
        yield
        await _send(browser, "/-/user_settings/emails", email=f"{await things.get('new')}@example.org")


@deed("POST /-/user_settings/emails/{id}/remove", "email_destroyed")
async def an_address_given_up(things: Things) -> AsyncIterator[None]:
    email = await things.get("email")
    async with browsing(things.forge) as browser:
        await _settings(things, browser)
        yield
        await _send(browser, f"/-/user_settings/emails/{email}/remove")


async def _settings(things: Things, browser: Browser, below: str = "") -> None:
    await browser.enter(things.forge, await things.get("person"))
    await browser.get(f"/-/user_settings/{below}".removesuffix("/"))


@deed(
    "POST /admin/application_settings/repository", "application_setting_updated application_setting_updated"
)
async def the_external_storage(things: Things) -> AsyncIterator[None]:
    path = "/admin/application_settings/repository"
    boss = await things.forge.user(admin=True)
    async with browsing(things.forge) as browser:
        await browser.enter(things.forge, boss)
        await browser.get(path)
        yield
        await _send(
            browser,
            path,
            static_objects_external_storage_url="https://cdn.example.org",
            static_objects_external_storage_auth_token="hidden",
        )


# --- background work


@deed("invitations are cleared away", "member_destroyed")
async def an_expired_invitation(things: Things) -> AsyncIterator[None]:
    today = str(things.forge.database.now.date())
    await things.post(
        "/projects/{project}/invitations", email="{new}@example.org", access_level=30, expires_at=today
    )
    yield
    async with things.forge.database.transaction() as transaction:
        assert await clear_away(transaction, KEPT_UNANSWERED) == 1


@deed("a push mirror is updated", "remote_mirror_update_failed", work=True, allow_local_requests=True)
async def a_target_that_is_not_there(things: Things) -> AsyncIterator[None]:
    values = {"url": "http://127.0.0.1:1/app.git", "enabled": True}
    mirror = await things.post("/projects/{repository}/remote_mirrors", **values)
    yield
    await things.post(f"/projects/{{repository}}/remote_mirrors/{mirror['id']}/sync")
    await things.until_recorded("remote_mirror_update_failed")


@deed("status checks are sent", "external_status_check_paused", work=False, allow_local_requests=True)
async def a_receiver_that_is_gone(things: Things) -> AsyncIterator[None]:
    async with running_receiver() as receiver:
        receiver.answers = [answer(410)]
        await things.post(
            "/projects/{repository}/external_status_checks", name="QA", external_url=receiver.url
        )
        await things.get("merge_request")
        yield
        await things.forge.server.app[SERVICES][DISPATCHER].deliver_due()


@deed("DELETE /projects/{id}/repository/tags/{name}", "release_deleted_audit_event")
async def a_release_goes_with_its_tag(things: Things) -> AsyncIterator[None]:
    tag = await things.get("release")
    yield
    await things.forge.root.delete(await things.fill(f"/projects/{{repository}}/repository/tags/{tag}"))


# --- operators' commands


async def _run(things: Things, *arguments: str) -> None:
    settings = things.forge.settings
    environment = {
        "FORGELET_API_DATABASE_URL": settings.database_url,
        "FORGELET_API_DATA_DIR": str(settings.data_dir),
    }
    done = await asyncio.to_thread(CliRunner().invoke, forgelet, arguments, env=environment)
    assert done.exit_code == 0, done


@deed("jobs remove-data", "job_data_removed", work=False)
async def what_old_jobs_left(things: Things) -> AsyncIterator[None]:
    await things.get("finished_job")
    tomorrow = things.forge.database.now + datetime.timedelta(days=1)
    yield
    await _run(things, "jobs", "remove-data", "--yes", "--before", f"{tomorrow:%Y-%m-%d}")


@deed("audit remove", "audit_events_removed", work=False)
async def an_old_month(things: Things) -> AsyncIterator[None]:
    await things.forge.execute(MAKE_OLD_MONTH)
    yield
    folder = str(things.forge.settings.data_dir)
    await _run(things, "audit", "remove", "--yes", "--before", "2021-11-01", "--export-to", folder)


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
