"""Groups and projects from a caller's view: visibility levels, the caller's role, and the accessible
features."""

from typing import Literal, get_args

import attrs

from api_server.state.audit_trail import Entity
from api_server.web.routes import Role

Visibility = Literal["private", "internal", "public"]
VISIBILITY_LEVELS: tuple[Visibility, ...] = get_args(Visibility)


def is_more_visible(visibility: str, limit: str) -> bool:
    """Return whether `visibility` exceeds `limit`."""
    return VISIBILITY_LEVELS.index(visibility) > VISIBILITY_LEVELS.index(limit)


@attrs.frozen(kw_only=True)
class Group:
    """A group; `role` is the caller's, 50 for administrators."""

    id: int
    full_path: str
    #: Ids of the groups whose members have their role here too, from the root down; the last one is its own.
    lineage: list[int]
    role: int
    #: Whether the request named it by a former path.
    moved: bool

    @property
    def entity(self) -> Entity:
        """The entity to which audit events of this group belong."""
        return Entity(type="Group", id=self.id, path=self.full_path)


#: The features of a project that can be closed to callers who can see the project.
Feature = Literal["repository", "builds"]
#: The lowest role that may give variables to pipelines and jobs, in GitLab's names.
OverrideRole = Literal["developer", "maintainer", "owner", "no_one_allowed"]
_OVERRIDE_LEVELS = {"maintainer": Role.MAINTAINER, "owner": Role.OWNER}


def may_give_variables(minimum: OverrideRole, role: int | None) -> bool:
    """Return whether a user with `role` in the project (None: no known user) may give variables to its
    pipelines and jobs."""
    if minimum == "developer":  # the lowest role that can run anything
        return True
    return role is not None and minimum != "no_one_allowed" and role >= _OVERRIDE_LEVELS[minimum]


#: The path of a project's CI file unless the project sets another.
CI_FILE = ".gitlab-ci.yml"


@attrs.frozen(kw_only=True)
class Project:
    """A project; `role` is the caller's, 50 for administrators (`admin`)."""

    id: int
    #: Ids of the namespaces whose members have their role here too, from the root down; the last one contains
    #: it.
    lineage: list[int]
    path: str
    full_path: str
    visibility: str
    default_branch: str
    ci_config_path: str | None
    archived: bool
    public_jobs: bool
    repository_access_level: str
    builds_access_level: str
    ci_pipeline_variables_minimum_override_role: OverrideRole
    role: int
    admin: bool
    #: Whether the request named it by a former path.
    moved: bool

    @property
    def entity(self) -> Entity:
        """The entity to which audit events of this project belong."""
        return Entity(type="Project", id=self.id, path=self.full_path)

    def opens(self, feature_access_level: str) -> bool:
        """Return whether a feature that is enabled, private (members only) or disabled is open to the
        caller."""
        return feature_access_level == "enabled" or (
            feature_access_level == "private" and self.role >= Role.GUEST
        )

    @property
    def ci_file(self) -> str:
        """The path of the file from which its pipelines are made."""
        return (self.ci_config_path or CI_FILE).strip("/")

    @property
    def takes_variables(self) -> bool:
        """Whether the caller may give variables to its pipelines and jobs."""
        return may_give_variables(self.ci_pipeline_variables_minimum_override_role, self.role)

    @property
    def reads_repository(self) -> bool:
        """Whether the caller may read its files: the repository has to be open to the caller, and in a
        private project a Guest's role is not enough."""
        is_guest_at_most = self.visibility == "private" and self.role < Role.REPORTER
        return self.opens(self.repository_access_level) and not is_guest_at_most

    @property
    def shows_pipelines(self) -> bool:
        """Whether the caller may see its pipelines and jobs: below Reporter only if its jobs are public."""
        return self.opens(self.builds_access_level) and (self.role >= Role.REPORTER or self.public_jobs)

    def shows(self, feature: Feature) -> bool:
        """Return whether that feature is open to the caller."""
        return self.reads_repository if feature == "repository" else self.shows_pipelines

    @property
    def shows_repository_to_everybody(self) -> bool:
        """Whether callers without credentials may read its files."""
        return self.visibility == "public" and self.repository_access_level == "enabled"
