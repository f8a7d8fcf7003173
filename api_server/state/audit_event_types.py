"""Every type of audit event: what it belongs to, what it is about, and which details it may carry.

The names are GitLab's where GitLab has the event (decision D7). `audit_trail.record` refuses what is not here.
"""

from collections.abc import Iterator
from typing import Literal

import attrs

EntityType = Literal["User", "Group", "Project", "Service::Audit::InstanceScope"]

#: What a change of one value tells.
CHANGE = ("change", "from", "to")


@attrs.frozen
class EventType:
    """`scopes` are what an event can belong to, `target` is the kind of thing that it is about; `details` are its own
    keys beside those that every event has."""

    scopes: frozenset[EntityType]
    target: str
    details: frozenset[str]


def declared(event_type: str, entity_type: str, details: frozenset[str]) -> EventType:
    """The declaration of an event like this; raises ValueError where there is none that allows it."""
    found = EVENT_TYPES.get(event_type)
    if found is None:
        raise ValueError(f"{event_type} is no type of audit event; add it to audit_event_types.py")
    if entity_type not in found.scopes:
        raise ValueError(f"{event_type} does not belong to a {entity_type}")
    if unknown := details - found.details:
        raise ValueError(f"{event_type} has no details {', '.join(sorted(unknown))}")
    return found


def _types(
    scopes: tuple[EntityType, ...] | EntityType, target: str, **names: tuple[str, ...]
) -> Iterator[tuple[str, EventType]]:
    where = frozenset((scopes,) if isinstance(scopes, str) else scopes)
    for name, details in names.items():
        yield name, EventType(where, target, frozenset(details))


_INSTANCE: EntityType = "Service::Audit::InstanceScope"
_SOURCES: tuple[EntityType, ...] = ("Group", "Project")
# An invitation is recorded as the membership that it will be, as GitLab does.
_MEMBER = ("as", "member_id", "member_role_id", "invite_email")
_BRANCH = (
    "push_access_levels",
    "merge_access_levels",
    "allow_force_push",
    "code_owner_approval_required",
)
_CHECK_ANSWER = (
    "external_status_check_id",
    "external_status_check_name",
    "status",
    "sha",
    "merge_request_id",
    "merge_request_iid",
)

EVENT_TYPES: dict[str, EventType] = dict(
    [
        *_types(
            "User",
            "User",
            user_created=(),
            user_updated=(),
            user_destroyed=(),
            user_blocked=(),
            user_unblocked=(),
            user_email_address_updated=CHANGE,
            user_password_updated=(),
            user_admin_status_updated=CHANGE,
            static_object_token_rotated=(),
            personal_access_token_created=(),
            personal_access_token_revoked=(),
            authenticated_with_password=("with",),
        ),
        *_types("User", "Email", email_created=(), email_confirmed=(), email_destroyed=()),
        *_types(("User", _INSTANCE), "User", login_failed_with_standard_authentication=("failed_login",)),
        *_types(
            "Group",
            "Group",
            group_created=("add",),
            group_name_updated=CHANGE,
            group_path_updated=CHANGE,
            group_visibility_level_updated=CHANGE,
            group_destroyed=("remove",),
        ),
        *_types(
            "Project",
            "Project",
            project_created=("add",),
            project_name_updated=CHANGE,
            project_path_updated=CHANGE,
            project_namespace_updated=CHANGE,
            project_visibility_level_updated=CHANGE,
            project_default_branch_updated=CHANGE,
            project_archived=CHANGE,
            project_unarchived=CHANGE,
            project_feature_repository_access_level_updated=CHANGE,
            project_feature_builds_access_level_updated=CHANGE,
            project_only_allow_merge_if_all_status_checks_passed_updated=CHANGE,
            project_only_allow_merge_if_pipeline_succeeds_updated=CHANGE,
            project_destroyed=("remove",),
        ),
        *_types(
            _SOURCES,
            "User",
            member_created=("add", "expires_at", *_MEMBER),
            member_updated=(*CHANGE, "expiry_from", "expiry_to", *_MEMBER),
            member_destroyed=("remove", "reason", "system_event", *_MEMBER),
        ),
        *_types(
            "Project",
            "ProtectedBranch",
            protected_branch_created=_BRANCH,
            protected_branch_updated=CHANGE,
            protected_branch_removed=_BRANCH,
        ),
        *_types(
            "Project",
            "ExternalStatusCheck",
            create_status_check=(),
            external_status_check_name_updated=CHANGE,
            external_status_check_url_updated=CHANGE,
            external_status_check_secret_updated=("change",),
            update_status_check=(),
            delete_status_check=(),
            status_check_delivery_redelivered=("delivery_id",),
            external_status_check_paused=(),
        ),
        *_types("Project", "MergeRequest", status_check_response_update=_CHECK_ANSWER),
        *_types(
            "Project",
            "RemoteMirror",
            remote_mirror_created=("add",),
            remote_mirror_updated=CHANGE,
            remote_mirror_deleted=("remove",),
            remote_mirror_update_failed=("reason",),
        ),
        *_types(
            ("Project", "Group", _INSTANCE),
            "Ci::Runner",
            runner_registered=("runner_type",),
            runner_updated=CHANGE,
            runner_token_reset=(),
            runner_unregistered=("runner_type",),
            runner_assigned_to_project=("project_id",),
            runner_unassigned_from_project=("project_id",),
        ),
        *_types(
            ("Project", "Group", _INSTANCE),
            "RunnerRegistrationToken",
            runner_registration_token_reset=(),
        ),
        *_types(
            "Project",
            "Clusters::Agent",
            cluster_agent_created=("add",),
            cluster_agent_deleted=("remove",),
        ),
        *_types(
            "Project",
            "Ci::Variable",
            ci_variable_created=("add",),
            ci_variable_updated=CHANGE,
            ci_variable_deleted=("remove",),
        ),
        *_types(
            "Group",
            "Ci::GroupVariable",
            ci_group_variable_created=("add",),
            ci_group_variable_updated=CHANGE,
            ci_group_variable_deleted=("remove",),
        ),
        *_types("Project", "Job", job_erased=("pipeline_id",), job_artifacts_deleted=("artifacts",)),
        *_types("Project", "Ci::Pipeline", destroy_pipeline=("remove",)),
        *_types(_INSTANCE, "ApplicationSetting", application_setting_updated=CHANGE),
        *_types(_INSTANCE, "MemberRole", member_role_created=(), member_role_deleted=()),
        *_types(
            _INSTANCE,
            "AuditEvents",
            audit_events_removed=("before", "events", "sha256"),
        ),
        *_types(_INSTANCE, "Job", job_data_removed=("before", "jobs")),
    ]
)
