"""Making, editing, closing, reopening and deleting merge requests, each in the caller's transaction."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import attrs
from aiohttp import web

from api_server.git.errors import RepositoryMissingError
from api_server.git.ref_moves import remove_internal_ref, set_internal_ref
from api_server.git.ref_names import MERGE_REQUESTS
from api_server.git.repositories import repositories
from api_server.merge_requests import head_queries, queries
from api_server.merge_requests.acting import Actor
from api_server.merge_requests.events import MERGE_REQUEST_LISTENERS, Action, MergeRequestEvent
from api_server.merge_requests.heads import Heads, MissingBranchError, read_heads
from api_server.merge_requests.people.assignment import name_people
from api_server.merge_requests.people.queries import Part
from api_server.merge_requests.queries import MergeRequest
from api_server.namespaces.project_queries import lock_project
from api_server.namespaces.resources import Project
from api_server.state import audit_trail
from api_server.state.database import Transaction
from api_server.web.context import App
from api_server.web.errors import conflict, invalid
from api_server.web.routes import author

MAX_TITLE = 255
MAX_DESCRIPTION = 1_048_576
_SAME_BRANCH = "You can't use same project/branch for source and target"
_MERGED_STAYS_MERGED = "A merged merge request cannot be closed or reopened"


@attrs.frozen(kw_only=True)
class Edit:
    """What a caller wants to be different; None is left as it is."""

    title: str | None = None
    description: str | None = None
    labels: list[str] | None = None
    target_branch: str | None = None
    remove_source_branch: bool | None = None
    squash: bool | None = None
    #: Ids of users, by the part that they are to take.
    people: Mapping[Part, Sequence[int]] = attrs.field(factory=dict)

    @property
    def values(self) -> dict[str, Any]:
        """Of the merge request's own columns."""
        return attrs.asdict(self, filter=lambda field, _: field.name != "people")


def head_ref(iid: int) -> str:
    """The ref that keeps the source's commits, whatever becomes of the branch."""
    return f"{MERGE_REQUESTS}{iid}/head"


def merge_ref(iid: int) -> str:
    """The ref of what merging would make."""
    return f"{MERGE_REQUESTS}{iid}/merge"


async def create(actor: Actor, transaction: Transaction, source_branch: str, edit: Edit) -> int:
    """The new merge request's id. Raises 400 without the branches, 409 when one is open, 422 for one branch twice."""
    _check_texts(edit)
    target_branch = edit.target_branch or ""
    if source_branch == target_branch:
        raise invalid([_SAME_BRANCH], status=422)
    await lock_project(transaction, actor.project.id)
    heads = await _heads(actor, source_branch, target_branch)
    await _refuse_second_open(transaction, actor.project.id, source_branch, target_branch)
    made = await queries.create(
        transaction,
        heads,
        project_id=actor.project.id,
        author_id=actor.user_id,
        title=edit.title,
        description=edit.description or "",
        labels=edit.labels or [],
        source_branch=source_branch,
        target_branch=target_branch,
        remove_source_branch=edit.remove_source_branch,
        squash=edit.squash,
    )
    await name_people(transaction, actor.project.id, made.id, edit.people)
    await set_internal_ref(actor.repository, head_ref(made.iid), heads.head_sha)
    await announce(actor.app, transaction, actor.user_id, made.id, "open")
    return made.id


async def edit(actor: Actor, transaction: Transaction, merge_request_id: int, wanted: Edit) -> None:
    """Changes what differs and tells of it. Raises as `create`."""
    _check_texts(wanted)
    before = await queries.lock(transaction, merge_request_id)
    changed = {
        name: (getattr(before, name), new)
        for name, new in wanted.values.items()
        if new is not None and new != getattr(before, name)
    }
    if "target_branch" in changed:
        await _retarget(actor, transaction, before, changed["target_branch"][1])
    people = await name_people(transaction, before.project_id, before.id, wanted.people)
    if changed or people:
        values = {name: new for name, (_, new) in changed.items()}
        draft = await queries.edit(transaction, before.id, actor.user_id, **values)
        if draft != before.draft:
            changed["draft"] = (before.draft, draft)
        await announce(actor.app, transaction, actor.user_id, before.id, "update", changed | people)


async def close(actor: Actor, transaction: Transaction, merge_request_id: int) -> None:
    """Does nothing to a closed one. Raises 422 for a merged one."""
    before = await queries.lock(transaction, merge_request_id)
    if before.state == "merged":
        raise invalid([_MERGED_STAYS_MERGED], status=422)
    if before.state == "opened":
        await queries.close(transaction, before.id, actor.user_id)
        await announce(
            actor.app, transaction, actor.user_id, before.id, "close", {"state": ("opened", "closed")}
        )


async def reopen(actor: Actor, transaction: Transaction, merge_request_id: int) -> None:
    """With its branches as they are now. Does nothing to an open one. Raises 400, 409 and (merged) 422."""
    before = await queries.lock(transaction, merge_request_id)
    if before.state == "merged":
        raise invalid([_MERGED_STAYS_MERGED], status=422)
    if before.state == "closed":
        await _refuse_second_open(transaction, before.project_id, before.source_branch, before.target_branch)
        heads = await _heads(actor, before.source_branch, before.target_branch)
        await head_queries.set_heads(transaction, before.id, heads)
        await set_internal_ref(actor.repository, head_ref(before.iid), heads.head_sha)
        await queries.reopen(transaction, before.id, actor.user_id)
        await announce(
            actor.app, transaction, actor.user_id, before.id, "reopen", {"state": ("closed", "opened")}
        )


async def delete(
    request: web.Request, transaction: Transaction, project: Project, merge_request_id: int
) -> None:
    """Whatever its state, with what keeps its commits. Raises as `remove_internal_ref`."""
    before = await queries.lock(transaction, merge_request_id)
    await queries.delete(transaction, before.id)
    await audit_trail.record(
        transaction,
        "delete_merge_request",
        author=author(request),
        entity=project.entity,
        target_id=before.id,
        target_details=f"!{before.iid} {before.title}",
        message=f"Removed merge request !{before.iid}",
    )
    await _forget_heads(request, project, before.iid)


async def _forget_heads(request: web.Request, project: Project, iid: int) -> None:
    """Before the merge request is gone for good: whoever cannot, deletes it once more."""
    with suppress(RepositoryMissingError):
        repository = repositories(request).open(project.id)
        for ref in (head_ref(iid), merge_ref(iid)):
            await remove_internal_ref(repository, ref)


async def announce(
    app: App,
    transaction: Transaction,
    user_id: int,
    merge_request_id: int,
    action: Action,
    changes: dict[str, tuple[Any, Any]] | None = None,
) -> None:
    """Tells the listeners what a user has done."""
    event = MergeRequestEvent(
        merge_request_id=merge_request_id,
        action=action,
        user_id=user_id,
        changes=changes or {},
    )
    for listener in app[MERGE_REQUEST_LISTENERS]:
        await listener(transaction, event)


def check_head(found: MergeRequest, seen_sha: str | None) -> None:
    """Raises 409 where the source's head is not the commit that the caller has seen, if she names one."""
    if seen_sha not in (None, found.head_sha):
        raise conflict(f"SHA does not match HEAD of source branch: {found.head_sha}")


def _check_texts(edit: Edit) -> None:
    """Raises 400 for what is too long or blank."""
    problems: dict[str, list[str]] = {}
    if edit.title is not None and not edit.title.strip():
        problems["title"] = ["can't be blank"]
    elif edit.title is not None and len(edit.title) > MAX_TITLE:
        problems["title"] = [f"is too long (maximum is {MAX_TITLE} characters)"]
    if edit.description is not None and len(edit.description) > MAX_DESCRIPTION:
        problems["description"] = [f"is too long (maximum is {MAX_DESCRIPTION} characters)"]
    if problems:
        raise invalid(problems)


async def _retarget(actor: Actor, transaction: Transaction, before: MergeRequest, target_branch: str) -> None:
    if before.state != "opened":
        raise invalid(["The target branch of a merge request that is not open cannot be changed"], status=422)
    if target_branch == before.source_branch:
        raise invalid([_SAME_BRANCH], status=422)
    await _refuse_second_open(transaction, before.project_id, before.source_branch, target_branch)
    heads = await _heads(actor, before.source_branch, target_branch)
    await head_queries.set_heads(transaction, before.id, heads)


async def _heads(actor: Actor, source_branch: str, target_branch: str) -> Heads:
    try:
        return await read_heads(actor.repository, source_branch, target_branch)
    except MissingBranchError as missing:
        raise invalid([str(missing)]) from None
    except RepositoryMissingError:
        raise invalid([f'Source branch "{source_branch}" does not exist']) from None


async def _refuse_second_open(
    transaction: Transaction, project_id: int, source_branch: str, target_branch: str
) -> None:
    other = await queries.iid_of_open_pair(transaction, project_id, source_branch, target_branch)
    if other is not None:
        raise conflict([f"Another open merge request already exists for this source branch: !{other}"])
