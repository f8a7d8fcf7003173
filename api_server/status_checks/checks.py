"""Creating, changing, resuming and deleting status check services, and recording their answers; each in the caller's
transaction."""

import datetime
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from api_server.code.protected_refs import EndOfProtection
from api_server.merge_requests.changes import check_head
from api_server.merge_requests.merging import retry_auto_merge
from api_server.merge_requests.queries import MergeRequest
from api_server.namespaces.resources import Project
from api_server.outbound import policy as checks
from api_server.outbound.client import OUTGOING_POLICY, RESOLVER
from api_server.outbound.destinations import HTTP_SCHEMES, without_secrets
from api_server.services import Services
from api_server.state import audit_trail
from api_server.state.audit_trail import SYSTEM, Author, Entity, Target
from api_server.state.database import Transaction
from api_server.state.errors import Conflict
from api_server.status_checks import delivery_queries, queries
from api_server.status_checks.queries import NewAnswer, ProtectedBranch, Service
from api_server.web.auth import Actor
from api_server.web.errors import ApiError, invalid, record_not_found

MAX_NAME = 255
MAX_URL = 2048
MAX_SECRET = 255
_TAKEN = {
    "external_status_checks_name": "Name has already been taken",
    "external_status_checks_url": "External url has already been taken",
}


@attrs.frozen(kw_only=True)
class Configuration:
    """The requested attributes of a check. `branch_ids` are ids of protected branches; if empty, the check applies to
    every branch, and None keeps the branches. `blocked` is the reason why the URL must not be called, if any, in
    GitLab's words."""

    name: str
    external_url: str
    secret: str | None = attrs.field(repr=False)
    branch_ids: tuple[int, ...] | None
    blocked: str | None


async def why_blocked(services: Services, url: str) -> str | None:
    """Return the reason why deliveries to `url` would be refused, or None. Call it outside of transactions."""
    policy = await services[OUTGOING_POLICY]()
    return await checks.why_blocked(url, policy, services[RESOLVER], schemes=HTTP_SCHEMES)


async def create(
    services: Services, actor: Actor, transaction: Transaction, project: Project, configuration: Configuration
) -> int:
    """Create a check and return its id. Queue the state of all open merge requests that it applies to for delivery.

    Raise 422 with every problem, and 404 for protected branches that do not exist.
    """
    await _check(transaction, project, None, configuration)
    branches = await _branches(transaction, project, configuration.branch_ids or ())
    try:
        check_id = await queries.create(
            transaction, project_id=project.id, **_columns(services, configuration)
        )
    except Conflict as problem:
        raise invalid([_TAKEN[problem.constraint]], status=422) from problem
    limit = services.settings.status_checks_limit
    if await queries.QUOTA.is_exceeded(transaction, project.id, limit):
        raise invalid([f"Maximum number of external status checks ({limit}) exceeded"], status=422)
    await queries.set_scope(transaction, check_id, [branch.id for branch in branches])
    await delivery_queries.queue_all_open(transaction, check_id, actor.user_id)
    scope_text = f"protected branch(es) {', '.join(b.name for b in branches)}" if branches else "all branches"
    target = project.entity.target(check_id, configuration.name)
    await audit_trail.record(transaction, "create_status_check", actor.author, target, branches=scope_text)
    return check_id


async def update(
    services: Services,
    actor: Actor,
    transaction: Transaction,
    project: Project,
    before: Service,
    configuration: Configuration,
    *,
    resumes: bool,
) -> None:
    """Change a check. A paused check sends again if the caller `resumes` it or if its URL changes.

    Raise 422 with every problem, and 404 for protected branches that do not exist.
    """
    await _check(transaction, project, before.id, configuration)
    columns = _columns(services, configuration)
    secret_changed = configuration.secret != secret_of(services, before)
    if not secret_changed:
        columns["shared_secret"] = before.shared_secret
    scope = branches = await queries.scope(transaction, before.id)
    if configuration.branch_ids is not None:
        branches = await _branches(transaction, project, configuration.branch_ids)
        await queries.set_scope(transaction, before.id, [branch.id for branch in branches])
    try:
        await queries.update(transaction, before.id, **columns)
    except Conflict as problem:
        raise invalid([_TAKEN[problem.constraint]], status=422) from problem
    target = project.entity.target(before.id, configuration.name)
    await _record_changes(
        transaction, actor.author, target, before, configuration, secret_changed=secret_changed
    )
    for message in _scope_messages(
        configuration.name, {rule.name for rule in scope}, {rule.name for rule in branches}
    ):
        await audit_trail.record(transaction, "update_status_check", actor.author, target, message)
    if before.paused_at is not None and (resumes or configuration.external_url != before.external_url):
        await resume(transaction, before.id, actor.user_id)
        await audit_trail.record(transaction, "update_status_check", actor.author, target)


async def _record_changes(
    transaction: Transaction,
    author: Author,
    target: Target,
    before: Service,
    after: Configuration,
    *,
    secret_changed: bool,
) -> None:
    """Record an event for each changed attribute: URLs without their secret parts, and a secret without its value."""
    if after.name != before.name:
        change = {"change": "name", "from": before.name, "to": after.name}
        await audit_trail.record(transaction, "external_status_check_name_updated", author, target, **change)
    if after.external_url != before.external_url:
        old, new = without_secrets(before.external_url), without_secrets(after.external_url)
        change = {"change": "external url", "from": old, "to": new}
        await audit_trail.record(transaction, "external_status_check_url_updated", author, target, **change)
    if secret_changed:
        await audit_trail.record(transaction, "external_status_check_secret_updated", author, target)


def _scope_messages(name: str, old: set[str], new: set[str]) -> Iterator[str]:
    """Yield a message for each branch that was added to the check's scope or removed from it."""
    if old and not new:
        yield f"Added all branches to {name} status check"
        return
    for number, branch in enumerate(sorted(new - old)):
        ending = " and removed all other branches from status check" if not old and number == 0 else ""
        yield f"Added protected branch {branch} to {name} status check{ending}"
    for branch in sorted(old - new):
        yield f"Removed protected branch {branch} from {name} status check"


async def delete(actor: Actor, transaction: Transaction, project: Project, before: Service) -> None:
    """Delete the check with its answers and deliveries."""
    await queries.delete(transaction, before.id)
    target = project.entity.target(before.id, before.name)
    await audit_trail.record(transaction, "delete_status_check", actor.author, target)


async def follow_end_of_protection(transaction: Transaction, end: EndOfProtection) -> None:
    """Remove a branch that is no longer protected from the scope of checks.

    A check that loses its last branch applies to all branches, so that nothing is merged without it. The state of all
    open merge requests is then queued for it, unless it is paused.
    """
    for check in await queries.leave_branch(transaction, end.rule_id):
        change = (
            "Added all branches to" if check.applies_to_all else f"Removed protected branch {end.name} from"
        )
        target = end.project.entity.target(check.id, check.name)
        message = f"{change} {check.name} status check"
        await audit_trail.record(transaction, "update_status_check", end.author, target, message)
        if check.applies_to_all and not check.is_paused:
            await delivery_queries.queue_all_open(transaction, check.id, end.author.id)


async def resume(transaction: Transaction, check_id: int, user_id: int | None) -> None:
    """Resume a check, and queue the state of all open merge requests that it applies to for delivery."""
    await queries.unpause(transaction, check_id)
    await delivery_queries.queue_all_open(transaction, check_id, user_id)


def secret_of(services: Services, check: Service) -> str | None:
    return None if check.shared_secret is None else services.vault.decrypt(check.shared_secret)


def _columns(services: Services, configuration: Configuration) -> dict[str, Any]:
    return {
        "name": configuration.name,
        "external_url": configuration.external_url,
        "shared_secret": services.vault.encrypt(configuration.secret) if configuration.secret else None,
    }


async def _check(
    transaction: Transaction, project: Project, check_id: int | None, configuration: Configuration
) -> None:
    problems = [*_text_problems(configuration)]
    duplicates = await queries.find_duplicates(
        transaction, project.id, check_id, name=configuration.name, external_url=configuration.external_url
    )
    if duplicates.name:
        problems.append(_TAKEN["external_status_checks_name"])
    if duplicates.external_url:
        problems.append(_TAKEN["external_status_checks_url"])
    if configuration.external_url and configuration.blocked:
        problems.append(f"External url is blocked: {configuration.blocked}")
    if problems:
        raise invalid(problems, status=422)


def _text_problems(configuration: Configuration) -> Iterable[str]:
    if not configuration.name.strip():
        yield "Name can't be blank"
    if len(configuration.name) > MAX_NAME:
        yield f"Name is too long (maximum is {MAX_NAME} characters)"
    if not configuration.external_url:
        yield "External url can't be blank"
        yield "External url must be a valid URL"
    if len(configuration.external_url.encode()) > MAX_URL:
        yield f"External url is too long (maximum is {MAX_URL} characters)"
    if configuration.secret and len(configuration.secret) > MAX_SECRET:
        yield f"Shared secret is too long (maximum is {MAX_SECRET} characters)"


async def _branches(transaction: Transaction, project: Project, ids: Sequence[int]) -> list[ProtectedBranch]:
    branches = await queries.protected_branches(transaction, list(ids))
    if len(branches) < len(set(ids)):
        raise record_not_found()
    if any(branch.project_id != project.id for branch in branches):
        raise invalid(["all protected branches must exist within the project"], status=422)
    return branches


@attrs.frozen(kw_only=True)
class Response:
    """A service's answer about the head `sha`."""

    sha: str
    status: str
    description: str | None = None
    target_url: str | None = None


async def record_response(
    actor: Actor,
    transaction: Transaction,
    check: Service,
    merge_request: MergeRequest,
    response: Response,
) -> int:
    """Record an answer and return its id. Raise 409 if it is not about the present head."""
    check_head(merge_request, response.sha)
    answer = await queries.respond(
        transaction,
        check_id=check.id,
        merge_request_id=merge_request.id,
        user_id=actor.user_id,
        **attrs.asdict(response),
    )
    await _record_answer(transaction, actor.author, answer)
    if response.status == "passed":
        await retry_auto_merge(transaction, merge_request.id)
    return answer.id


async def retry_check(
    actor: Actor, transaction: Transaction, check: Service, merge_request: MergeRequest
) -> None:
    """Queue the merge request's state again; the result stays until the next answer. Raise 422 unless it is
    `failed`."""
    newest = await queries.lock_newest_response(
        transaction, check.id, merge_request.id, merge_request.head_sha
    )
    if newest is None or newest.status != "failed":
        raise ApiError(422, {"message": "External status check must be failed"})
    await queries.note_retry(transaction, newest.id)
    await delivery_queries.queue_state(transaction, check.id, merge_request.id, actor.user_id)


async def time_out_responses(transaction: Transaction, seconds: int) -> None:
    """Set results that have been `pending` for more than `seconds` to `failed`."""
    before = transaction.now - datetime.timedelta(seconds=seconds)
    for failed in await queries.time_out(transaction, before, f"Not answered within {seconds} seconds"):
        await _record_answer(transaction, SYSTEM, failed)


async def _record_answer(transaction: Transaction, author: Author, answer: NewAnswer) -> None:
    await audit_trail.record(
        transaction,
        "status_check_response_update",
        author,
        Entity("Project", answer.project_id, answer.full_path).target(answer.merge_request_id, answer.title),
        external_status_check_id=answer.check_id,
        external_status_check_name=answer.name,
        status=answer.status,
        sha=answer.sha,
        merge_request_id=answer.merge_request_id,
        merge_request_iid=answer.iid,
    )
