"""Parameters of projects that GitLab knows and this service has no use for (`web/unsupported.py`)."""

import datetime
from typing import Any, Literal

import attrs

from api_server.web.params import CommaList, Upload
from api_server.web.unsupported import REFUSED

FeatureAccess = Literal["disabled", "private", "enabled"]


@attrs.frozen(kw_only=True)
class OfProjects:
    """Where one is made or changed. Pull mirrors are not here, and nobody is to think that one runs."""

    autoclose_referenced_issues: bool | None = None
    auto_devops_enabled: bool | None = None
    container_registry_enabled: bool | None = None
    emails_disabled: bool | None = None
    emails_enabled: bool | None = None
    enforce_auth_checks_on_uploads: bool | None = None
    group_runners_enabled: bool | None = None
    issues_enabled: bool | None = None
    lfs_enabled: bool | None = None
    merge_pipelines_enabled: bool | None = None
    merge_requests_enabled: bool | None = None
    mirror_trigger_builds: bool | None = None
    packages_enabled: bool | None = None
    printing_merge_request_link_enabled: bool | None = None
    request_access_enabled: bool | None = None
    resolve_outdated_diff_discussions: bool | None = None
    service_desk_enabled: bool | None = None
    shared_runners_enabled: bool | None = None
    show_default_award_emojis: bool | None = None
    snippets_enabled: bool | None = None
    warn_about_potentially_unwanted_characters: bool | None = None
    wiki_enabled: bool | None = None
    analytics_access_level: FeatureAccess | None = None
    container_registry_access_level: FeatureAccess | None = None
    environments_access_level: FeatureAccess | None = None
    feature_flags_access_level: FeatureAccess | None = None
    forking_access_level: FeatureAccess | None = None
    infrastructure_access_level: FeatureAccess | None = None
    issues_access_level: FeatureAccess | None = None
    merge_requests_access_level: FeatureAccess | None = None
    model_experiments_access_level: FeatureAccess | None = None
    model_registry_access_level: FeatureAccess | None = None
    monitor_access_level: FeatureAccess | None = None
    releases_access_level: FeatureAccess | None = None
    requirements_access_level: FeatureAccess | None = None
    security_and_compliance_access_level: FeatureAccess | None = None
    snippets_access_level: FeatureAccess | None = None
    wiki_access_level: FeatureAccess | None = None
    pages_access_level: Literal["disabled", "private", "enabled", "public"] | None = None
    package_registry_access_level: Literal["disabled", "private", "enabled", "public"] | None = None
    auto_devops_deploy_strategy: Literal["continuous", "manual", "timed_incremental"] | None = None
    approvals_before_merge: int | None = None
    avatar: Upload | None = attrs.field(default=None, metadata={"cleared_by_empty": True})
    external_authorization_classification_label: str | None = None
    issue_branch_template: str | None = None
    issues_template: str | None = None
    merge_commit_template: str | None = None
    merge_requests_template: str | None = None
    repository_storage: str | None = None
    squash_commit_template: str | None = None
    suggestion_commit_message: str | None = None
    tag_list: CommaList[str] | None = None
    topics: CommaList[str] | None = None
    container_expiration_policy_attributes: dict[str, Any] | None = None
    mirror: bool | None = attrs.field(default=None, metadata=REFUSED)
    import_url: str | None = attrs.field(default=None, metadata=REFUSED)


@attrs.frozen(kw_only=True)
class OfNewProjects(OfProjects):
    """Where one is made."""

    use_custom_template: bool | None = None
    group_with_project_templates_id: int | None = None
    template_project_id: int | None = None
    template_name: str | None = None
    repository_object_format: Literal["sha1", "sha256"] | None = None


@attrs.frozen(kw_only=True)
class OfChangedProjects(OfProjects):
    """Where one is changed."""

    allow_pipeline_trigger_approve_deployment: bool | None = None
    ci_allow_fork_pipelines_to_run_in_parent_project: bool | None = None
    ci_forward_deployment_enabled: bool | None = None
    ci_forward_deployment_rollback_allowed: bool | None = None
    ci_push_repository_for_job_token_allowed: bool | None = None
    ci_separated_caches: bool | None = None
    keep_latest_artifact: bool | None = None
    merge_trains_enabled: bool | None = None
    mr_default_target_self: bool | None = None
    mirror_overwrites_diverged_branches: bool | None = None
    only_mirror_protected_branches: bool | None = None
    prevent_merge_without_jira_issue: bool | None = None
    ci_delete_pipelines_in_seconds: int | None = None
    max_artifacts_size: int | None = None
    runner_token_expiration_interval: int | None = None
    ci_restrict_pipeline_cancellation_role: Literal["developer", "maintainer", "no_one"] | None = None
    mirror_branch_regex: str | None = None
    mirror_user_id: int | None = attrs.field(default=None, metadata=REFUSED)


@attrs.frozen(kw_only=True)
class OfOneProject:
    """Forms of one."""

    license: bool | None = None
    statistics: bool | None = None
    with_custom_attributes: bool | None = None


@attrs.frozen(kw_only=True)
class OfRemovedProjects:
    """Where one is removed, which is at once."""

    permanently_remove: bool | None = None
    full_path: str | None = None


@attrs.frozen(kw_only=True)
class OfProjectLists:
    """Filters and forms of lists."""

    imported: bool | None = None
    include_hidden: bool | None = None
    include_pending_delete: bool | None = None
    repository_checksum_failed: bool | None = None
    starred: bool | None = None
    statistics: bool | None = None
    wiki_checksum_failed: bool | None = None
    with_custom_attributes: bool | None = None
    with_issues_enabled: bool | None = None
    with_merge_requests_enabled: bool | None = None
    with_security_reports: bool | None = None
    with_shared: bool | None = None
    last_activity_after: datetime.datetime | None = None
    last_activity_before: datetime.datetime | None = None
    repository_storage: str | None = None
    topic: str | None = None
    with_programming_language: str | None = None
    id_after: int | None = None
    id_before: int | None = None
    topic_id: int | None = None
    search_namespaces: bool | None = None
