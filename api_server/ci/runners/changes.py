"""Creating, changing and removing runners, each in the caller's transaction."""

from collections.abc import Iterable
from typing import Any, Literal

import attrs

from api_server.ci.runners import queries
from api_server.ci.runners.queries import Runner
from api_server.state import audit_trail
from api_server.state.audit_trail import INSTANCE, Author, Entity
from api_server.state.database import Transaction
from api_server.state.errors import Conflict
from api_server.state.secrets import RUNNER_TOKEN, digest, new_token
from api_server.web.errors import forbidden, invalid, not_found

RunnerType = Literal["instance_type", "group_type", "project_type"]
AccessLevel = Literal["not_protected", "ref_protected"]

#: The prefix of registration tokens; runners' own tokens have another one.
REGISTRATION_TOKEN = "flrr-"


@attrs.frozen(kw_only=True)
class NewRunner:
    """A runner to create, for the instance, the group `namespace_id`, or the project `project_id`."""

    namespace_id: int | None = None
    project_id: int | None = None
    description: str = ""
    name: str | None = None
    active: bool = True
    locked: bool = False
    run_untagged: bool = True
    tag_list: tuple[str, ...] = ()
    access_level: AccessLevel = "not_protected"
    maximum_timeout: int | None = None
    maintenance_note: str | None = None
    creator_id: int | None = None

    @property
    def runner_type(self) -> RunnerType:
        if self.project_id is not None:
            return "project_type"
        return "group_type" if self.namespace_id is not None else "instance_type"


async def create(transaction: Transaction, new: NewRunner, author: Author) -> tuple[int, str]:
    """Create a runner and return its id and its token, whose text is not stored. Raise 400 for contradictory
    settings."""
    tags = _clean(new.tag_list)
    _refuse_contradictions(tags, new.maximum_timeout, run_untagged=new.run_untagged)
    token = new_token(RUNNER_TOKEN)
    values = attrs.asdict(new) | {"tag_list": tags}
    runner_id = await queries.create_runner(
        transaction, runner_type=new.runner_type, token_digest=digest(token), **values
    )
    await _record(transaction, "runner_registered", author, runner_id, runner_type=new.runner_type)
    return runner_id, token


#: The settings of a runner whose changes are recorded, each as an audit event.
_SETTINGS = (
    "description", "active", "locked", "run_untagged", "tag_list", "access_level", "maximum_timeout",
    "maintenance_note",
)  # fmt: skip


async def update(
    transaction: Transaction, runner_id: int, author: Author, *, tag_list: Iterable[str] | None, **values: Any
) -> None:
    """Change the settings that are not None, like `queries.update_runner`. Raise 400 for contradictory
    settings."""
    tags = None if tag_list is None else _clean(tag_list)
    before = await queries.lock_runner(transaction, runner_id)
    after = await queries.update_runner(transaction, runner_id, tag_list=tags, **values)
    _refuse_contradictions(after.tag_list, after.maximum_timeout, run_untagged=after.run_untagged)
    for change in audit_trail.changes(before, after, _SETTINGS):
        details = {name: str(value) for name, value in change.items()}
        await _record(transaction, "runner_updated", author, runner_id, **details)


async def assign(transaction: Transaction, runner: Runner, project_id: int, author: Author) -> None:
    """Let the runner also run the project's jobs. Raise 400 if it already does."""
    try:
        await queries.assign(transaction, runner.id, project_id)
    except Conflict:
        raise invalid({"project_id": ["has already been taken"]}) from None
    await _record(transaction, "runner_assigned_to_project", author, runner.id, project_id=project_id)


async def unassign(transaction: Transaction, runner_id: int, project_id: int, author: Author) -> None:
    """Stop the runner from running the project's jobs. Raise 404 if it does not run them, and 403 if it is
    the runner's only project."""
    if not await queries.is_assigned(transaction, runner_id, project_id):
        raise not_found("Runner")
    await queries.lock_runner(transaction, runner_id)
    if not await queries.unassign(transaction, runner_id, project_id):
        raise forbidden("Only one project associated with the runner. Please remove the runner instead")
    await _record(transaction, "runner_unassigned_from_project", author, runner_id, project_id=project_id)


async def reset_token(transaction: Transaction, runner_id: int, author: Author) -> str:
    """Replace the token and return the new one."""
    token = new_token(RUNNER_TOKEN)
    await queries.set_token(transaction, runner_id, digest(token))
    await _record(transaction, "runner_token_reset", author, runner_id)
    return token


async def reset_registration_token(
    transaction: Transaction, *, namespace_id: int | None = None, project_id: int | None = None
) -> str:
    """Replace the token for `POST /runners` and return the new one."""
    token = new_token(REGISTRATION_TOKEN)
    await queries.set_registration_token(
        transaction, digest(token), namespace_id=namespace_id, project_id=project_id
    )
    return token


def _clean(tags: Iterable[str]) -> list[str]:
    """Return the tags sorted, without duplicates and blanks."""
    return sorted({tag.strip() for tag in tags} - {""})


def _refuse_contradictions(tags: list[str], maximum_timeout: int | None, *, run_untagged: bool) -> None:
    """Raise GitLab's 400 for settings with which a runner could get no job, or has too little time for
    one."""
    problems = {}
    if not run_untagged and not tags:
        problems["tags_list"] = ["can not be empty when runner is not allowed to pick untagged jobs"]
    if maximum_timeout is not None and maximum_timeout < 600:
        problems["maximum_timeout"] = ["needs to be at least 10 minutes"]
    if problems:
        raise invalid(problems)


async def delete(transaction: Transaction, runner: Runner, author: Author) -> None:
    """Remove the runner; the jobs that it executes continue until they time out."""
    await _record(transaction, "runner_unregistered", author, runner.id, runner_type=runner.runner_type)
    await queries.delete_runner(transaction, runner.id)


async def _record(
    transaction: Transaction, event_type: str, author: Author, runner_id: int, **details: str | int
) -> None:
    """Record an audit event about a runner for its group or (first) project, or for the instance."""
    owner = await queries.owner_of_runner(transaction, runner_id)
    entity = INSTANCE if owner is None else Entity(owner.type, owner.id, owner.full_path)
    target = entity.target(runner_id, f"#{runner_id}")
    await audit_trail.record(transaction, event_type, author, target, **details)
