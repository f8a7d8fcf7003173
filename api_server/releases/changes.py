"""Making, changing and removing releases, with the tag that one is of where there is none yet."""

import datetime
from typing import Any

import attrs
from aiohttp import web

from api_server.code import ref_queries
from api_server.code.repository import committing
from api_server.code.repository.access import opened
from api_server.code.tags.protection import NOT_TO_CREATE, tag_protection_for
from api_server.git import references
from api_server.namespaces.resources import Project
from api_server.releases import link_queries, queries
from api_server.releases.links import Link, check_all
from api_server.releases.queries import Release
from api_server.state import audit_trail
from api_server.state.database import Transaction
from api_server.state.errors import Conflict
from api_server.web import context
from api_server.web.errors import ApiError, conflict, forbidden
from api_server.web.routes import author, caller


@attrs.frozen(kw_only=True)
class NewRelease:
    """`ref` is what to make the tag of where there is none, an annotated one with `tag_message`."""

    tag: str
    ref: str | None
    tag_message: str | None
    name: str | None
    description: str | None
    released_at: datetime.datetime | None
    links: list[Link]


async def create(request: web.Request, project: Project, new: NewRelease) -> None:
    """Raises 400, 403 for protected tags, 409 where the tag has a release, 422 without a tag and `ref`."""
    check_all(new.links, context.settings(request).release_links_limit)
    protection = await tag_protection_for(request, project.id, new.tag)
    if not protection.may_create(project.role, admin=project.admin):
        raise ApiError(403, {"message": NOT_TO_CREATE})
    if await queries.find_release(context.database(request), project.id, new.tag):
        raise _exists()
    if references.tag(await opened(request, project), new.tag) is None:
        if not new.ref:
            raise ApiError(422, {"message": "Ref is not specified"})
        await committing.create_tag(request, project, new.tag, new.ref, new.tag_message)
    async with context.database(request).transaction() as transaction:
        await _add(request, transaction, project, new)


async def _add(request: web.Request, transaction: Transaction, project: Project, new: NewRelease) -> None:
    """With the project's row locked, as whoever removes the tag locks it: a release never outlives its tag."""
    await ref_queries.lock_project(transaction, project.id)
    tag = references.tag(await opened(request, project), new.tag)
    if tag is None:
        raise ApiError(404, {"message": "Tag does not exist"})
    values = {
        "project_id": project.id,
        "tag": tag.name,
        "name": new.name or tag.name,
        "description": new.description,
        "sha": tag.commit,
        "author_id": caller(request).user_id,
        "released_at": new.released_at,
    }
    try:
        release = await queries.add_release(transaction, **values)
    except Conflict:
        raise _exists() from None
    await link_queries.add_links(transaction, release.id, [attrs.asdict(link) for link in new.links])
    await _record(request, transaction, "release_created", project, release, "Created")


async def update(request: web.Request, project: Project, tag: str, changed: dict[str, Any]) -> None:
    """`changed` are `name`, `description` and `released_at`, as far as they get other values. Raises 403, 404."""
    await check_may_change(request, project, tag)
    async with context.database(request).transaction() as transaction:
        before = await locked(transaction, project, tag)
        after = attrs.evolve(before, **changed)
        if after == before:
            return
        values = {name: getattr(after, name) for name in ("name", "description", "released_at")}
        await queries.update_release(transaction, before.id, **values)
        await _record(request, transaction, "release_updated", project, after, "Updated")


async def delete(request: web.Request, project: Project, tag: str) -> dict[str, Any]:
    """The release as it was shown; its tag stays. Raises 403, 404."""
    await check_may_change(request, project, tag)
    async with context.database(request).transaction() as transaction:
        release = await locked(transaction, project, tag)
        shown = await queries.show_release(transaction, project.id, tag)
        await queries.delete_release(transaction, release.id)
        await _record(request, transaction, "release_deleted_audit_event", project, release, "Deleted")
    return shown or {}


async def check_may_change(request: web.Request, project: Project, tag: str) -> None:
    """Raises 403 for the release of a protected tag that the caller may not make."""
    protection = await tag_protection_for(request, project.id, tag)
    if not protection.may_create(project.role, admin=project.admin):
        raise forbidden()


async def locked(transaction: Transaction, project: Project, tag: str) -> Release:
    """Raises 404."""
    found = await queries.lock_release(transaction, project.id, tag)
    if found is None:
        raise ApiError(404, {"message": "Release does not exist"})
    return found


def _exists() -> ApiError:
    return conflict("Release already exists")


async def _record(
    request: web.Request,
    transaction: Transaction,
    event_type: str,
    project: Project,
    release: Release,
    deed: str,
) -> None:
    await audit_trail.record(
        transaction,
        event_type,
        author=author(request),
        entity=project.entity,
        target_id=release.id,
        target_details=release.name,
        message=f"{deed} release {release.tag}",
    )
