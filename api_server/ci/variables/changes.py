"""What making, changing and removing a CI/CD variable means, each in the caller's transaction."""

import attrs

from api_server.ci.variables import queries, rules
from api_server.ci.variables.rules import Values
from api_server.state import audit_trail
from api_server.state.audit_trail import Author, Entity
from api_server.state.database import Conflict, Row, Transaction
from api_server.state.secrets import Vault
from api_server.web.errors import ApiError, invalid

#: What the trail tells of; it never holds a value.
_TOLD = ("variable_type", "protected", "masked", "raw", "environment_scope", "description")


@attrs.frozen
class Source:
    """The project or group that variables belong to."""

    kind: str
    entity: Entity

    @property
    def place(self) -> dict[str, int | None]:
        """As statements take it: project_id or namespace_id, the other one None."""
        return {
            "project_id": self.entity.id if self.kind == "project" else None,
            "namespace_id": self.entity.id if self.kind == "group" else None,
        }


async def create(
    transaction: Transaction, vault: Vault, source: Source, values: Values, author: Author
) -> int:
    """The new variable's id. Raises 400 as GitLab words it."""
    _refuse_problems(values)
    columns = attrs.asdict(values) | {"value": vault.encrypt(values.value)}
    try:
        made = await queries.create(transaction, **source.place, **columns)
    except Conflict:
        raise _taken(values) from None
    await _record(
        transaction, "created", author, source, made, values.key, "Added ci variable", add="ci_variable"
    )
    return made


async def update(
    transaction: Transaction, vault: Vault, source: Source, before: Row, values: Values, author: Author
) -> None:
    """`before` is the row, `values` all that it shall hold. Raises 400."""
    _refuse_problems(values)
    if before.hidden and not values.masked:
        raise invalid({"base": ["The visibility setting cannot be changed for masked and hidden variables."]})
    columns = attrs.asdict(values, filter=lambda field, _: field.name not in ("key", "hidden"))
    try:
        await queries.update(transaction, before.id, **columns | {"value": vault.encrypt(values.value)})
    except Conflict:
        raise _taken(values) from None
    target = (author, source, before.id, before.key)
    if vault.decrypt(before.value) != values.value:
        await _record(transaction, "updated", *target, "Changed value", change="value")
    for name in _TOLD:
        old, new = getattr(before, name), getattr(values, name)
        if old != new:
            message = f"Changed {name} from {audit_trail.words(old)} to {audit_trail.words(new)}"
            await _record(
                transaction, "updated", *target, message, **{"change": name, "from": old, "to": new}
            )


async def delete(transaction: Transaction, source: Source, before: Row, author: Author) -> None:
    await queries.delete(transaction, before.id)
    await _record(
        transaction,
        "deleted",
        author,
        source,
        before.id,
        before.key,
        "Removed ci variable",
        remove="ci_variable",
    )


def _refuse_problems(values: Values) -> None:
    if found := rules.problems(values):
        raise invalid(found)


def _taken(values: Values) -> ApiError:
    return invalid({"key": [f"({values.key}) has already been taken"]})


async def _record(
    transaction: Transaction,
    action: str,
    author: Author,
    source: Source,
    variable_id: int,
    key: str,
    message: str,
    **details: str | None,
) -> None:
    group = source.kind == "group"
    await audit_trail.record(
        transaction,
        f"ci_group_variable_{action}" if group else f"ci_variable_{action}",
        author=author,
        entity=source.entity,
        target_id=variable_id,
        target_details=key,
        message=message,
        **details,
    )
