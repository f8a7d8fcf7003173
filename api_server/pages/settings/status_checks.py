"""`/<project>/-/settings/merge_requests`: rules for merging, and external status checks with their deliveries."""

from collections.abc import Mapping
from typing import Any, Literal

import attrs
from aiohttp import web

from api_server.code import protected_ref_handlers
from api_server.git.remote.access import mask_url
from api_server.namespaces import project_handlers
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.lists import EMPTY_IS_ALL, act
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.pages.settings import frame
from api_server.status_checks import handlers
from api_server.web.errors import ApiError, reason_of
from api_server.web.pagination import MAX_PER_PAGE
from api_server.web.routes import Role, ask

pages = Pages()

PAGE = "/{project}/-/settings/merge_requests"
CHECK = f"{PAGE}/status_checks/{{check_id}}"
MAINTAINER = project(Role.MAINTAINER)


@pages.get(PAGE, access=MAINTAINER)
async def show_merge_request_settings(
    request: web.Request, visitor: Visitor, project: Project
) -> web.Response:
    checks, unlicensed = await _checks(request, project)
    return frame.answer(
        request,
        visitor,
        project,
        "merge_requests.html",
        entity=await page.read(request, project_handlers.show_project, project),
        checks=checks,
        unlicensed=unlicensed,
        branches=await _protected_branches(request, project),
    )


async def _checks(request: web.Request, project: Project) -> tuple[list[dict[str, Any]], str]:
    """Return the project's checks and "". If the license has no checks, return none, and a sentence that says so."""
    try:
        return await page.read(request, handlers.list_services, project, per_page=MAX_PER_PAGE), ""
    except ApiError as refusal:
        if refusal.status != 403:
            raise
        return [], reason_of(refusal)


async def _protected_branches(request: web.Request, project: Project) -> list[dict[str, Any]]:
    """Return the branches to which a check can be limited."""
    handler = protected_ref_handlers.list_protected_branches
    branches: list[dict[str, Any]] = await page.read(request, handler, project, per_page=MAX_PER_PAGE)
    return branches


act(
    pages,
    f"{PAGE}/update",
    project_handlers.update_project,
    "Settings saved.",
    access=MAINTAINER,
    home=PAGE,
    form_page=show_merge_request_settings,
)


@attrs.frozen(kw_only=True)
class ShowCheck:
    check_id: int
    page: int = 1
    status: Literal["queued", "delivered", "failed"] | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)


@attrs.frozen(kw_only=True)
class ShowDelivery:
    check_id: int
    delivery_id: int


@pages.get(CHECK, access=MAINTAINER)
async def show_check(
    request: web.Request, visitor: Visitor, params: ShowCheck, project: Project
) -> web.Response:
    """Show a check and its deliveries, the newest first."""
    check = await page.read(request, handlers.show_service, project, check_id=params.check_id)
    query = attrs.asdict(params)
    deliveries = await page.read_list(request, handlers.list_deliveries, project, **query)
    return frame.answer(
        request,
        visitor,
        project,
        "status_check.html",
        check=check,
        deliveries=[delivery | {"next": why_it_waits(delivery, check)} for delivery in deliveries.rows],
        pages=deliveries.pages,
        state=params.status,
        branches=await _protected_branches(request, project),
    )


def why_it_waits(delivery: Mapping[str, Any], check: Mapping[str, Any]) -> str:
    """Return in a sentence what happens next with the delivery, or "" if it has arrived."""
    if delivery["status"] == "delivered":
        return ""
    if check["paused"]:
        return "The status check is paused: nothing is sent until it is resumed, except redeliveries."
    if delivery["status"] == "failed":
        return "All attempts failed. The delivery is sent again only if you redeliver it."
    return "Will be sent shortly." if not delivery["attempts_count"] else "Will be retried automatically."


@pages.get(f"{CHECK}/deliveries/{{delivery_id}}", access=MAINTAINER)
async def show_delivery(
    request: web.Request, visitor: Visitor, params: ShowDelivery, project: Project
) -> web.Response:
    """Show a delivery with its message and all its attempts."""
    check = await page.read(request, handlers.show_service, project, check_id=params.check_id)
    ids = {"check_id": params.check_id, "delivery_id": params.delivery_id}
    delivery = await page.read(request, handlers.show_delivery, project, **ids)
    return frame.answer(
        request,
        visitor,
        project,
        "delivery.html",
        check=check,
        delivery=delivery,
        next=why_it_waits(delivery, check),
    )


@pages.post(f"{PAGE}/status_checks", access=MAINTAINER, form_page=show_merge_request_settings)
async def create_check(request: web.Request, visitor: Visitor, form: Form, project: Project) -> web.Response:
    check = await page.read(request, handlers.create_service, project, **_configuration(form))
    return _to(request, visitor, project, check["id"], "Status check created.")


@pages.post(f"{CHECK}/update", access=MAINTAINER, form_page=show_check)
async def update_check(request: web.Request, visitor: Visitor, form: Form, project: Project) -> web.Response:
    """Change a check. Its secret stays if none is typed, and its address if that still has the asterisks that hide the
    credentials."""
    check_id, fields = request.match_info["check_id"], _configuration(form)
    check = await page.read(request, handlers.show_service, project, check_id=check_id)
    if fields["external_url"] == mask_url(check["external_url"]):
        del fields["external_url"]
    await ask(request, handlers.update_service, project, check_id=check_id, **fields)
    return _to(request, visitor, project, check_id, "Status check updated.")


def _configuration(form: Form) -> dict[str, Any]:
    """Return the API's parameters. An empty secret is not among them, unless the form asks to forget the present
    one."""
    limited = form.get("applies_to") == "some"
    fields: dict[str, Any] = {
        "name": form.get("name", ""),
        "external_url": form.get("external_url", ""),
        "protected_branch_ids": form.get("protected_branch_ids", []) if limited else [],
    }
    if form.get("forget_secret"):
        return fields | {"shared_secret": ""}
    return fields | ({"shared_secret": form["shared_secret"]} if form.get("shared_secret") else {})


@pages.post(f"{CHECK}/delete", access=MAINTAINER)
async def delete_check(
    request: web.Request, visitor: Visitor, params: ShowCheck, project: Project
) -> web.Response:
    await ask(request, handlers.delete_service, project, check_id=params.check_id)
    address = f"/{project.full_path}/-/settings/merge_requests"
    return page.see_other(request, visitor, address, "Status check deleted.")


act(
    pages,
    f"{CHECK}/resume",
    handlers.update_service,
    "Status check resumed. The current state of all open merge requests is sent to it.",
    access=MAINTAINER,
    home=PAGE,
    paused="false",
)
act(
    pages,
    f"{CHECK}/deliveries/{{delivery_id}}/redeliver",
    handlers.redeliver,
    "Redelivery queued.",
    access=MAINTAINER,
    home=PAGE,
)


def _to(
    request: web.Request, visitor: Visitor, project: Project, check_id: object, text: str
) -> web.Response:
    address = f"/{project.full_path}/-/settings/merge_requests/status_checks/{check_id}"
    return page.see_other(request, visitor, address, text)
