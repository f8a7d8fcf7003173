"""The options `git push -o merge_request.*`: they create and change merge requests like the API, with
messages for the user who pushes. A push is never refused because of its options."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

import attrs
import structlog

from api_server.code.refs import PUSH_OPTION_LISTENERS
from api_server.git.received_push import RefUpdate
from api_server.git.ref_names import BRANCHES
from api_server.git.references import branch
from api_server.merge_requests import changes, merging_queries, queries
from api_server.merge_requests.changes import ProjectActor, acting_later, title_and_description, with_draft
from api_server.merge_requests.handlers import CreateMergeRequest, UpdateMergeRequest, as_edit, as_new
from api_server.merge_requests.merging import Merge, merge_or_wait
from api_server.merge_requests.queries import MergeRequest
from api_server.namespaces.project_queries import lock_project
from api_server.services import Services
from api_server.state.database import Transaction
from api_server.state.errors import LockNotAvailable, NotFound, Unavailable
from api_server.state.preconditions import ChangedMeanwhile
from api_server.web.errors import ApiError, invalid, reason_of
from api_server.web.params import structure

log = structlog.get_logger(__name__)

_Result = TypeVar("_Result")

#: Maximum number of options of one push that are read.
MAX_OPTIONS = 200
#: Maximum number of branches of one push for which merge requests are created or changed, as in GitLab.
MAX_BRANCHES = 10
#: Attempts when others change the preconditions.
_ATTEMPTS = 4
_NAMESPACES = ("merge_request", "mr")
#: Options that are parameters of the API under another name.
_PARAMETERS = {
    "title": "title",
    "description": "description",
    "target": "target_branch",
    "remove_source_branch": "remove_source_branch",
    "squash": "squash",
}
_LISTS = ("label", "unlabel", "assign", "unassign")
_AUTO_MERGE = ("auto_merge", "merge_when_pipeline_succeeds")
_OTHERS = ("create", "draft", "target_project", *_AUTO_MERGE)


@attrs.frozen
class Options:
    """The options of a push. `values` are single-valued (the last counts), `lists` are cumulative, `unknown`
    are names."""

    values: dict[str, str] = attrs.field(factory=dict)
    lists: dict[str, list[str]] = attrs.field(factory=dict)
    unknown: list[str] = attrs.field(factory=list)

    def __bool__(self) -> bool:
        return bool(self.values or self.lists or self.unknown)

    def is_set(self, *names: str) -> bool | None:
        """Return the truth value of the first of these options that is given, or None. Raise 400 for other
        values."""
        option = next((name for name in names if name in self.values), None)
        if option is None:
            return None
        try:
            return structure({"flag": self.values[option]}, _Flag).flag
        except ApiError:
            raise invalid(f"The option merge_request.{option} is neither true nor false") from None

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the API that have the same name for creating and for changing."""
        return {
            parameter: self.values[name] for name, parameter in _PARAMETERS.items() if name in self.values
        }


@attrs.frozen(kw_only=True)
class _Flag:
    flag: bool | None = None


def read_options(options: Iterable[str]) -> Options:
    """Return the merge request options of a push. In descriptions, a backslash and `n` mean a line break."""
    parsed = Options()
    for option in islice(options, MAX_OPTIONS):
        text, _, value = option.partition("=")
        namespace, _, name = map(str.strip, text.partition("."))
        if namespace not in _NAMESPACES or not name:
            continue
        if name in _LISTS:
            parsed.lists.setdefault(name, []).append(value)
        elif name in _PARAMETERS or name in _OTHERS:
            parsed.values[name] = value.replace("\\n", "\n") if name == "description" else value or "true"
        else:
            parsed.unknown.append(name)
    return parsed


def setup(services: Services) -> None:
    """Let pushes to this application apply their options."""

    async def listener(project_id: int, user_id: int, updates: Sequence[RefUpdate]) -> list[str]:
        options = read_options(updates[0].options)
        return await carry_out(services, project_id, user_id, updates, options) if options else []

    services[PUSH_OPTION_LISTENERS].append(listener)


async def carry_out(
    services: Services, project_id: int, user_id: int, updates: Sequence[RefUpdate], options: Options
) -> list[str]:
    """Create or change a merge request for each branch that has moved; return the messages for the user."""
    actor = await acting_later(services, project_id, user_id)
    if actor is None:
        return _warnings("User access was denied")
    moved = {
        name: update.new
        for update in updates
        if update.ref.startswith(BRANCHES) and update.kind != "delete"
        if (name := update.ref.removeprefix(BRANCHES)) != actor.project.default_branch
    }
    problems = [f"merge_request.{name} is not supported" for name in options.unknown]
    if problem := _problem(actor, moved, options):
        return _warnings(*problems, problem)
    lines = []
    for name, head in moved.items():
        try:
            iid = await _one_branch(services, project_id, user_id, name, head, options)
        except (ApiError, NotFound) as refused:
            reason = reason_of(refused) if isinstance(refused, ApiError) else ""
            problems.append(f"{name}: {reason or 'User access was denied'}")
        except (ChangedMeanwhile, LockNotAvailable, Unavailable) as busy:
            log.warning("options of a push were not carried out", project_id=project_id, exc_info=busy)
            problems.append(f"{name}: The server is busy, try again with the API")
        else:
            url = f"{services.settings.base_url}/{actor.project.full_path}/-/merge_requests/{iid}"
            lines += ["", f"View merge request for {name}:", f"  {url}", ""]
    return [*lines, *(_warnings(*problems) if problems else [])]


def _warnings(*problems: str) -> list[str]:
    return ["", "WARNINGS:", *(f"Error encountered with push options: {problem}" for problem in problems), ""]


def _problem(actor: ProjectActor, moved: dict[str, str], options: Options) -> str | None:
    """Return the reason why nothing is created or changed, or None."""
    target_project = options.values.get("target_project", actor.project.full_path)
    if target_project.lower() != actor.project.full_path.lower():
        return "merge_request.target_project has to be the project itself"
    if len(moved) > MAX_BRANCHES:
        return f"Too many branches pushed ({len(moved)} were pushed, limit is {MAX_BRANCHES})"
    target = options.values.get("target")
    if target is not None and branch(actor.repository, target) is None:
        return f"Target branch {actor.project.full_path}:{target} does not exist"
    return None if moved else "No branch was pushed but the default one"


async def _one_branch(
    services: Services, project_id: int, user_id: int, name: str, head: str, options: Options
) -> int:
    """Create or change a merge request, and return its iid. Raise the errors of the API."""
    iid = await _again(
        services, project_id, user_id, lambda actor: _create_or_update(actor, name, head, options)
    )
    if options.is_set(*_AUTO_MERGE):
        await _again(services, project_id, user_id, lambda actor: merge_or_wait(actor, iid, Merge(sha=head)))
    return iid


async def _again(
    services: Services, project_id: int, user_id: int, act: Callable[[ProjectActor], Awaitable[_Result]]
) -> _Result:
    """Return the result of `act(actor)`. Raise `ChangedMeanwhile` if others are always faster."""
    for _ in range(_ATTEMPTS):
        actor = await acting_later(services, project_id, user_id)
        if actor is None:
            raise NotFound
        with suppress(ChangedMeanwhile):
            return await act(actor)
    raise ChangedMeanwhile


async def _create_or_update(actor: ProjectActor, name: str, head: str, options: Options) -> int:
    async with actor.database.transaction() as transaction:
        await lock_project(transaction, actor.project.id)
        present = await merging_queries.lock_open_from(transaction, actor.project.id, [name])
        if present:
            return await _update(actor, transaction, present[-1], options)
        if not options.is_set("create"):
            raise invalid("A merge_request.create push option is required to create a merge request")
        new_id = await changes.create(
            actor, transaction, name, as_new(await _new(actor, name, head, options))
        )
        return await queries.iid_of(transaction, new_id)


async def _new(actor: ProjectActor, name: str, head: str, options: Options) -> CreateMergeRequest:
    """Return the parameters of a new merge request; as in GitLab, the user who pushes is its assignee."""
    target = options.values.get("target", actor.project.default_branch)
    base = branch(actor.repository, target)
    title, description = await title_and_description(
        actor.repository, name, head, base.commit if base else head
    )
    values = {"title": title, "description": description} | options.parameters
    draft = options.is_set("draft")
    assigned = await _user_ids(actor, options.lists.get("assign", []))
    return structure(
        {
            "id": str(actor.project.id),
            "source_branch": name,
            "target_branch": target,
            **values,
            "title": values["title"] if draft is None else with_draft(values["title"], draft=draft),
            "labels": options.lists.get("label", []),
            "assignee_ids": [actor.user_id, *assigned],
        },
        CreateMergeRequest,
    )


async def _update(
    actor: ProjectActor, transaction: Transaction, before: MergeRequest, options: Options
) -> int:
    values, draft = options.parameters, options.is_set("draft")
    if draft is not None:
        values["title"] = with_draft(values.get("title", before.title), draft=draft)
    if {"assign", "unassign"} & options.lists.keys():
        added, removed = [
            await _user_ids(actor, options.lists.get(kind, [])) for kind in ("assign", "unassign")
        ]
        present = [user["id"] for user in await queries.delivered_people(transaction, before.id, "assignee")]
        values["assignee_ids"] = [user_id for user_id in [*present, *added] if user_id not in removed]
    update = structure(
        {
            "id": str(actor.project.id),
            "merge_request_iid": before.iid,
            "add_labels": options.lists.get("label"),
            "remove_labels": options.lists.get("unlabel"),
            **values,
        },
        UpdateMergeRequest,
    )
    await changes.edit(actor, transaction, before.id, as_edit(update, before.labels))
    return before.iid


async def _user_ids(actor: ProjectActor, users: Sequence[str]) -> list[int]:
    """Return the ids of users given by id or user name. Raise 400 for unknown users."""
    names = [name.removeprefix("@") for name in users]
    ids = [int(name) for name in names if name.isascii() and name.isdecimal() and len(name) < 19]
    ids_by_name = await queries.users_named(actor.services.database, names, ids) if names else {}
    if unknown := [name for name in names if name.lower() not in ids_by_name]:
        raise invalid(f"There is no user {unknown[0]}")
    return [ids_by_name[name.lower()] for name in names]
