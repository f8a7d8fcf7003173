"""Who may grant which role, and which memberships can be: pure rules of groups and projects (decision D1)."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Literal

from api_server.web.routes import Role

SourceKind = Literal["group", "project"]

_GRANTABLE: dict[SourceKind, frozenset[Role]] = {
    "group": frozenset(Role) - {Role.NO_ACCESS},
    "project": frozenset(Role) - {Role.NO_ACCESS, Role.MINIMAL_ACCESS},
}


def manager(kind: SourceKind) -> Role:
    """The least role that manages the members there."""
    return Role.OWNER if kind == "group" else Role.MAINTAINER


def may_touch(role: int, *levels: int) -> bool:
    """Whether a manager with `role` may grant, change or take away these levels: nobody below Owner touches Owner."""
    return role >= Role.OWNER or Role.OWNER not in levels


def problems(
    kind: SourceKind,
    level: Role,
    *,
    inherited: int | None = None,
    inherited_from: str | None = None,
    expires_at: datetime.date | None = None,
    today: datetime.date,
) -> dict[str, list[str]]:
    """What is wrong with a membership of `level`, by field, in GitLab's words; {} where nothing is.

    `inherited` is the role that the user has from the group named `inherited_from` above.
    """
    found: dict[str, list[str]] = {}
    if level not in _GRANTABLE[kind]:
        found["access_level"] = ["is not included in the list"]
    elif inherited is not None and level < inherited:
        text = f"should be greater than or equal to {Role(inherited).title} inherited membership from group"
        found["access_level"] = [f"{text} {inherited_from}"]
    if expires_at is not None and expires_at < today:
        found["expires_at"] = ["cannot be a date in the past"]
    return found


def sentence(problems: Mapping[str, Sequence[str]]) -> str:
    """`{"expires_at": ["is x"], "access_level": ["is y"]}` as `Expires at is x and Access level is y`."""
    parts = [
        f"{field.replace('_', ' ').capitalize()} {text}"
        for field, texts in problems.items()
        for text in texts
    ]
    return ", ".join([*parts[:-2], " and ".join(parts[-2:])])
