"""Groups and projects as their callers meet them: visibility levels, the caller's role, and what is open to her."""

from typing import Literal, get_args

import attrs

from api_server.state.audit_trail import Entity
from api_server.web.routes import Role

Visibility = Literal["private", "internal", "public"]
VISIBILITY_LEVELS: tuple[Visibility, ...] = get_args(Visibility)


def is_more_visible(visibility: str, limit: str) -> bool:
    """Whether `visibility` shows more than `limit` allows."""
    return VISIBILITY_LEVELS.index(visibility) > VISIBILITY_LEVELS.index(limit)


@attrs.frozen(kw_only=True)
class Group:
    """`role` is the caller's, 50 for administrators."""

    id: int
    full_path: str
    #: Ids of the groups whose members have their role here too, from the root down; the last one is its own.
    lineage: list[int]
    role: int
    #: The request named it by a path that it has moved from.
    moved: bool

    @property
    def entity(self) -> Entity:
        """What audit events of this group belong to."""
        return Entity(type="Group", id=self.id, path=self.full_path)


#: What of a project can be closed to callers who see the project.
Feature = Literal["repository", "builds"]
#: From which role on variables may be given to pipelines and jobs, under GitLab's names.
OverrideRole = Literal["developer", "maintainer", "owner", "no_one_allowed"]
_OVERRIDE_LEVELS = {"maintainer": Role.MAINTAINER, "owner": Role.OWNER}


def may_give_variables(minimum: OverrideRole, role: int | None) -> bool:
    """Whether somebody with `role` in the project (None: nobody is known) may give variables to what runs there."""
    if minimum == "developer":  # asks no more than running anything does
        return True
    return role is not None and minimum != "no_one_allowed" and role >= _OVERRIDE_LEVELS[minimum]


@attrs.frozen(kw_only=True)
class Project:
    """`role` is the caller's, 50 for administrators (`admin`)."""

    id: int
    #: Ids of the namespaces whose members have their role here too, from the root down; the last one holds it.
    lineage: list[int]
    path: str
    full_path: str
    visibility: str
    default_branch: str
    archived: bool
    public_jobs: bool
    repository_access_level: str
    builds_access_level: str
    ci_pipeline_variables_minimum_override_role: OverrideRole
    role: int
    admin: bool
    #: The request named it by a path that it has moved from.
    moved: bool

    @property
    def entity(self) -> Entity:
        """What audit events of this project belong to."""
        return Entity(type="Project", id=self.id, path=self.full_path)

    def opens(self, feature_access_level: str) -> bool:
        """Whether a feature that is enabled, private (members only) or disabled is open to the caller."""
        return feature_access_level == "enabled" or (
            feature_access_level == "private" and self.role >= Role.GUEST
        )

    @property
    def takes_variables(self) -> bool:
        """Whether the caller may give variables to its pipelines and jobs."""
        return may_give_variables(self.ci_pipeline_variables_minimum_override_role, self.role)

    @property
    def reads_repository(self) -> bool:
        """Whether the caller may read its files: wherever the repository is open to her, but as Guest of a private
        project."""
        is_guest_at_most = self.visibility == "private" and self.role < Role.REPORTER
        return self.opens(self.repository_access_level) and not is_guest_at_most

    @property
    def shows_pipelines(self) -> bool:
        """Whether the caller may see its pipelines and jobs: Guests and strangers only where they are for everybody."""
        return self.opens(self.builds_access_level) and (self.role >= Role.REPORTER or self.public_jobs)

    def shows(self, feature: Feature) -> bool:
        """Whether that feature is open to the caller."""
        return self.reads_repository if feature == "repository" else self.shows_pipelines

    @property
    def shows_repository_to_everybody(self) -> bool:
        """Whether strangers may read its files."""
        return self.visibility == "public" and self.repository_access_level == "enabled"
