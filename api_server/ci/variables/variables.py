"""CI/CD variables: their rules, and changing them, each time in the caller's transaction.

The `owner` of a variable is the project, group or instance that it belongs to. Refusals are in GitLab's
words.
"""

import re

import attrs

from api_server.ci.variables import queries
from api_server.ci.variables.queries import StoredVariable
from api_server.state import audit_trail
from api_server.state.audit_trail import INSTANCE, Author, Entity
from api_server.state.database import Transaction
from api_server.state.errors import Conflict
from api_server.state.secrets import Vault
from api_server.web.errors import ApiError, invalid

MAX_VALUE = 10_000
MAX_TEXT = 255

_KEY = re.compile(r"[A-Za-z0-9_]+", re.ASCII)
_SCOPE = re.compile(r"[A-Za-z0-9_/${}. *-]+", re.ASCII)
#: A value that can be masked in a log: one line without spaces, and with a restricted character set if it may
#: refer to other variables.
_MASKABLE = re.compile(r"[A-Za-z0-9_+=/@:.~-]{8,}", re.ASCII)
_MASKABLE_RAW = re.compile(r"\S{8,}")


@attrs.frozen(kw_only=True)
class Values:
    """The new values of a variable."""

    key: str
    value: str = attrs.field(repr=False)
    variable_type: str = "env_var"
    protected: bool = False
    masked: bool = False
    hidden: bool = False
    raw: bool = False
    environment_scope: str = "*"
    description: str | None = None


def problems(values: Values) -> dict[str, list[str]]:
    """Return the reasons why this cannot be a variable, by attribute."""
    errors: dict[str, list[str]] = {}
    for name, limit in (
        ("key", MAX_TEXT),
        ("value", MAX_VALUE),
        ("environment_scope", MAX_TEXT),
        ("description", MAX_TEXT),
    ):
        if len(getattr(values, name) or "") > limit:
            errors[name] = [f"is too long (maximum is {limit} characters)"]
    if not _KEY.fullmatch(values.key):
        errors["key"] = ["can contain only letters, digits and '_'."]
    if not _SCOPE.fullmatch(values.environment_scope):
        errors["environment_scope"] = [
            "can contain only letters, digits, '-', '_', '/', '$', '{', '}', '.', '*' and spaces"
        ]
    if values.masked and not (_MASKABLE_RAW if values.raw else _MASKABLE).fullmatch(values.value):
        errors.setdefault("value", ["is invalid"])
    return errors


#: The type of an owner and the prefix of the events about its variables.
_EVENTS = {"Project": "ci_variable", "Group": "ci_group_variable", INSTANCE.type: "ci_instance_variable"}
#: The type of an owner and the noun for its variables in the refusal of too many.
_KINDS = {
    "Project": "project ci variables",
    "Group": "group ci variables",
    INSTANCE.type: "ci instance level variables",
}
#: Fields whose changes are recorded as audit events; values are never recorded.
_AUDITED = ("variable_type", "protected", "masked", "raw", "environment_scope", "description")


async def create(
    transaction: Transaction, vault: Vault, owner: Entity, values: Values, author: Author, limit: int
) -> int:
    """Create a variable and return its id; the owner may have up to `limit`. Raise 400 in GitLab's words."""
    _refuse_problems(values)
    columns = attrs.asdict(values) | {"value": vault.encrypt(values.value)}
    try:
        variable_id = await queries.create(transaction, owner, **columns)
    except Conflict:
        raise _already_taken(values) from None
    if await queries.QUOTAS[owner.type].is_exceeded(transaction, owner.id, limit):
        raise invalid({"base": [f"Maximum number of {_KINDS[owner.type]} ({limit}) exceeded"]})
    event_type = f"{_EVENTS[owner.type]}_created"
    await audit_trail.record(transaction, event_type, author, owner.target(variable_id, values.key))
    return variable_id


async def update(
    transaction: Transaction,
    vault: Vault,
    owner: Entity,
    before: StoredVariable,
    values: Values,
    author: Author,
) -> None:
    """Give the variable `before` the `values`. Raise 400."""
    _refuse_problems(values)
    if before.hidden and not values.masked:
        raise invalid({"base": ["The visibility setting cannot be changed for masked and hidden variables."]})
    columns = attrs.asdict(values, filter=lambda field, _: field.name not in ("key", "hidden"))
    try:
        await queries.update(transaction, before.id, **columns | {"value": vault.encrypt(values.value)})
    except Conflict:
        raise _already_taken(values) from None
    event_type, target = f"{_EVENTS[owner.type]}_updated", owner.target(before.id, before.key)
    if vault.decrypt(before.value) != values.value:
        await audit_trail.record(transaction, event_type, author, target, "Changed value", change="value")
    for change in audit_trail.changes(before, values, _AUDITED):
        await audit_trail.record(transaction, event_type, author, target, **change)


async def delete(transaction: Transaction, owner: Entity, before: StoredVariable, author: Author) -> None:
    await queries.delete(transaction, before.id)
    event_type = f"{_EVENTS[owner.type]}_deleted"
    await audit_trail.record(transaction, event_type, author, owner.target(before.id, before.key))


def _refuse_problems(values: Values) -> None:
    if errors := problems(values):
        raise invalid(errors)


def _already_taken(values: Values) -> ApiError:
    return invalid({"key": [f"({values.key}) has already been taken"]})
