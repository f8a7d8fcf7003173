"""Who may call a route: roles, and the rule that every route declares."""

import abc
import enum
from typing import Any, ClassVar, Literal

import attrs
from aiohttp import web


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
    """A route's rule about its caller."""

    who: Literal["anyone", "signed_in", "administrator", "job", "project", "group"]
    #: Those without credentials may call too; credentials that are sent have to be valid.
    strangers: bool = attrs.field(default=False, kw_only=True)


@attrs.frozen
class Place(Access, abc.ABC):
    """A rule about what `{id}` of the route's path names: callers need at least `role` there; without one, all who can
    see it may call."""

    role: Role = Role.NO_ACCESS

    #: What the rule finds.
    finds: ClassVar[type]

    @abc.abstractmethod
    async def find(self, request: web.Request, reference: str) -> Any:
        """What has that id or full path. Raises 404 where the caller cannot see it, and 403."""


#: No credentials are needed; the route answers everybody, or checks credentials of its own kind (runner tokens).
ANYONE = Access("anyone")
SIGNED_IN = Access("signed_in")
SIGNED_IN_OR_NOT = Access("signed_in", strangers=True)
ADMINISTRATOR = Access("administrator")
#: A running job's token.
JOB = Access("job")
