"""Creating, changing and deleting mirrors, each with its audit events in the caller's transaction."""

from urllib.parse import urlsplit

from api_server.git.remote.access import MASK
from api_server.git.remote.ssh_keys import InvalidHostKeysError
from api_server.mirrors import configuration, queries
from api_server.mirrors.configuration import Configuration, MirrorUpdate, is_same_repository
from api_server.mirrors.queries import Mirror
from api_server.namespaces.project_queries import lock_project
from api_server.namespaces.resources import Project
from api_server.outbound.client import OUTGOING_POLICY, RESOLVER
from api_server.outbound.destinations import MIRROR_SCHEMES
from api_server.outbound.policy import why_blocked
from api_server.services import Services
from api_server.state import audit_trail
from api_server.state.database import Transaction
from api_server.state.errors import Conflict
from api_server.web.auth import Actor
from api_server.web.errors import invalid

#: Maximum number of enabled mirrors of a project.
MAX_ENABLED = 10


async def check(
    services: Services, project: Project, requested: MirrorUpdate, before: Configuration | None = None
) -> None:
    """Raise 400 if the requested values are invalid. This queries DNS, so call it before the transaction begins."""
    _refuse_asterisks(requested, before)
    problems = requested.problems()
    if isinstance(requested.url, str) and (before is None or requested.url != before.shown_url):
        if problem := await _url_problem(services, requested.url):
            problems["url"] = [problem]
        elif is_same_repository(requested.url, f"{services.settings.base_url}/{project.full_path}.git"):
            problems["base"] = ["You cannot mirror a repository to itself."]
    if problems:
        raise invalid(problems)


async def create(
    services: Services, actor: Actor, transaction: Transaction, project: Project, requested: MirrorUpdate
) -> str:
    """Create a mirror and return its JSON. Raise 400 if there are too many or the URL is taken."""
    await lock_project(transaction, project.id)
    after = _updated(services, Configuration(), requested)
    await _check_limit(transaction, project, after)
    try:
        created = await queries.create(transaction, project.id, after)
    except Conflict:
        raise invalid({"url": ["has already been taken"]}) from None
    target = project.entity.target(created.id, after.shown_url)
    await audit_trail.record(transaction, "remote_mirror_created", actor.author, target)
    return created.entity


async def update(
    services: Services,
    actor: Actor,
    transaction: Transaction,
    project: Project,
    mirror_id: int,
    requested: MirrorUpdate,
) -> str:
    """Change a mirror and return its JSON. Raise NotFound, and 400 if there are too many or the URL is taken."""
    if requested.enabled is True:  # lock the project before the mirror, in the order of a project's deletion
        await lock_project(transaction, project.id)
    before = await queries.lock(transaction, project.id, mirror_id)
    _refuse_asterisks(requested, before)
    after = _updated(services, before, requested)
    if after.enabled and not before.enabled:
        await _check_limit(transaction, project, after)
    if configuration.is_retargeted(before, after):
        await queries.retarget(transaction, before.id)
    try:
        entity = await queries.update(transaction, before.id, after)
    except Conflict:
        raise invalid({"url": ["has already been taken"]}) from None
    target = project.entity.target(before.id, after.shown_url)
    for name, (old, new) in configuration.differences(before, after).items():
        message = f"Changed {name} of push mirror" + (f" from {old} to {new}" if old or new else "")
        change = {"change": name, "from": old, "to": new}
        await audit_trail.record(
            transaction, "remote_mirror_updated", actor.author, target, message, **change
        )
    return entity


async def delete(actor: Actor, transaction: Transaction, project: Project, mirror: Mirror) -> None:
    """Delete the mirror. A run in progress notices it and ends."""
    await queries.delete(transaction, mirror.id)
    target = project.entity.target(mirror.id, mirror.shown_url)
    await audit_trail.record(transaction, "remote_mirror_deleted", actor.author, target)


async def _url_problem(services: Services, url: str) -> str | None:
    if not url.strip():
        return "can't be blank"
    policy = await services[OUTGOING_POLICY]()
    reason = await why_blocked(url, policy, services[RESOLVER], schemes=MIRROR_SCHEMES)
    return reason and f"is blocked: {reason}"


def _refuse_asterisks(requested: MirrorUpdate, before: Configuration | None) -> None:
    """Raise 400 if the URL has asterisks for credentials. The masked URL itself is accepted: it changes nothing."""
    if isinstance(requested.url, str) and (before is None or requested.url != before.shown_url):
        server = requested.url.partition("://")[2].partition("/")[0]
        if f"{MASK}:{MASK}@" in server or server.startswith(f"{MASK}@"):
            raise invalid({"url": ["has asterisks for credentials; send the user name and the password"]})


def _updated(services: Services, before: Configuration, requested: MirrorUpdate) -> Configuration:
    host = urlsplit(services.settings.base_url).hostname or "localhost"
    try:
        return configuration.apply_update(before, requested, services.vault, host)
    except InvalidHostKeysError as problem:
        raise invalid(str(problem)) from None


async def _check_limit(transaction: Transaction, project: Project, after: Configuration) -> None:
    if after.enabled and await queries.count_enabled(transaction, project.id) >= MAX_ENABLED:
        text = f"Maximum number of push mirrors ({MAX_ENABLED}) exceeded for this project."
        raise invalid({"base": [text]})
