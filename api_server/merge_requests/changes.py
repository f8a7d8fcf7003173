"""Creating, editing, closing, reopening, deleting and approving merge requests, each in the caller's
transaction."""

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import attrs

from api_server.accounts import user_queries
from api_server.code.committing import acting_person
from api_server.code.protection import Protection, protection_of
from api_server.git.commits import Person, commit_data, commits_between
from api_server.git.errors import RepositoryMissingError
from api_server.git.ref_moves import remove_internal_ref, set_internal_ref
from api_server.git.ref_names import MERGE_REQUESTS
from api_server.git.repositories import REPOSITORIES, Repository
from api_server.merge_requests import merging_queries, queries
from api_server.merge_requests.heads import Heads, MissingBranchError, read_heads
from api_server.merge_requests.queries import MergeRequest, Part
from api_server.namespaces.project_queries import find_project, lock_project
from api_server.namespaces.resources import Project
from api_server.services import Key, Services
from api_server.state import audit_trail
from api_server.state.database import Database, Transaction
from api_server.state.preconditions import Precondition, Preconditions
from api_server.web.auth import Actor
from api_server.web.errors import conflict, invalid, record_not_found, unauthorized
from api_server.web.routes import Role

Action = Literal["open", "update", "close", "reopen", "merge", "approved", "unapproved"]


@attrs.frozen(kw_only=True)
class MergeRequestEvent:
    """A change of a merge request. `changes` contains the changed attributes: `{"title": (previous,
    current)}`; `old_head` is the SHA that a push to the source branch replaced."""

    merge_request_id: int
    action: Action
    user_id: int | None
    changes: Mapping[str, tuple[Any, Any]] = attrs.field(factory=dict)
    old_head: str | None = None


#: Called when the merge request's row is up to date; it queues slow work.
MergeRequestListener = Callable[[Transaction, MergeRequestEvent], Awaitable[None]]

MERGE_REQUEST_LISTENERS = Key[list[MergeRequestListener]]("merge_request_listeners", list)


#: The same rule as `is_draft` of state/merge_request_functions.sql.
DRAFT = re.compile(r"(\s*(draft:|\[draft\]|\(draft\))\s*)+", re.IGNORECASE)
#: Maximum number of commits of a new merge request that are examined.
_MAX_COMMITS = 100


def without_draft(title: str) -> str:
    """Return the title without the prefix of a draft."""
    draft = DRAFT.match(title)
    return title[draft.end() :] if draft else title


def with_draft(title: str, *, draft: bool) -> str:
    """Return the title with or without the prefix of a draft."""
    ready = without_draft(title)
    return f"Draft: {ready}" if draft else ready


async def title_and_description(
    repository: Repository, branch: str, head: str, target: str
) -> tuple[str, str]:
    """Return the title and description of a new merge request from a branch, as GitLab proposes them: from
    its only commit, otherwise from its oldest commit whose message has a body, otherwise from the branch
    name."""
    shas = await commits_between(repository, target, head, _MAX_COMMITS)
    # In a thread, because pushed messages may be large.
    return await asyncio.to_thread(_proposed, repository, branch, shas)


def _proposed(repository: Repository, branch: str, shas: Sequence[str]) -> tuple[str, str]:
    commits = [commit_data(repository, sha) for sha in reversed(shas)]
    texts = [
        (commit["title"], body)
        for commit in commits
        if len(commit["parent_ids"]) < 2 and (body := commit["message"].strip().partition("\n")[2].strip())
    ]
    if len(commits) == 1:
        return commits[0]["title"], texts[0][1] if texts else ""
    return texts[0] if texts else (branch.replace("-", " ").replace("_", " ").capitalize(), "")


@attrs.frozen(kw_only=True)
class ProjectActor:
    """A user in a project. The data on which the user is judged must be unchanged when the first transaction
    of `database` begins; otherwise it raises `ChangedMeanwhile`."""

    services: Services
    project: Project
    user_id: int
    person: Person
    preconditions: Preconditions

    @property
    def database(self) -> Database:
        return self.services.database.opening_with(self.preconditions.hold)

    @property
    def repository(self) -> Repository:
        return self.services[REPOSITORIES].open(self.project.id)

    async def protection(self, branch: str) -> Protection:
        """Return the protection of the branch, and record it as a precondition."""
        protection = await protection_of(self.database, self.project.id, branch)
        read = functools.partial(protection_of, project_id=self.project.id, name=branch)
        self.preconditions.add(Precondition((f"project:{self.project.id}",), protection, read))
        return protection


def acting(services: Services, actor: Actor, project: Project) -> ProjectActor:
    """Return the caller of a request that writes."""
    return ProjectActor(
        # merging records data before git moves refs; the preconditions are checked when the refs move
        services=services.shared,
        project=project,
        user_id=actor.user_id,
        person=acting_person(services, actor),
        preconditions=services.preconditions or Preconditions(),
    )


async def acting_later(services: Services, project_id: int, user_id: int | None) -> ProjectActor | None:
    """Return the user with the user's current rights, or None if the user could no longer make the request,
    or the project has been removed or archived."""
    database, preconditions = services.database, Preconditions()
    user = None if user_id is None else await queries.find_active_user(database, user_id)
    if user is None:
        return None
    user_right = f"user:{user.id}"
    preconditions.add(
        Precondition((user_right,), user, functools.partial(queries.find_active_user, user_id=user.id))
    )
    read = functools.partial(
        find_project, project_id=project_id, path=None, user_id=user.id, admin=user.admin, job_project_id=None
    )
    project = await read(database)
    if project is None or project.archived or project.role < Role.DEVELOPER or not project.reads_repository:
        return None
    groups = (f"group:{namespace_id}" for namespace_id in project.lineage)
    preconditions.add(Precondition((user_right, *groups, f"project:{project_id}"), project, read))
    person = Person(user.name, user.email, int(database.now.timestamp()))
    return ProjectActor(
        services=services, project=project, user_id=user.id, person=person, preconditions=preconditions
    )


#: Maximum number of assignees of a merge request, of reviewers, and of labels.
MAX_NAMED = 200


def _refuse_more(field: str, number: int, before: int = 0) -> None:
    """Raise 400 for too many of something, unless there were as many before."""
    if number > max(MAX_NAMED, before):
        raise invalid({field: [f"total must be less than or equal to {MAX_NAMED}"]})


async def name_people(
    transaction: Transaction, project_id: int, merge_request_id: int, people: Mapping[Part, Sequence[int]]
) -> dict[str, tuple[Any, Any]]:
    """Make these users the assignees and reviewers, except those who cannot see the merge request, as GitLab
    does.

    Return the changes for listeners. Raise 400 for too many.
    """
    changes: dict[str, tuple[Any, Any]] = {}
    for part, user_ids in people.items():
        _refuse_more(f"{part}s", len(set(user_ids)))
        readers = await queries.readers_among(transaction, project_id, list(dict.fromkeys(user_ids)))
        before = await queries.delivered_people(transaction, merge_request_id, part)
        if {person["id"] for person in before} != set(readers):
            await queries.replace_people(transaction, merge_request_id, part, readers)
            changes[f"{part}s"] = (
                before,
                await queries.delivered_people(transaction, merge_request_id, part),
            )
    return changes


MAX_TITLE = 255
MAX_DESCRIPTION = 1_048_576
_SAME_BRANCH = "You can't use same project/branch for source and target"
_MERGED_STAYS_MERGED = "A merged merge request cannot be closed or reopened"


@attrs.frozen(kw_only=True)
class Edit:
    """The changes that a caller requests; None means unchanged."""

    title: str | None = None
    description: str | None = None
    labels: list[str] | None = None
    target_branch: str | None = None
    remove_source_branch: bool | None = None
    squash: bool | None = None
    #: Ids of users, by the part that they are to have.
    people: Mapping[Part, Sequence[int]] = attrs.field(factory=dict)

    @property
    def values(self) -> dict[str, Any]:
        """The values for the merge request's own columns."""
        return attrs.asdict(self, filter=lambda field, _: field.name != "people")


def head_ref(iid: int) -> str:
    """Return the ref that keeps the source's commits, even if the branch is deleted."""
    return f"{MERGE_REQUESTS}{iid}/head"


def merge_ref(iid: int) -> str:
    """Return the ref of the commit that merging would create."""
    return f"{MERGE_REQUESTS}{iid}/merge"


async def create(actor: ProjectActor, transaction: Transaction, source_branch: str, edit: Edit) -> int:
    """Create a merge request and return its id. Raise 400 if a branch is missing, 409 if there is an open
    one, 422 if both branches are the same."""
    _check_texts(edit)
    _refuse_more("labels", len(edit.labels or []))
    target_branch = edit.target_branch or ""
    if source_branch == target_branch:
        raise invalid([_SAME_BRANCH], status=422)
    await lock_project(transaction, actor.project.id)
    heads = await _heads(actor, source_branch, target_branch)
    await _refuse_second_open(transaction, actor.project.id, source_branch, target_branch)
    merge_request = await queries.create(
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
    await name_people(transaction, actor.project.id, merge_request.id, edit.people)
    await set_internal_ref(actor.repository, head_ref(merge_request.iid), heads.head_sha)
    await announce(actor.services, transaction, actor.user_id, merge_request.id, "open")
    return merge_request.id


async def edit(actor: ProjectActor, transaction: Transaction, merge_request_id: int, params: Edit) -> None:
    """Apply the changes and notify listeners. Raise the errors of `create`."""
    _check_texts(params)
    before = await queries.lock(transaction, merge_request_id)
    _refuse_more("labels", len(params.labels or []), len(before.labels))
    changed = {
        name: (getattr(before, name), new)
        for name, new in params.values.items()
        if new is not None and new != getattr(before, name)
    }
    if "target_branch" in changed:
        await _retarget(actor, transaction, before, changed["target_branch"][1])
    people = await name_people(transaction, before.project_id, before.id, params.people)
    if changed or people:
        values = {name: new for name, (_, new) in changed.items()}
        draft = await queries.edit(transaction, before.id, actor.user_id, **values)
        if draft != before.draft:
            changed["draft"] = (before.draft, draft)
        await announce(actor.services, transaction, actor.user_id, before.id, "update", changed | people)


async def close(actor: ProjectActor, transaction: Transaction, merge_request_id: int) -> None:
    """Close the merge request, unless it is closed. Raise 422 if it is merged."""
    before = await queries.lock(transaction, merge_request_id)
    if before.state == "merged":
        raise invalid([_MERGED_STAYS_MERGED], status=422)
    if before.state == "opened":
        await queries.close(transaction, before.id, actor.user_id)
        await announce(
            actor.services, transaction, actor.user_id, before.id, "close", {"state": ("opened", "closed")}
        )


async def reopen(actor: ProjectActor, transaction: Transaction, merge_request_id: int) -> None:
    """Reopen the merge request with the current heads of its branches, unless it is open. Raise 400, 409 and,
    if it is merged, 422."""
    before = await queries.lock(transaction, merge_request_id)
    if before.state == "merged":
        raise invalid([_MERGED_STAYS_MERGED], status=422)
    if before.state == "closed":
        await _refuse_second_open(transaction, before.project_id, before.source_branch, before.target_branch)
        heads = await _heads(actor, before.source_branch, before.target_branch)
        await merging_queries.set_heads(transaction, before.id, heads)
        await set_internal_ref(actor.repository, head_ref(before.iid), heads.head_sha)
        await queries.reopen(transaction, before.id, actor.user_id)
        await announce(
            actor.services, transaction, actor.user_id, before.id, "reopen", {"state": ("closed", "opened")}
        )


async def delete(
    services: Services, actor: Actor, transaction: Transaction, project: Project, merge_request_id: int
) -> None:
    """Delete the merge request in any state, with the refs that keep its commits. Raise the errors of
    `remove_internal_ref`."""
    before = await queries.lock(transaction, merge_request_id)
    await queries.delete(transaction, before.id)
    target = project.entity.target(before.id, f"!{before.iid} {before.title}")
    await audit_trail.record(transaction, "delete_merge_request", actor.author, target, iid=before.iid)
    await _forget_heads(services, project, before.iid)


async def _forget_heads(services: Services, project: Project, iid: int) -> None:
    """Remove the refs before the transaction commits: if this fails, the merge request can be deleted
    again."""
    with suppress(RepositoryMissingError):
        repository = services[REPOSITORIES].open(project.id)
        for ref in (head_ref(iid), merge_ref(iid)):
            await remove_internal_ref(repository, ref)


async def announce(
    services: Services,
    transaction: Transaction,
    user_id: int,
    merge_request_id: int,
    action: Action,
    changes: dict[str, tuple[Any, Any]] | None = None,
) -> None:
    """Notify the listeners of a user's action."""
    event = MergeRequestEvent(
        merge_request_id=merge_request_id,
        action=action,
        user_id=user_id,
        changes=changes or {},
    )
    for listener in services[MERGE_REQUEST_LISTENERS]:
        await listener(transaction, event)


def check_head(merge_request: MergeRequest, sha: str | None) -> None:
    """Raise 409 if the caller names the commit that she has seen and it is not the source's head."""
    if sha not in (None, merge_request.head_sha):
        raise conflict(f"SHA does not match HEAD of source branch: {merge_request.head_sha}")


def _check_texts(edit: Edit) -> None:
    """Raise 400 for a text that is too long or blank."""
    problems: dict[str, list[str]] = {}
    if edit.title is not None and not edit.title.strip():
        problems["title"] = ["can't be blank"]
    elif edit.title is not None and len(edit.title) > MAX_TITLE:
        problems["title"] = [f"is too long (maximum is {MAX_TITLE} characters)"]
    if edit.description is not None and len(edit.description) > MAX_DESCRIPTION:
        problems["description"] = [f"is too long (maximum is {MAX_DESCRIPTION} characters)"]
    if problems:
        raise invalid(problems)


async def _retarget(
    actor: ProjectActor, transaction: Transaction, before: MergeRequest, target_branch: str
) -> None:
    if before.state != "opened":
        raise invalid(["The target branch of a merge request that is not open cannot be changed"], status=422)
    if target_branch == before.source_branch:
        raise invalid([_SAME_BRANCH], status=422)
    await _refuse_second_open(transaction, before.project_id, before.source_branch, target_branch)
    heads = await _heads(actor, before.source_branch, target_branch)
    await merging_queries.set_heads(transaction, before.id, heads)


async def _heads(actor: ProjectActor, source_branch: str, target_branch: str) -> Heads:
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


async def approve(
    services: Services, actor: Actor, transaction: Transaction, merge_request_id: int, sha: str | None
) -> None:
    """Approve the merge request, unless the user has already done so. Raise 409 if the head is not the commit
    that the caller has seen."""
    before = await queries.lock(transaction, merge_request_id)
    check_head(before, sha)
    _require_open(before)
    if await queries.approve(transaction, merge_request_id, actor.user_id):
        await announce(services, transaction, actor.user_id, merge_request_id, "approved")


async def unapprove(
    services: Services, actor: Actor, transaction: Transaction, merge_request_id: int
) -> None:
    """Withdraw the caller's approval. Raise 404 if there is none."""
    _require_open(await queries.lock(transaction, merge_request_id))
    if not await queries.unapprove(transaction, merge_request_id, actor.user_id):
        raise record_not_found()
    await announce(services, transaction, actor.user_id, merge_request_id, "unapproved")


async def reset_approvals(transaction: Transaction, merge_request_id: int, actor: Actor) -> None:
    """Remove all approvals, in any state of the merge request, without notifying listeners. Raise 401 unless
    the caller is a bot of a project or group."""
    if not await user_queries.is_bot(transaction, actor.user_id):
        raise unauthorized()
    await queries.lock(transaction, merge_request_id)
    await queries.reset_approvals(transaction, merge_request_id)


def _require_open(before: MergeRequest) -> None:
    if before.state != "opened":
        raise invalid(["The merge request is not open"], status=422)
