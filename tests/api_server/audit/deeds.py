"""Sources of audit events other than requests to the API: pages, background work, and operators' commands."""

import asyncio
import datetime
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
from click.testing import CliRunner

from api_server.accounts import emails, password_queries, sign_in_links
from api_server.accounts import passwords as resets
from api_server.invitations.changes import clear_away
from api_server.pages import queries
from api_server.state.secrets import digest
from api_server.status_checks.dispatcher import DISPATCHER
from api_server.web.context import SERVICES
from forgelet.command_line import forgelet
from tests.api_server.audit.conftest import MAKE_OLD_MONTH
from tests.api_server.audit.things import Things
from tests.api_server.status_checks.receiver import answer, running_receiver
from tests.support.browser import PASSWORD, Browser, browsing

Making = Callable[[Things], AsyncIterator[None]]


@attrs.frozen
class Deed:
    """An action that writes audit events. `made` prepares it, yields once, and then performs it; `what` is a route or
    a description."""

    what: str
    events: tuple[str, ...]
    made: Making
    #: Settings of a server of its own.
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


@deed("POST /-/sign_in/{token}", "authenticated_with_link")
async def a_link(things: Things) -> AsyncIterator[None]:
    person = await things.get("person_with_password")
    services = things.forge.server.app[SERVICES]
    counted = await queries.find_counted_account(services.database, person.id)
    assert counted is not None
    token = sign_in_links.new_token(services.vault, person.id, counted.sign_in_count, services.clock())
    async with browsing(things.forge) as browser:
        await browser.get(f"/-/sign_in/{token}")
        yield
        await _send(browser, f"/-/sign_in/{token}")


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
        await browser.enter(things.forge, await things.get("person"))
        await browser.get("/-/user_settings/password")
        yield
        fields = dict.fromkeys(("password", "password_confirmation"), "even longer")
        await _send(browser, "/-/user_settings/password", present_password=PASSWORD, **fields)


def _form(
    what: str,
    events: str,
    path: str,
    *,
    seen: str = "/admin/settings",
    by: str = "administrator",
    **fields: str,
) -> None:
    """Declare a deed that sends the form of the page `seen` to the path, as a person who has signed in before."""

    async def sent(things: Things) -> AsyncIterator[None]:
        given = {name: str(await things.fill(value)) for name, value in fields.items()}
        target, page = await things.fill(path), await things.fill(seen)
        async with browsing(things.forge) as browser:
            await browser.enter(things.forge, await things.get(by))
            await browser.get(page)
            yield
            await _send(browser, target, **given)
            assert "Nothing was done" not in browser.text

    deed(what, events)(sent)


_OWN = "/-/user_settings"
_STORAGE = "/admin/application_settings/repository"
_form(
    f"POST {_OWN}/personal_access_tokens",
    "personal_access_token_created",
    f"{_OWN}/personal_access_tokens",
    seen=f"{_OWN}/personal_access_tokens",
    by="person",
    name="mine",
    **{"scopes[]": "api"},
)
_form(
    f"POST {_OWN}/personal_access_tokens/{{id}}/revoke",
    "personal_access_token_revoked",
    f"{_OWN}/personal_access_tokens/{{token}}/revoke",
    seen=f"{_OWN}/personal_access_tokens",
    by="person",
)
_form(
    f"POST {_OWN}/emails",
    "email_created",
    f"{_OWN}/emails",
    seen=_OWN,
    by="person",
    email="{new}@example.org",
)
_form(
    f"POST {_OWN}/emails/{{id}}/remove",
    "email_destroyed",
    f"{_OWN}/emails/{{email}}/remove",
    seen=_OWN,
    by="person",
)
_form(
    f"POST {_STORAGE}",
    "application_setting_updated application_setting_updated",
    _STORAGE,
    seen=_STORAGE,
    static_objects_external_storage_url="https://cdn.example.org",
    static_objects_external_storage_auth_token="hidden",
)
_form(
    "POST /{project}/-/pipelines/{id}/delete",
    "destroy_pipeline",
    "/{ci_path}/-/pipelines/{pipeline}/delete",
    seen="/{ci_path}/-/pipelines/{pipeline}",
)
_form(
    "POST /{project}/-/jobs/{id}/erase",
    "job_erased",
    "/{ci_path}/-/jobs/{finished_job}/erase",
    seen="/{ci_path}/-/jobs/{finished_job}",
)
_form(
    "POST /{project}/-/merge_requests/{iid}/redeliver",
    "status_check_delivery_redelivered",
    "/{repository_path}/-/merge_requests/{merge_request}/redeliver",
    seen="/{repository_path}/-/merge_requests/{merge_request}",
    delivery_id="{delivery}",
    check_id="{asked}",
)
_form("POST /admin/users/{id}/block", "user_blocked", "/admin/users/{user}/block")
_form("POST /admin/users/{id}/unblock", "user_unblocked", "/admin/users/{blocked}/unblock")
_form("POST /admin/tokens/{id}/revoke", "personal_access_token_revoked", "/admin/tokens/{token}/revoke")
_form("POST /admin/runners/{id}/pause", "runner_updated", "/admin/runners/{runner}/pause", paused="true")
_form(
    "POST /admin/runners/{id}/resume",
    "runner_updated",
    "/admin/runners/{paused_runner}/resume",
    paused="false",
)
_form("POST /admin/runners/{id}/remove", "runner_unregistered", "/admin/runners/{runner}/remove")
_form(
    "POST /admin/deliveries/{delivery_id}/redeliver",
    "status_check_delivery_redelivered",
    "/admin/deliveries/{delivery}/redeliver",
    id="{repository}",
    check_id="{asked}",
)
_form(
    "POST /admin/status_checks/{check_id}/resume",
    "update_status_check",
    "/admin/status_checks/{paused_check}/resume",
    paused="false",
    id="{project}",
)


@deed("POST /admin/settings", "application_setting_updated")
async def settings_of_the_instance(things: Things) -> AsyncIterator[None]:
    shown = (await things.forge.root.get("/application/settings")).body
    fields = {
        "default_projects_limit": str(shown["default_projects_limit"] - 1),
        "outbound_local_requests_whitelist": "\n".join(shown["outbound_local_requests_whitelist"]),
    }
    fields |= {name: "true" for name, value in shown.items() if value is True}
    async with browsing(things.forge) as browser:
        await browser.enter(things.forge, await things.get("administrator"))
        await browser.get("/admin/settings")
        yield
        await _send(browser, "/admin/settings", **fields)
        assert "Nothing was done" not in browser.text


# --- background work


@deed("invitations are cleared away", "member_destroyed")
async def an_expired_invitation(things: Things) -> AsyncIterator[None]:
    today = str(things.forge.database.now.date())
    await things.post(
        "/projects/{project}/invitations", email="{new}@example.org", access_level=30, expires_at=today
    )
    yield
    async with things.forge.database.transaction() as transaction:
        assert await clear_away(transaction) == 1


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


@deed("identity-key rotate", "identity_key_rotated", work=False)
async def the_next_key(things: Things) -> AsyncIterator[None]:
    yield
    await _run(things, "identity-key", "rotate")


@deed("audit remove", "audit_events_removed", work=False)
async def an_old_month(things: Things) -> AsyncIterator[None]:
    await things.forge.execute(MAKE_OLD_MONTH)
    yield
    folder = str(things.forge.settings.data_dir)
    await _run(things, "audit", "remove", "--yes", "--before", "2021-11-01", "--export-to", folder)
