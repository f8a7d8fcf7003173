"""Who may call a route: roles, and the rule that every route declares."""

import enum
from typing import Literal

import attrs


class Role(enum.IntEnum):
    """Access levels of members."""

    NO_ACCESS = 0
    MINIMAL_ACCESS = 5
    GUEST = 10
    PLANNER = 15
    REPORTER = 20
    DEVELOPER = 30
    MAINTAINER = 40
    OWNER = 50

    @property
    def title(self) -> str:
        """As people read it: `Minimal Access`."""
        return self.name.replace("_", " ").title()


@attrs.frozen
class Access:
    """A route's rule. `project` and `group` rules name the least role; the handler's `find_project` or `find_group`
    applies them, and a handler that answers without having done so is a failure of the server."""

    who: Literal["anyone", "signed_in", "administrator", "job", "project", "group"]
    role: Role = Role.NO_ACCESS


#: No credentials are needed; the route answers everybody, or checks credentials of its own kind (runner tokens).
ANYONE = Access("anyone")
SIGNED_IN = Access("signed_in")
ADMINISTRATOR = Access("administrator")
#: A running job's token.
JOB = Access("job")


def project(role: Role = Role.NO_ACCESS) -> Access:
    """Callers with at least `role` in the project; without one, all who can see it."""
    return Access("project", role)


def group(role: Role = Role.NO_ACCESS) -> Access:
    """Callers with at least `role` in the group; without one, all who can see it."""
    return Access("group", role)
