"""The claims of an identity token, which describe the job that has it, with the names and types of GitLab's
tokens. Pure."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from api_server.ci.config.plan import IdToken, PlannedJob
from api_server.ci.config.predefined import Commit, Job, Pipeline, Project, Server, User, tier
from api_server.ci.config.variables import expand
from api_server.ci.identity.queries import MAX_GROUPS, UserRoles
from api_server.ci.variables.queries import TooManyBytes
from api_server.git.ref_names import BRANCHES, TAGS
from api_server.web.routes import Role

#: All claims that a token may have, for discovery.
NAMES: Final = (
    "iss", "sub", "aud", "exp", "nbf", "iat", "jti",
    "project_id", "project_path", "namespace_id", "namespace_path", "project_visibility",
    "job_project_id", "job_project_path", "job_namespace_id", "job_namespace_path",
    "user_id", "user_login", "user_email", "user_access_level", "groups_direct",
    "pipeline_id", "pipeline_source", "job_id", "ref", "ref_type", "ref_path", "ref_protected",
    "environment", "environment_protected", "deployment_tier", "environment_action",
    "runner_id", "runner_environment", "sha", "ci_config_ref_uri", "ci_config_sha",
)  # fmt: skip
#: Seconds before its creation from which a token is valid, because clocks differ.
_CLOCKS_DIFFER = 5
#: Maximum characters of an audience after replacing its variables.
MAX_AUDIENCE = 1000


@attrs.frozen(kw_only=True)
class Identity:
    """The identity of a running job."""

    server: Server
    project: Project
    pipeline: Pipeline
    commit: Commit
    job: Job
    plan: PlannedJob
    user: User | None
    #: The user's role and groups; None without a user.
    roles: UserRoles | None
    #: The components of `sub`.
    subject: Sequence[str]

    def claims(self, audience: str | Sequence[str]) -> dict[str, Any]:
        """Return the payload of a token for `audience`; each payload has a unique id."""
        return {
            **self._of_project(""),
            **self._of_project("job_"),
            "project_visibility": self.project.visibility,
            **self._of_user(),
            "pipeline_id": str(self.job.pipeline_id),
            "pipeline_source": self.pipeline.source,
            "job_id": str(self.job.id),
            **self._of_ref(),
            **self._of_environment(),
            "runner_id": self.job.runner_id,
            "runner_environment": "self-hosted",
            "sha": self.commit.sha,
            "ci_config_ref_uri": self._configuration,
            "ci_config_sha": self.commit.sha,
            **self._of_token(audience),
        }

    def _of_project(self, prefix: str) -> dict[str, str]:
        """Return the claims about the project. For a merge request from a fork, GitLab's claims describe the
        fork."""
        return {
            f"{prefix}project_id": str(self.project.id),
            f"{prefix}project_path": self.project.full_path,
            f"{prefix}namespace_id": str(self.project.namespace_id),
            f"{prefix}namespace_path": self.project.full_path.rpartition("/")[0],
        }

    def _of_user(self) -> dict[str, Any]:
        user, roles = self.user, self.roles
        role = Role(roles.role).title.lower() if roles is not None and roles.role else None
        claims: dict[str, Any] = {
            "user_id": "" if user is None else str(user.id),
            "user_login": None if user is None else user.username,
            "user_email": None if user is None else user.email,
            "user_access_level": role,
        }
        if roles is not None and len(roles.groups) <= MAX_GROUPS:
            claims["groups_direct"] = roles.groups
        return claims

    def _of_ref(self) -> dict[str, str]:
        return {
            "ref": self.pipeline.ref,
            "ref_type": self._ref_type,
            "ref_path": self._ref_path,
            "ref_protected": "true" if self.pipeline.protected else "false",
        }

    def _of_environment(self) -> dict[str, str]:
        environment = self.plan.environment
        if environment is None:
            return {}
        return {
            "environment": environment.name,
            "environment_protected": "false",
            "deployment_tier": environment.tier or tier(environment.name),
            "environment_action": environment.action,
        }

    def _of_token(self, audience: str | Sequence[str]) -> dict[str, Any]:
        issued_at = int(self.job.started_at.timestamp())
        of_subject = {"project_path": self.project.full_path, **self._of_ref()}
        return {
            "jti": str(uuid.uuid4()),
            "iss": self.server.url,
            "iat": issued_at,
            "nbf": issued_at - _CLOCKS_DIFFER,
            "exp": issued_at + self.job.timeout,
            "sub": ":".join(f"{name}:{of_subject[name]}" for name in dict.fromkeys(self.subject)),
            "aud": audience,
        }

    @property
    def _ref_type(self) -> str:
        return "tag" if self.pipeline.tag else "branch"

    @property
    def _ref_path(self) -> str:
        return (TAGS if self.pipeline.tag else BRANCHES) + self.pipeline.ref

    @property
    def _configuration(self) -> str:
        host = self.server.url.partition("://")[2]
        return f"{host}/{self.project.full_path}//{self.project.config_path}@{self._ref_path}"


def audience_of(token: IdToken, variables: Mapping[str, str]) -> str | list[str]:
    """Return the audience with its variables replaced. Raise `TooManyBytes` if one is too long."""
    audiences = []
    for text in token.aud:
        audience = expand(text, variables)
        if len(audience) > MAX_AUDIENCE:
            raise TooManyBytes(f"an audience of an identity token has more than {MAX_AUDIENCE:,} characters")
        audiences.append(audience)
    return audiences if token.listed else audiences[0]
