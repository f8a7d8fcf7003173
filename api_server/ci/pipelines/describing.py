"""Rows of the database as the descriptions that predefined variables are made of. Pure."""

from api_server.ci.config import predefined
from api_server.ci.pipelines import repository
from api_server.ci.pipelines.creation_queries import Subject
from api_server.ci.pipelines.merge_request_queries import MergeRequest

#: Characters of a merge request's description that its jobs are told.
MAX_DESCRIPTION = 2700


def described_project(subject: Subject) -> predefined.Project:
    return predefined.Project(
        id=subject.id,
        full_path=subject.full_path,
        title=subject.name,
        namespace_id=subject.namespace_id,
        visibility=subject.visibility,
        default_branch=subject.default_branch,
        description=subject.description or "",
        config_path=subject.ci_config_path or repository.DEFAULT_PATH,
    )


def described_user(subject: Subject) -> predefined.User | None:
    if subject.user_id is None:
        return None
    return predefined.User(
        id=subject.user_id,
        username=subject.username or "",
        name=subject.user_name or "",
        email=subject.email or "",
    )


def described_merge_request(found: MergeRequest | None) -> predefined.MergeRequest | None:
    """Without the heads' SHAs, which GitLab tells pipelines of merged results only."""
    if found is None:
        return None
    return predefined.MergeRequest(
        id=found.id,
        iid=found.iid,
        title=found.title,
        description=found.description[:MAX_DESCRIPTION],
        description_is_truncated=len(found.description) > MAX_DESCRIPTION,
        draft=found.draft,
        labels=tuple(found.labels),
        source_branch=found.source_branch,
        source_protected=found.source_protected,
        source_project_id=found.project_id,
        source_project_path=found.project_path,
        target_branch=found.target_branch,
        target_protected=found.target_protected,
        diff_base_sha=found.base_sha or "",
    )
