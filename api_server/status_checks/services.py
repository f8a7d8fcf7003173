"""Making, changing and removing status check services, each in the caller's transaction, with what is audited."""

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
from aiohttp import web
from yarl import URL

from api_server.namespaces.projects.access import Project
from api_server.outbound.checks import UNRESOLVABLE, check_url
from api_server.outbound.destinations import STATUS_CHECK_SCHEMES, BlockedError
from api_server.outbound.outgoing import OUTGOING_POLICY, RESOLVER
from api_server.state import audit_trail
from api_server.state.database import Conflict, Row, Transaction
from api_server.status_checks import delivery_queries, queries
from api_server.web import context
from api_server.web.authorship import author
from api_server.web.errors import invalid, record_not_found
from api_server.web.routes import caller

MAX_NAME = 255
MAX_URL = 2048
MAX_SECRET = 255
_TAKEN = {
    "external_status_checks_name": "Name has already been taken",
    "external_status_checks_url": "External url has already been taken",
}


@attrs.frozen(kw_only=True)
class Service:
    """What a check is to be. `branch_ids` are those of protected branches; empty means every branch, None leaves the
    branches as they are. `blocked` is why the URL may not be called, in GitLab's words."""

    name: str
    external_url: str
    secret: str | None = attrs.field(repr=False)
    branch_ids: tuple[int, ...] | None
    blocked: str | None


async def why_blocked(request: web.Request, url: str) -> str | None:
    """Why deliveries to `url` would be refused, or None. Resolves its name, so not for inside a transaction.

    A name that does not resolve yet is no reason: every connection is checked again.
    """
    policy = await request.config_dict[OUTGOING_POLICY]()
    try:
        await check_url(url, policy, request.config_dict[RESOLVER], schemes=STATUS_CHECK_SCHEMES)
    except BlockedError as blocked:
        return None if str(blocked) == UNRESOLVABLE else str(blocked)
    return None


async def create(request: web.Request, transaction: Transaction, project: Project, wanted: Service) -> int:
    """The new check's id; the state of all open merge requests that it applies to is sent to it.

    Raises 422 with every problem, 404 for protected branches that do not exist.
    """
    await _check(transaction, project, None, wanted)
    branches = await _branches(transaction, project, wanted.branch_ids or ())
    try:
        check_id = await queries.create_service(
            transaction, project_id=project.id, all_branches=not branches, **_columns(request, wanted)
        )
    except Conflict as taken:
        raise invalid([_TAKEN[taken.constraint]], status=422) from taken
    await queries.set_scope(transaction, check_id, [branch.id for branch in branches])
    await delivery_queries.queue_all_open(transaction, check_id, caller(request).user_id)
    where = f"protected branch(es) {', '.join(b.name for b in branches)}" if branches else "all branches"
    await _record(
        request,
        transaction,
        project,
        "create_status_check",
        check_id,
        wanted.name,
        f"Added {wanted.name} status check with {where}",
    )
    return check_id


async def update(
    request: web.Request, transaction: Transaction, project: Project, before: Row, wanted: Service
) -> None:
    """Changes what differs. A new URL resumes a paused check. Raises as `create`."""
    await _check(transaction, project, before.id, wanted)
    columns = _columns(request, wanted) | {"all_branches": before.all_branches}
    scope = branches = await queries.scope(transaction, before.id)
    if wanted.branch_ids is not None:
        branches = await _branches(transaction, project, wanted.branch_ids)
        columns["all_branches"] = not branches
    if wanted.secret == secret_of(request, before):
        columns["shared_secret"] = before.shared_secret
    try:
        await queries.update_service(transaction, before.id, **columns)
    except Conflict as taken:
        raise invalid([_TAKEN[taken.constraint]], status=422) from taken
    await queries.set_scope(transaction, before.id, [branch.id for branch in branches])
    await _record_changes(request, transaction, project, before, wanted)
    for message in _scope_messages(wanted.name, scope, branches):
        await _record(request, transaction, project, "update_status_check", before.id, wanted.name, message)
    if wanted.external_url != before.external_url and before.paused_at is not None:
        await resume_by_hand(request, transaction, project, before)


async def delete(request: web.Request, transaction: Transaction, project: Project, before: Row) -> None:
    """With its answers and deliveries."""
    await queries.delete_service(transaction, before.id)
    message = f"Removed {before.name} status check"
    await _record(request, transaction, project, "delete_status_check", before.id, before.name, message)


async def resume_by_hand(
    request: web.Request, transaction: Transaction, project: Project, check: Row
) -> None:
    """What `resume` does, for a caller."""
    await resume(transaction, check.id, caller(request).user_id)
    message = f"Resumed {check.name} status check"
    await _record(request, transaction, project, "update_status_check", check.id, check.name, message)


async def record_redelivery(
    request: web.Request, transaction: Transaction, project: Project, check: Row, delivery_id: int
) -> None:
    await audit_trail.record(
        transaction,
        "status_check_delivery_redelivered",
        author=author(request),
        entity=project.entity,
        target_id=check.id,
        target_details=check.name,
        message=f"Redelivered to {check.name} status check",
        delivery_id=delivery_id,
    )


async def resume(transaction: Transaction, check_id: int, user_id: int | None) -> None:
    """Sends again from now on, beginning with the state of all open merge requests that the check applies to."""
    await queries.unpause(transaction, check_id)
    await delivery_queries.queue_all_open(transaction, check_id, user_id)


def secret_of(request: web.Request, check: Row) -> str | None:
    return None if check.shared_secret is None else context.vault(request).decrypt(check.shared_secret)


def _columns(request: web.Request, wanted: Service) -> dict[str, Any]:
    return {
        "name": wanted.name,
        "external_url": wanted.external_url,
        "shared_secret": context.vault(request).encrypt(wanted.secret) if wanted.secret else None,
    }


async def _check(transaction: Transaction, project: Project, check_id: int | None, wanted: Service) -> None:
    problems = [*_text_problems(wanted)]
    taken = await queries.taken(
        transaction, project.id, check_id, name=wanted.name, external_url=wanted.external_url
    )
    if taken.name:
        problems.append(_TAKEN["external_status_checks_name"])
    if taken.external_url:
        problems.append(_TAKEN["external_status_checks_url"])
    if wanted.external_url and wanted.blocked:
        problems.append(f"External url is blocked: {wanted.blocked}")
    if problems:
        raise invalid(problems, status=422)


def _text_problems(wanted: Service) -> Iterable[str]:
    if not wanted.name.strip():
        yield "Name can't be blank"
    if len(wanted.name) > MAX_NAME:
        yield f"Name is too long (maximum is {MAX_NAME} characters)"
    if not wanted.external_url:
        yield "External url can't be blank"
        yield "External url must be a valid URL"
    if len(wanted.external_url) > MAX_URL:
        yield f"External url is too long (maximum is {MAX_URL} characters)"
    if wanted.secret and len(wanted.secret) > MAX_SECRET:
        yield f"Shared secret is too long (maximum is {MAX_SECRET} characters)"


async def _branches(transaction: Transaction, project: Project, wanted_ids: Sequence[int]) -> list[Row]:
    found = await queries.protected_branches(transaction, list(wanted_ids))
    if len(found) < len(set(wanted_ids)):
        raise record_not_found()
    if any(branch.project_id != project.id for branch in found):
        raise invalid(["all protected branches must exist within the project"], status=422)
    return found


async def _record_changes(
    request: web.Request, transaction: Transaction, project: Project, before: Row, wanted: Service
) -> None:
    """One event for each property; of URLs only what is no secret, of secrets only that they changed."""
    old_url, new_url = _without_secrets(before.external_url), _without_secrets(wanted.external_url)
    if wanted.name != before.name:
        details = {"change": "name", "from": before.name, "to": wanted.name}
        message = f"Changed name from {before.name} to {wanted.name}"
        event = "external_status_check_name_updated"
        await _record(request, transaction, project, event, before.id, wanted.name, message, **details)
    if wanted.external_url != before.external_url:
        details = {"change": "external url", "from": old_url, "to": new_url}
        message = f"Changed external url from {old_url} to {new_url}"
        event = "external_status_check_url_updated"
        await _record(request, transaction, project, event, before.id, wanted.name, message, **details)
    if wanted.secret != secret_of(request, before):
        event = "external_status_check_secret_updated"
        message = f"Changed shared secret of {wanted.name} status check"
        await _record(
            request, transaction, project, event, before.id, wanted.name, message, change="shared secret"
        )


def _scope_messages(name: str, before: Sequence[Row], after: Sequence[Row]) -> Iterable[str]:
    old, new = {branch.name for branch in before}, {branch.name for branch in after}
    if old and not new:
        yield f"Added all branches to {name} status check"
        return
    for number, branch in enumerate(sorted(new - old)):
        ending = " and removed all other branches from status check" if not old and number == 0 else ""
        yield f"Added protected branch {branch} to {name} status check{ending}"
    for branch in sorted(old - new):
        yield f"Removed protected branch {branch} from {name} status check"


def _without_secrets(url: str) -> str:
    try:
        return str(URL(url).with_user(None).with_query(None).with_fragment(None))
    except ValueError:
        return ""


async def _record(
    request: web.Request,
    transaction: Transaction,
    project: Project,
    event_type: str,
    check_id: int,
    name: str,
    message: str,
    **details: str,
) -> None:
    await audit_trail.record(
        transaction,
        event_type,
        author=author(request),
        entity=project.entity,
        target_id=check_id,
        target_details=name,
        message=message,
        **details,
    )
