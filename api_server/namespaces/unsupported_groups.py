"""Parameters of groups that GitLab knows and this service has no use for (`web/unsupported.py`)."""

from typing import Any, Literal

import attrs

from api_server.web.params import Upload

SharedRunners = Literal[
    "enabled", "disabled_and_overridable", "disabled_with_override", "disabled_and_unoverridable"
]


@attrs.frozen(kw_only=True)
class OfGroups:
    """Where one is made or changed."""

    auto_devops_enabled: bool | None = None
    emails_disabled: bool | None = None
    emails_enabled: bool | None = None
    lfs_enabled: bool | None = None
    membership_lock: bool | None = None
    mentions_disabled: bool | None = None
    request_access_enabled: bool | None = None
    require_two_factor_authentication: bool | None = None
    share_with_group_lock: bool | None = None
    default_branch_protection: int | None = None
    organization_id: int | None = None
    extra_shared_runners_minutes_limit: int | None = None
    shared_runners_minutes_limit: int | None = None
    two_factor_grace_period: int | None = None
    avatar: Upload | None = attrs.field(default=None, metadata={"cleared_by_empty": True})
    default_branch: str | None = None
    enabled_git_access_protocol: Literal["ssh", "http", "all"] | None = None
    default_branch_protection_defaults: dict[str, Any] | None = None
    subgroup_creation_level: Literal["owner", "maintainer"] | None = None
    wiki_access_level: Literal["disabled", "private", "enabled"] | None = None


@attrs.frozen(kw_only=True)
class OfChangedGroups(OfGroups):
    """Where one is changed."""

    auto_ban_user_on_excessive_projects_download: bool | None = None
    lock_duo_features_enabled: bool | None = None
    prevent_forking_outside_group: bool | None = None
    prevent_sharing_groups_outside_hierarchy: bool | None = None
    service_access_tokens_expiration_enforced: bool | None = None
    file_template_project_id: int | None = None
    max_artifacts_size: int | None = None
    math_rendering_limits_enabled: bool | None = None
    lock_math_rendering_limits_enabled: bool | None = None
    duo_availability: Literal["default_on", "default_off", "never_on"] | None = None
    duo_features_enabled: bool | None = None
    experiment_features_enabled: bool | None = None
    unique_project_download_limit: int | None = None
    unique_project_download_limit_interval_in_seconds: int | None = None
    ip_restriction_ranges: str | None = None
    allowed_email_domains_list: str | None = None
    shared_runners_setting: (
        Literal["enabled", "disabled_and_overridable", "disabled_with_override", "disabled_and_unoverridable"]
        | None
    ) = None


@attrs.frozen(kw_only=True)
class OfOneGroup:
    """Forms of one."""

    with_custom_attributes: bool | None = None
    with_projects: bool | None = None


@attrs.frozen(kw_only=True)
class OfRemovedGroups:
    """Where one is removed, which is at once."""

    permanently_remove: bool | None = None
    full_path: str | None = None


@attrs.frozen(kw_only=True)
class OfNamespaceLists:
    """Filters of lists of namespaces."""

    owned_only: bool | None = None
    top_level_only: bool | None = None
    full_path_search: bool | None = None


@attrs.frozen(kw_only=True)
class OfGroupLists:
    """Filters and forms of lists."""

    all_available: bool | None = None
    statistics: bool | None = None
    with_custom_attributes: bool | None = None
    repository_storage: str | None = None
