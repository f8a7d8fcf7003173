"""Creating, changing and deleting releases and their links, deletion with the tag, and the API's form of them."""

import asyncio
import datetime
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import attrs
from yarl import URL

from api_server.code import committing, entities, ref_queries
from api_server.code.protection import NOT_TO_CREATE, tag_protection_for
from api_server.code.reading import opened, url_of
from api_server.code.ref_queries import MovedProject
from api_server.code.refs import REF_LISTENERS
from api_server.git import references
from api_server.git.errors import NotFoundError
from api_server.git.received_push import RefUpdate
from api_server.git.ref_names import TAGS
from api_server.git.repositories import Repository
from api_server.namespaces.resources import Project
from api_server.releases import queries
from api_server.releases.queries import DeletedRelease, Release
from api_server.services import Services
from api_server.state import audit_trail
from api_server.state.audit_trail import SYSTEM, Author, Entity
from api_server.state.database import Transaction
from api_server.state.errors import Conflict
from api_server.web.auth import Actor
from api_server.web.errors import ApiError, conflict, forbidden, invalid
from api_server.web.routes import Role

LinkType = Literal["other", "runbook", "image", "package"]

MAX_FILEPATH = 128
_FILEPATH = re.compile(r"/(?:[-.\w]+/)*[-.\w]*[0-9a-zA-Z]", re.ASCII)
_SCHEMES = ("http", "https", "ftp")
_NOT_IN_URLS = re.compile(r"[\x00-\x20\x7f]")
_TAKEN = "has already been taken"


@attrs.frozen(kw_only=True)
class Link:
    """A link of a release. `filepath` is a path below the release, like `/bin/app`, that redirects to `url`."""

    name: str
    url: str
    filepath: str | None = None
    link_type: LinkType = "other"


def check_link(link: Link) -> None:
    """Raise 400 if the link is not valid."""
    if problems := _problems(link):
        raise invalid(problems)


def check_links(links: Sequence[Link], limit: int) -> None:
    """Raise 400 if the links of a new release are not valid, not distinct, or more than `limit`."""
    check_count(len(links), limit)  # first: the other checks take longer, the more links there are
    for link in links:
        for field, texts in _problems(link).items():
            raise _not_valid(f"Links {field} {texts[0]}")
    for field in ("name", "url", "filepath"):
        counts = Counter(value for link in links if (value := getattr(link, field)))
        if doubled := sorted(value for value, count in counts.items() if count > 1):
            raise _not_valid(f"Links have duplicate values ({', '.join(doubled)})")


def check_count(count: int, limit: int) -> None:
    """Raise 400 if a release would have more than `limit` links (0: no limit)."""
    if limit and count > limit:
        raise _not_valid(f"Links are too many (maximum is {limit})")


def link_taken(problem: Conflict) -> ApiError:
    """Return the error 400 for a name, URL or path that another link of the release has."""
    return invalid({problem.constraint.removeprefix("release_links_"): [_TAKEN]})


def _not_valid(text: str) -> ApiError:
    return invalid(f"Validation failed: {text}")


def _problems(link: Link) -> dict[str, list[str]]:
    problems = {}
    if problem := _problem_with_url(link.url):
        problems["url"] = [f"is blocked: {problem}"]
    if link.filepath and len(link.filepath) > MAX_FILEPATH:
        problems["filepath"] = [f"is too long (maximum is {MAX_FILEPATH} characters)"]
    elif link.filepath and not _FILEPATH.fullmatch(link.filepath):
        problems["filepath"] = ["is invalid"]
    return problems


def _problem_with_url(url: str) -> str | None:
    try:
        parts = URL(url)  # parsed in the same way as in the redirect to it
    except ValueError:
        return "URI is invalid"
    if parts.scheme not in _SCHEMES:
        return f"Only allowed schemes are {', '.join(_SCHEMES)}"
    return None if parts.raw_host and not _NOT_IN_URLS.search(url) else "URI is invalid"


@attrs.frozen(kw_only=True)
class NewRelease:
    """A release to create. If its tag does not exist, it is created from `ref`, annotated if there is a
    `tag_message`."""

    tag: str
    ref: str | None
    tag_message: str | None
    name: str | None
    description: str | None
    released_at: datetime.datetime | None
    links: list[Link]


async def create(services: Services, actor: Actor, project: Project, new: NewRelease) -> None:
    """Create a release. Raise 400, 403 for protected tags, 409 if the tag has a release, and 422 if there is neither
    the tag nor a `ref`."""
    check_links(new.links, services.settings.release_links_limit)
    protection = await tag_protection_for(services, project.id, new.tag)
    if not protection.may_create(project.role, admin=project.admin):
        raise ApiError(403, {"message": NOT_TO_CREATE})
    if await queries.find_release(services.database, project.id, new.tag):
        raise _exists()
    if references.tag(await opened(services, project), new.tag) is None:
        if not new.ref:
            raise ApiError(422, {"message": "Ref is not specified"})
        await committing.create_tag(services, actor, project, new.tag, new.ref, new.tag_message)
    async with services.database.transaction() as transaction:
        await _add(services, actor, transaction, project, new)


async def _add(
    services: Services, actor: Actor, transaction: Transaction, project: Project, new: NewRelease
) -> None:
    """Store the release. The project's row is locked, as it is for deletions of tags: a release never outlives its
    tag."""
    await ref_queries.lock_project(transaction, project.id)
    tag = references.tag(await opened(services, project), new.tag)
    if tag is None:
        raise ApiError(404, {"message": "Tag does not exist"})
    values = {
        "project_id": project.id,
        "tag": tag.name,
        "name": new.name or tag.name,
        "description": new.description,
        "sha": tag.commit,
        "author_id": actor.user_id,
        "released_at": new.released_at,
    }
    try:
        release = await queries.add_release(transaction, **values)
    except Conflict:
        raise _exists() from None
    await queries.add_links(transaction, release.id, [attrs.asdict(link) for link in new.links])
    await _record(transaction, "release_created", actor.author, project.entity, release)


async def update(
    services: Services, actor: Actor, project: Project, tag: str, changed: dict[str, Any]
) -> None:
    """Update a release. `changed` has the new values among `name`, `description` and `released_at`. Raise 403, 404."""
    await check_may_change(services, project, tag)
    async with services.database.transaction() as transaction:
        before = await locked(transaction, project, tag)
        after = attrs.evolve(before, **changed)
        if after == before:
            return
        values = {name: getattr(after, name) for name in ("name", "description", "released_at")}
        await queries.update_release(transaction, before.id, **values)
        await _record(transaction, "release_updated", actor.author, project.entity, after)


async def delete(services: Services, actor: Actor, project: Project, tag: str) -> dict[str, Any]:
    """Delete a release and return its former row. Its tag is kept. Raise 403, 404."""
    await check_may_change(services, project, tag)
    async with services.database.transaction() as transaction:
        release = await locked(transaction, project, tag)
        entity = await queries.show_release(transaction, project.id, tag)
        await queries.delete_release(transaction, release.id)
        await _record(transaction, "release_deleted_audit_event", actor.author, project.entity, release)
    return entity or {}


async def check_may_change(services: Services, project: Project, tag: str) -> None:
    """Raise 403 if the tag is protected and the caller may not create it."""
    protection = await tag_protection_for(services, project.id, tag)
    if not protection.may_create(project.role, admin=project.admin):
        raise forbidden()


async def locked(transaction: Transaction, project: Project, tag: str) -> Release:
    """Lock and return the release until the transaction ends. Raise 404."""
    release = await queries.lock_release(transaction, project.id, tag)
    if release is None:
        raise ApiError(404, {"message": "Release does not exist"})
    return release


def _exists() -> ApiError:
    return conflict("Release already exists")


async def _record(
    transaction: Transaction,
    event_type: str,
    author: Author,
    entity: Entity,
    release: Release | DeletedRelease,
) -> None:
    target = entity.target(release.id, release.name)
    await audit_trail.record(transaction, event_type, author, target, tag=release.tag)


async def add_link(services: Services, project: Project, tag: str, link: Link) -> dict[str, Any]:
    """Add a link to a release and return its row. Raise 400, 403, 404."""
    check_link(link)
    await check_may_change(services, project, tag)
    async with services.database.transaction() as transaction:
        release = await locked(transaction, project, tag)
        count = await queries.count_links(transaction, release.id)
        check_count(count + 1, services.settings.release_links_limit)
        try:
            (link_id,) = await queries.add_links(transaction, release.id, [attrs.asdict(link)])
        except Conflict as problem:
            raise link_taken(problem) from None
        return await queries.show_link(transaction, release.id, link_id)


async def update_link(
    services: Services, project: Project, tag: str, link_id: int, changed: dict[str, Any]
) -> dict[str, Any]:
    """Update a link and return its row. `changed` has the new values of fields of `Link`. Raise 400, 403, 404."""
    await check_may_change(services, project, tag)
    async with services.database.transaction() as transaction:
        release = await locked(transaction, project, tag)
        row = await queries.show_link(transaction, release.id, link_id)
        after = row | changed
        del after["id"]
        check_link(Link(**after))
        try:
            await queries.update_link(transaction, release.id, link_id, **after)
        except Conflict as problem:
            raise link_taken(problem) from None
    return after | {"id": link_id}


async def remove_link(services: Services, project: Project, tag: str, link_id: int) -> dict[str, Any]:
    """Delete a link and return its former row. Raise 403, 404."""
    await check_may_change(services, project, tag)
    async with services.database.transaction() as transaction:
        release = await locked(transaction, project, tag)
        row = await queries.show_link(transaction, release.id, link_id)
        await queries.delete_link(transaction, release.id, link_id)
    return row


def setup(services: Services) -> None:
    services[REF_LISTENERS].append(_react)


async def _react(
    transaction: Transaction, project: MovedProject, user_id: int | None, updates: Sequence[RefUpdate]
) -> None:
    tags = [
        moved_ref.ref.removeprefix(TAGS)
        for moved_ref in updates
        if moved_ref.kind == "delete" and moved_ref.ref.startswith(TAGS)
    ]
    if not tags:
        return
    for release in await queries.delete_of_tags(transaction, project.id, tags, user_id):
        entity = Entity("Project", project.id, release.project_path)
        await _record(transaction, "release_deleted_audit_event", _author(user_id, release), entity, release)


def _author(user_id: int | None, release: DeletedRelease) -> Author:
    if user_id is None or release.author_name is None:
        return SYSTEM
    return Author(
        id=user_id,
        name=release.author_name,
        username=release.author_username or "",
        email=release.author_email or "",
    )


_FORMATS = ("zip", "tar.gz", "tar.bz2", "tar")


async def release_entities(
    services: Services, project: Project, rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the releases of these rows in GitLab's form."""
    repository, url = await opened(services, project), url_of(services, project)
    return await asyncio.to_thread(
        lambda: [_release_entity(services, project, repository, url, row) for row in rows]
    )


def _release_entity(
    services: Services, project: Project, repository: Repository, url: str, row: dict[str, Any]
) -> dict[str, Any]:
    tag, sha = row["tag"], row["sha"]
    sources = [{"format": kind, "url": _archive(project, url, tag, kind)} for kind in _FORMATS]
    links = [link_entity(services, project, tag, link) for link in row["links"]]
    path = urlsplit(url).path
    commit = None
    with suppress(NotFoundError):  # the tag has been moved, and the commit is no longer reachable
        commit = entities.in_list(entities.commit(repository, sha, url))
    return {
        "name": row["name"],
        "tag_name": tag,
        "description": row["description"],
        "created_at": row["created_at"],
        "released_at": row["released_at"],
        "upcoming_release": row["upcoming_release"],
        "author": row["author"],
        "commit": commit,
        **({"commit_path": f"{path}/-/commit/{sha}"} if commit else {}),
        "tag_path": f"{path}/-/tags/{quote(tag)}",
        "assets": {"count": len(sources) + len(links), "sources": sources, "links": links},
        "evidences": [],
        "_links": _pages(project, url, tag),
    }


def link_entity(services: Services, project: Project, tag: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return the link in GitLab's form. With a `filepath`, `direct_asset_url` is the address that redirects to it."""
    path = row["filepath"]
    return {
        "id": row["id"],
        "name": row["name"],
        "url": row["url"],
        "direct_asset_url": release_address(services, project, tag, f"downloads{path}")
        if path
        else row["url"],
        "link_type": row["link_type"],
    }


def release_address(services: Services, project: Project, tag: str, below: str = "") -> str:
    """Return the API's address of the release of a tag, or of the path `below` it."""
    base = f"{services.settings.base_url}/api/v4/projects/{project.id}"
    return f"{base}/releases/{quote(tag, safe='')}" + (f"/{quote(below)}" if below else "")


def _archive(project: Project, url: str, tag: str, ending: str) -> str:
    return url + quote(f"/-/archive/{tag}/{project.path}-{tag.replace('/', '-')}.{ending}")


def _pages(project: Project, url: str, tag: str) -> dict[str, str]:
    """Return the addresses of GitLab's pages about a release; that of the form is only for Developers."""
    quoted_tag = quote(tag, safe="")
    of_release = f"{url}/-/releases/{quoted_tag}"
    pages = {
        f"{state}_{kind}_url": f"{url}/-/{kind}?release_tag={quoted_tag}&scope=all&state={state}"
        for state, kind in (
            ("closed", "issues"),
            ("closed", "merge_requests"),
            ("merged", "merge_requests"),
            ("opened", "issues"),
            ("opened", "merge_requests"),
        )
    }
    if project.role >= Role.DEVELOPER:
        pages["edit_url"] = f"{of_release}/edit"
    return dict(sorted(pages.items())) | {"self": of_release}
