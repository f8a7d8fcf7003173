"""The level from which on a rule lets people do something, in both of the ways that GitLab has to name it."""

from typing import Literal

import attrs

from api_server.code.branches.protection import NOBODY

Level = Literal[0, 30, 40, 60]


@attrs.frozen(kw_only=True)
class AllowedTo:
    """GitLab's other way to name a level: `allowed_to_push: [{access_level: 40}]`, and when a rule is changed the one
    that it had, `{id: 7, _destroy: true}`. Rules name nobody beside levels."""

    id: int | None = None
    access_level: Level | None = None
    goes: bool = attrs.field(default=False, metadata={"name": "_destroy"})
    user_id: int | None = None
    group_id: int | None = None
    deploy_key_id: int | None = None

    @property
    def unsupported(self) -> list[str]:
        """What is sent of it that rules have not."""
        return [name for name in ("user_id", "group_id", "deploy_key_id") if getattr(self, name) is not None]


def check_allowed(name: str, level: Level | None, allowed: list[AllowedTo]) -> None:
    """Raises ValueError for more than one level, and for what has none."""
    unsupported = [f"{name}[{key}]" for one in allowed for key in one.unsupported]
    if unsupported:
        verb = "is" if len(unsupported) == 1 else "are"
        raise ValueError(f"{', '.join(unsupported)} {verb} not supported by this service")
    staying = [one for one in allowed if not one.goes]
    if (
        len(staying) > 1
        or (allowed and level is not None)
        or any(one.access_level is None for one in staying)
    ):
        raise ValueError(f"{name} does not have a valid value")


def level_of(level: Level | None, allowed: list[AllowedTo] | None) -> Level | None:
    """The level by whichever of the two parameters; None where nothing is said of it."""
    if not allowed:
        return level
    return next((one.access_level for one in allowed if not one.goes), NOBODY)
