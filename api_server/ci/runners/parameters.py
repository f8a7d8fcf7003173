"""What requests about runners carry."""

from typing import Annotated, Any, Literal

import attrs

from api_server.ci.pipelines import states
from api_server.ci.runners.changes import AccessLevel, NewRunner, RunnerType
from api_server.web.pagination import Paginated
from api_server.web.params import UNSET, AtMost, CommaList, Name, Unset

#: What PostgreSQL's `integer` holds.
_MAX_INTEGER = 2**31 - 1
_IN_INTEGER = {"least": -_MAX_INTEGER, "greatest": _MAX_INTEGER}
#: As long as GitLab's documentation says.
MaintenanceNote = Annotated[str, AtMost(1024)]
RunnerStatus = Literal["online", "offline", "stale", "never_contacted", "active", "paused"]


def _fits(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if isinstance(value, int) and abs(value) > _MAX_INTEGER:
        raise ValueError(f"{attribute.name} is invalid")


@attrs.frozen(kw_only=True)
class ListRunners(Paginated):
    type: RunnerType | None = None
    status: RunnerStatus | None = None
    scope: Literal["active", "paused", "online", "offline", "specific", "shared"] | None = None
    paused: bool | None = None
    tag_list: CommaList[Name] | None = None


@attrs.frozen(kw_only=True)
class ListRunnersOf(ListRunners):
    id: str


@attrs.frozen(kw_only=True)
class OneRunner:
    id: int


@attrs.frozen(kw_only=True)
class ListManagers(Paginated):
    id: int


@attrs.frozen(kw_only=True)
class ListRunnerJobs(Paginated):
    id: int
    status: states.Status | None = None
    system_id: Name | None = None


@attrs.frozen(kw_only=True)
class UpdateRunner:
    id: int
    description: Name | None = None
    active: bool | None = None
    paused: bool | None = None
    locked: bool | None = None
    run_untagged: bool | None = None
    tag_list: CommaList[Name] | None = None
    access_level: AccessLevel | None = None
    maximum_timeout: int | Unset | None = attrs.field(default=UNSET, validator=_fits, metadata=_IN_INTEGER)
    maintenance_note: MaintenanceNote | None = None


@attrs.frozen(kw_only=True)
class AssignRunner:
    id: str
    runner_id: int


@attrs.frozen(kw_only=True)
class RunnerToBe:
    """What is said of a new runner, however it is made."""

    description: Name | None = None
    maintenance_note: MaintenanceNote | None = None
    paused: bool | None = None
    locked: bool = False
    run_untagged: bool = True
    tag_list: CommaList[Name] = attrs.field(factory=CommaList)
    access_level: AccessLevel = "not_protected"
    maximum_timeout: int | None = attrs.field(default=None, validator=_fits, metadata=_IN_INTEGER)

    def new(self, *, namespace_id: int | None, project_id: int | None) -> NewRunner:
        """For that group or project, or for the instance."""
        return NewRunner(
            namespace_id=namespace_id,
            project_id=project_id,
            description=self.description or "",
            maintenance_note=self.maintenance_note,
            active=not self.paused,
            locked=self.locked,
            run_untagged=self.run_untagged,
            tag_list=tuple(self.tag_list),
            access_level=self.access_level,
            maximum_timeout=self.maximum_timeout,
        )


@attrs.frozen(kw_only=True)
class RegisterRunner(RunnerToBe):
    token: str
    name: Name | None = None
    active: bool = True

    def new(self, *, namespace_id: int | None, project_id: int | None) -> NewRunner:
        """As older runners say it, with `active` where `paused` is not sent."""
        made = super().new(namespace_id=namespace_id, project_id=project_id)
        return attrs.evolve(made, name=self.name, active=self.active if self.paused is None else made.active)


@attrs.frozen(kw_only=True)
class CreateRunner(RunnerToBe):
    runner_type: RunnerType
    group_id: int | None = None
    project_id: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.runner_type == "group_type" and self.group_id is None:
            raise ValueError("group_id is missing")
        if self.runner_type == "project_type" and self.project_id is None:
            raise ValueError("project_id is missing")


@attrs.frozen(kw_only=True)
class RunnerToken:
    token: str | None = None
    system_id: Name | None = None


@attrs.frozen(kw_only=True)
class DeleteManager:
    token: str
    system_id: Name
