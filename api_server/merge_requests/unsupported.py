"""Parameters of merge requests that GitLab knows and this service has no use for (`web/unsupported.py`)."""

import datetime
from typing import Any, Literal

import attrs

from api_server.web.params import CommaList


@attrs.frozen(kw_only=True)
class OfMergeRequests:
    """Where one is made or changed."""

    milestone_id: int | None = None
    allow_collaboration: bool | None = None
    allow_maintainer_to_push: bool | None = None


@attrs.frozen(kw_only=True)
class OfOneMergeRequest:
    """Where one is shown."""

    render_html: bool | None = None


@attrs.frozen(kw_only=True)
class OfMergeRequestDiffs:
    """Forms of differences."""

    unidiff: bool | None = None


@attrs.frozen(kw_only=True)
class OfChanges(OfMergeRequestDiffs):
    """Likewise, where all are shown at once."""

    access_raw_diffs: bool | None = None


@attrs.frozen(kw_only=True)
class OfApprovals:
    """Where one is approved."""

    approval_password: str | None = None


@attrs.frozen(kw_only=True)
class OfNewMergeRequests(OfMergeRequests):
    """Where one is made."""

    approvals_before_merge: int | None = None
    merge_after: datetime.datetime | None = None


@attrs.frozen(kw_only=True)
class OfChangedMergeRequests(OfMergeRequests):
    """Where one is changed."""

    discussion_locked: bool | None = None
    merge_after: datetime.datetime | None = None


@attrs.frozen(kw_only=True)
class OfMerging:
    """Where one is merged."""

    skip_merge_train: bool | None = None


@attrs.frozen(kw_only=True)
class OfMergeRequestLists:
    """Filters and forms of lists."""

    milestone: str | None = None
    my_reaction_emoji: str | None = None
    approved_by_ids: CommaList[str] | None = None
    approver_ids: CommaList[str] | None = None
    approved_by_usernames: CommaList[str] | None = None
    approved: Literal["yes", "no"] | None = None
    render_html: bool | None = None
    with_labels_details: bool | None = None
    with_merge_status_recheck: bool | None = None
    deployed_after: datetime.datetime | None = None
    deployed_before: datetime.datetime | None = None
    environment: str | None = None
    view: Literal["simple"] | None = None
    #: `not[labels]=...`, `or[...]=...`
    negated: dict[str, Any] | None = attrs.field(default=None, metadata={"name": "not"})
    alternatives: dict[str, Any] | None = attrs.field(default=None, metadata={"name": "or"})
