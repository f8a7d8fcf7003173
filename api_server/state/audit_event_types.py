"""Every type of audit event: what it belongs to, what it is about, what it says, and which details it may carry.

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
    """`scopes` are what an event can belong to, `target` is the kind of thing that it is about; its message has one of
    the shapes `messages`, where `*` is what varies; `details` are its own keys beside those that every event has."""

    scopes: frozenset[EntityType]
    target: str
    messages: tuple[str, ...]
    details: frozenset[str]


_Says = tuple[tuple[str, ...], frozenset[str]]


def says(messages: str | tuple[str, ...], *details: str) -> _Says:
    return (messages,) if isinstance(messages, str) else messages, frozenset(details)


def types(
    scopes: tuple[EntityType, ...] | EntityType, target: str, **names: _Says
) -> Iterator[tuple[str, EventType]]:
    where = frozenset((scopes,) if isinstance(scopes, str) else scopes)
    for name, (messages, details) in names.items():
        yield name, EventType(where, target, messages, details)


INSTANCE: EntityType = "Service::Audit::InstanceScope"
SOURCES: tuple[EntityType, ...] = ("Group", "Project")


CI_EVENT_TYPES: list[tuple[str, EventType]] = [
    *types(
        ("Project", "Group", INSTANCE),
        "Ci::Runner",
        runner_registered=says("Added runner", "runner_type"),
        runner_updated=says("Changed the runner", *CHANGE),
        runner_token_reset=says("Replaced the runner's token"),
        runner_unregistered=says("Removed runner", "runner_type"),
        runner_assigned_to_project=says("Gave the runner a further project", "project_id"),
        runner_unassigned_from_project=says("Took a project from the runner", "project_id"),
    ),
    *types(
        ("Project", "Group", INSTANCE),
        "RunnerRegistrationToken",
        runner_registration_token_reset=says("Replaced the registration token of runners"),
    ),
    *types(
        "Project",
        "Clusters::Agent",
        cluster_agent_created=says("Created cluster agent '*' with id *", "add"),
        cluster_agent_deleted=says("Deleted cluster agent '*' with id *", "remove"),
    ),
    *types(
        "Project",
        "Ci::Variable",
        ci_variable_created=says("Added ci variable", "add"),
        ci_variable_updated=says("Changed *", *CHANGE),
        ci_variable_deleted=says("Removed ci variable", "remove"),
    ),
    *types(
        "Group",
        "Ci::GroupVariable",
        ci_group_variable_created=says("Added ci variable", "add"),
        ci_group_variable_updated=says("Changed *", *CHANGE),
        ci_group_variable_deleted=says("Removed ci variable", "remove"),
    ),
    *types(
        INSTANCE,
        "Ci::InstanceVariable",
        ci_instance_variable_created=says("Added ci variable", "add"),
        ci_instance_variable_updated=says("Changed *", *CHANGE),
        ci_instance_variable_deleted=says("Removed ci variable", "remove"),
    ),
    *types(
        "Project",
        "Job",
        job_erased=says("Erased the log and the artifacts of job *", "pipeline_id"),
        job_artifacts_deleted=says("Deleted the artifacts of job *", "artifacts"),
    ),
    *types(
        "Project",
        "Ci::Trigger",
        pipeline_trigger_created=says("Added pipeline trigger with id *"),
        pipeline_trigger_updated=says("Changed pipeline trigger with id *", *CHANGE),
        pipeline_trigger_destroyed=says("Removed pipeline trigger with id *"),
    ),
    *types(
        "Project",
        "Ci::PipelineSchedule",
        pipeline_schedule_created=says("Added pipeline schedule with id *"),
        pipeline_schedule_updated=says("Changed pipeline schedule with id *", *CHANGE),
        pipeline_schedule_destroyed=says("Removed pipeline schedule with id *"),
    ),
    *types("Project", "Project", project_artifacts_deleted=says("Deleted the artifacts of the project")),
    *types("Project", "Ci::Pipeline", destroy_pipeline=says("Deleted pipeline", "remove")),
]


_CHANGED = "Changed * from * to *"
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
        *types(
            "User",
            "User",
            user_created=says("User * created"),
            user_updated=says("Changed *"),
            user_destroyed=says("User destroyed"),
            user_blocked=says("User blocked"),
            user_unblocked=says("User unblocked"),
            user_email_address_updated=says("Changed email address from * to *", *CHANGE),
            password_reset_requested=says("Ask for password reset"),
            user_password_updated=says("Changed the password"),
            user_admin_status_updated=says("Changed admin status from * to *", *CHANGE),
            static_object_token_rotated=says("Static object token rotated"),
            personal_access_token_created=says("Created personal access token with id *"),
            personal_access_token_revoked=says("Revoked personal access token with id *"),
            authenticated_with_password=says("Signed in with STANDARD authentication", "with"),
            authenticated_with_link=says("Signed in with LINK authentication", "with"),
        ),
        *types(
            "User",
            "Email",
            email_created=says("Added email address"),
            email_confirmed=says("Confirmed email address"),
            email_destroyed=says("Removed email address"),
        ),
        *types(
            ("User", INSTANCE),
            "User",
            login_failed_with_standard_authentication=says(
                "Failed to login with STANDARD authentication", "failed_login"
            ),
        ),
        *types(
            "Group",
            "Group",
            group_created=says("Added group", "add"),
            group_name_updated=says(_CHANGED, *CHANGE),
            group_path_updated=says(_CHANGED, *CHANGE),
            group_visibility_level_updated=says(_CHANGED, *CHANGE),
            group_destroyed=says("Removed group", "remove"),
        ),
        *types(
            "Project",
            "Project",
            project_created=says("Added project", "add"),
            project_name_updated=says(_CHANGED, *CHANGE),
            project_path_updated=says(_CHANGED, *CHANGE),
            project_namespace_updated=says(_CHANGED, *CHANGE),
            project_visibility_level_updated=says(_CHANGED, *CHANGE),
            project_default_branch_updated=says(_CHANGED, *CHANGE),
            project_archived=says(_CHANGED, *CHANGE),
            project_unarchived=says(_CHANGED, *CHANGE),
            project_feature_repository_access_level_updated=says(_CHANGED, *CHANGE),
            project_feature_builds_access_level_updated=says(_CHANGED, *CHANGE),
            project_only_allow_merge_if_all_status_checks_passed_updated=says(_CHANGED, *CHANGE),
            project_only_allow_merge_if_pipeline_succeeds_updated=says(_CHANGED, *CHANGE),
            project_ci_pipeline_variables_minimum_override_role_updated=says(_CHANGED, *CHANGE),
            project_merge_method_updated=says(_CHANGED, *CHANGE),
            squash_option_updated=says(_CHANGED, *CHANGE),
            project_only_allow_merge_if_all_discussions_are_resolved_updated=says(_CHANGED, *CHANGE),
            project_destroyed=says("Removed project", "remove"),
            secure_ci_job_token_inbound_enabled=says("Secure ci_job_token was enabled for inbound"),
            secure_ci_job_token_inbound_disabled=says("Secure ci_job_token was disabled for inbound"),
            secure_ci_job_token_project_added=says(
                "Project * was added to inbound list of allowed projects for *"
            ),
            secure_ci_job_token_project_removed=says(
                "Project * was removed from inbound list of allowed projects for *"
            ),
        ),
        *types(
            "Project",
            "Group",
            secure_ci_job_token_group_added=says("Group * was added to list of allowed groups for *"),
            secure_ci_job_token_group_removed=says("Group * was removed from list of allowed groups for *"),
        ),
        *types(
            "Project",
            "User",
            project_access_token_created=says(
                "Created project access token with token_id: * with scopes: * and access level *"
            ),
            project_access_token_deleted=says("Revoked project access token with token_id: *"),
        ),
        *types(
            "Group",
            "User",
            group_access_token_created=says(
                "Created group access token with token_id: * with scopes: * and access level *"
            ),
            group_access_token_deleted=says("Revoked group access token with token_id: *"),
        ),
        *types(
            SOURCES,
            "User",
            member_created=says(("Membership created", "Invitation created"), "add", "expires_at", *_MEMBER),
            member_updated=says(
                ("Membership updated", "Invitation updated"), *CHANGE, "expiry_from", "expiry_to", *_MEMBER
            ),
            member_destroyed=says(
                (
                    "Membership destroyed",
                    "Membership expired on *",
                    "Invitation destroyed",
                    "Invitation declined",
                    "Invitation *",
                ),
                "remove",
                "reason",
                "system_event",
                *_MEMBER,
            ),
        ),
        *types(
            "Project",
            "ProtectedBranch",
            protected_branch_created=says("Added protected branch with *", *_BRANCH),
            protected_branch_updated=says(_CHANGED, *CHANGE),
            protected_branch_removed=says("Unprotected branch", *_BRANCH),
        ),
        *types(
            "Project",
            "ProtectedTag",
            protected_tag_created=says("Added protected tag with *", "create_access_levels"),
            protected_tag_deleted=says("Unprotected tag", "create_access_levels"),
        ),
        *types(
            "Project",
            "Release",
            release_created=says("Created release *"),
            release_updated=says("Updated release *"),
            release_deleted_audit_event=says("Deleted release *"),
        ),
        *types(
            "Project",
            "ExternalStatusCheck",
            create_status_check=says("Added * status check with *"),
            external_status_check_name_updated=says("Changed name from * to *", *CHANGE),
            external_status_check_url_updated=says("Changed external url from * to *", *CHANGE),
            external_status_check_secret_updated=says("Changed shared secret of * status check", "change"),
            update_status_check=says(
                (
                    "Added * to * status check",
                    "Added * and removed all other branches from status check",
                    "Removed * from * status check",
                    "Resumed * status check",
                )
            ),
            delete_status_check=says("Removed * status check"),
            status_check_delivery_redelivered=says("Redelivered to * status check", "delivery_id"),
            external_status_check_paused=says("Paused * status check: *"),
        ),
        *types(
            "Project",
            "MergeRequest",
            status_check_response_update=says("Updated response for status check * to *", *_CHECK_ANSWER),
            delete_merge_request=says("Removed merge request *", "remove"),
        ),
        *types(
            "Project",
            "RemoteMirror",
            remote_mirror_created=says("Added push mirror", "add"),
            remote_mirror_updated=says("Changed * of push mirror*", *CHANGE),
            remote_mirror_deleted=says("Removed push mirror", "remove"),
            remote_mirror_update_failed=says("Push mirror failed", "reason"),
        ),
        *CI_EVENT_TYPES,
        *types(INSTANCE, "ApplicationSetting", application_setting_updated=says("Changed *", *CHANGE)),
        *types(
            INSTANCE,
            "MemberRole",
            member_role_created=says("Created custom role *"),
            member_role_deleted=says("Deleted custom role *"),
        ),
        *types(
            INSTANCE,
            "AuditEvents",
            audit_events_removed=says("Removed * exported audit events", "before", "events", "sha256"),
        ),
        *types(INSTANCE, "Job", job_data_removed=says("Removed * jobs*", "before", "jobs")),
    ]
)


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
