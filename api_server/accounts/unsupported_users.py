"""Parameters of users that GitLab knows and this service has no use for (`web/unsupported.py`)."""

import datetime
from typing import Any, Literal

import attrs

from api_server.web.params import Upload


@attrs.frozen(kw_only=True)
class OfUsers:
    """Where one is made or changed."""

    auditor: bool | None = None
    private_profile: bool | None = None
    view_diffs_file_by_file: bool | None = None
    color_scheme_id: int | None = None
    extra_shared_runners_minutes_limit: int | None = None
    shared_runners_minutes_limit: int | None = None
    theme_id: int | None = None
    avatar: Upload | None = attrs.field(default=None, metadata={"cleared_by_empty": True})
    bluesky: str | None = None
    commit_email: str | None = None
    discord: str | None = None
    extern_uid: str | None = None
    github: str | None = None
    linkedin: str | None = None
    mastodon: str | None = None
    note: str | None = None
    orcid: str | None = None
    pronouns: str | None = None
    provider: str | None = None
    skype: str | None = None
    twitter: str | None = None


@attrs.frozen(kw_only=True)
class OfChangedUsers(OfUsers):
    """Where one is changed."""

    skip_reconfirmation: bool | None = None
    group_id_for_saml: int | None = None


@attrs.frozen(kw_only=True)
class OfOneUser:
    """Forms of one."""

    with_custom_attributes: bool | None = None


@attrs.frozen(kw_only=True)
class OfUserLists:
    """Filters of lists."""

    admins: bool | None = None
    auditors: bool | None = None
    exclude_active: bool | None = None
    exclude_external: bool | None = None
    exclude_internal: bool | None = None
    external: bool | None = None
    with_custom_attributes: bool | None = None
    without_projects: bool | None = None
    skip_ldap: bool | None = None
    saml_provider_id: int | None = None
    created_after: datetime.datetime | None = None
    created_before: datetime.datetime | None = None
    extern_uid: str | None = None
    provider: str | None = None
    public_email: str | None = None
    custom_attributes: dict[str, Any] | None = None
    two_factor: Literal["enabled", "disabled"] | None = None
