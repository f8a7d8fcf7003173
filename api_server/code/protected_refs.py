"""Protecting and unprotecting branches and tags, each in the caller's transaction."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import attrs

from api_server.code import protected_ref_queries
from api_server.code.protected_ref_queries import ProtectedBranch, ProtectedTag
from api_server.code.protection import ADMINISTRATORS, NOBODY
from api_server.namespaces.resources import Project
from api_server.services import Key
from api_server.state import audit_trail
from api_server.state.audit_trail import Author
from api_server.state.database import Transaction
from api_server.state.errors import Conflict
from api_server.web.errors import conflict, invalid
from api_server.web.routes import Role

MAX_NAME = 255

DESCRIPTIONS = {
    NOBODY: "No one",
    Role.DEVELOPER: "Developers + Maintainers",
    Role.MAINTAINER: "Maintainers",
    ADMINISTRATORS: "Instance admins",
}


@attrs.frozen(kw_only=True)
class Rules:
    """The settings of a protected branch, by the names of their columns."""

    push_access_level: int = Role.MAINTAINER
    merge_access_level: int = Role.MAINTAINER
    allow_force_push: bool = False
    code_owner_approval_required: bool = False


@attrs.frozen(kw_only=True)
class EndOfProtection:
    """The removal of a rule by `author`, which is about to happen. What was limited by the rule needs another limit."""

    project: Project
    rule_id: int
    name: str
    author: Author


#: `listener(transaction, end)` is called while the rule still exists.
EndOfProtectionListener = Callable[[Transaction, EndOfProtection], Awaitable[None]]
END_OF_PROTECTION_LISTENERS = Key[list[EndOfProtectionListener]]("end_of_protection_listeners", list)

#: Names of the fields in the audit trail.
_TITLES = {
    "push_access_level": "allowed to push",
    "merge_access_level": "allowed to merge",
    "allow_force_push": "allow force push",
    "code_owner_approval_required": "code owner approval required",
}


async def protect_branch(
    transaction: Transaction, project: Project, name: str, rules: Rules, author: Author
) -> None:
    """Protect the branches that match `name`. Raise 409 if the name is protected already, 422 if it is not allowed."""
    _check_name(name)
    values = attrs.asdict(rules)
    try:
        row = await protected_ref_queries.protect_branch(transaction, project.id, name, **values)
    except Conflict:
        raise conflict(f"Protected branch '{name}' already exists") from None
    rules_text = ", ".join(f"{_TITLES[field]}: {_text_of(value)}" for field, value in values.items())
    target = project.entity.target(row.id, row.name)
    await audit_trail.record(
        transaction, "protected_branch_created", author, target, rules=rules_text, **_details(row)
    )


async def update_branch(
    transaction: Transaction, project: Project, name: str, changed: dict[str, Any], author: Author
) -> None:
    """Change fields of `Rules` to the values in `changed`. Raise 404."""
    before = await protected_ref_queries.lock_protected_branch(transaction, project.id, name)
    values = {field: changed.get(field, getattr(before, field)) for field in _TITLES}
    await protected_ref_queries.update_protected_branch(transaction, before.id, **values)
    target = project.entity.target(before.id, before.name)
    for field, title in _TITLES.items():
        old, new = _text_of(getattr(before, field)), _text_of(values[field])
        if old != new:
            change = {"change": title, "from": old, "to": new}
            await audit_trail.record(transaction, "protected_branch_updated", author, target, **change)


async def unprotect_branch(
    transaction: Transaction,
    project: Project,
    name: str,
    author: Author,
    listeners: Iterable[EndOfProtectionListener],
) -> None:
    """Remove the rule with this name after calling the listeners. Raise 404."""
    row = await protected_ref_queries.lock_protected_branch(transaction, project.id, name)
    end = EndOfProtection(project=project, rule_id=row.id, name=row.name, author=author)
    for listener in listeners:
        await listener(transaction, end)
    await protected_ref_queries.unprotect_branch(transaction, row.id)
    target = project.entity.target(row.id, row.name)
    await audit_trail.record(transaction, "protected_branch_removed", author, target, **_details(row))


def _text_of(value: int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f"[{DESCRIPTIONS[value]}]"


def _details(row: ProtectedBranch) -> dict[str, str]:
    return {
        "push_access_levels": DESCRIPTIONS[row.push_access_level],
        "merge_access_levels": DESCRIPTIONS[row.merge_access_level],
        "allow_force_push": str(row.allow_force_push).lower(),
        "code_owner_approval_required": str(row.code_owner_approval_required).lower(),
    }


async def protect_tag(
    transaction: Transaction, project: Project, name: str, level: int, author: Author
) -> None:
    """Protect the tags that match `name`. Raise 422 if the name is protected already or not allowed."""
    _check_name(name)
    try:
        row = await protected_ref_queries.protect_tag(transaction, project.id, name, level)
    except Conflict:
        raise invalid(["Name has already been taken"], status=422) from None
    target = project.entity.target(row.id, name)
    await audit_trail.record(transaction, "protected_tag_created", author, target, **_tag_details(row))


async def unprotect_tag(transaction: Transaction, project: Project, name: str, author: Author) -> None:
    """Remove the rule with this name. Raise 404."""
    row = await protected_ref_queries.unprotect_tag(transaction, project.id, name)
    target = project.entity.target(row.id, name)
    await audit_trail.record(transaction, "protected_tag_deleted", author, target, **_tag_details(row))


def _tag_details(row: ProtectedTag) -> dict[str, str]:
    return {"create_access_levels": DESCRIPTIONS[row.create_access_level]}


def _check_name(name: str) -> None:
    """Raise 422 if the name is too long."""
    if len(name) > MAX_NAME:
        raise invalid([f"Name is too long (maximum is {MAX_NAME} characters)"], status=422)
