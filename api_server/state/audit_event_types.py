"""Every type of audit event: what it belongs to, what it is about, what it says, and which details it may carry.

The names are GitLab's where GitLab has the event (decision D7). `audit_trail.record` refuses what is not here.
"""

from api_server.state.audit_event_declaring import CHANGE, EntityType, EventType
from api_server.state.audit_event_declaring import says as _says
from api_server.state.audit_event_declaring import types as _types


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


_INSTANCE: EntityType = "Service::Audit::InstanceScope"
_SOURCES: tuple[EntityType, ...] = ("Group", "Project")
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
        *_types(
            "User",
            "User",
            user_created=_says("User * created"),
            user_updated=_says("Changed *"),
            user_destroyed=_says("User destroyed"),
            user_blocked=_says("User blocked"),
            user_unblocked=_says("User unblocked"),
            user_email_address_updated=_says("Changed email address from * to *", *CHANGE),
            password_reset_requested=_says("Ask for password reset"),
            user_password_updated=_says("Changed the password"),
            user_admin_status_updated=_says("Changed admin status from * to *", *CHANGE),
            static_object_token_rotated=_says("Static object token rotated"),
            personal_access_token_created=_says("Created personal access token with id *"),
            personal_access_token_revoked=_says("Revoked personal access token with id *"),
            authenticated_with_password=_says("Signed in with STANDARD authentication", "with"),
        ),
        *_types(
            "User",
            "Email",
            email_created=_says("Added email address"),
            email_confirmed=_says("Confirmed email address"),
            email_destroyed=_says("Removed email address"),
        ),
        *_types(
            ("User", _INSTANCE),
            "User",
            login_failed_with_standard_authentication=_says(
                "Failed to login with STANDARD authentication", "failed_login"
            ),
        ),
        *_types(
            "Group",
            "Group",
            group_created=_says("Added group", "add"),
            group_name_updated=_says(_CHANGED, *CHANGE),
            group_path_updated=_says(_CHANGED, *CHANGE),
            group_visibility_level_updated=_says(_CHANGED, *CHANGE),
            group_destroyed=_says("Removed group", "remove"),
        ),
        *_types(
            "Project",
            "Project",
            project_created=_says("Added project", "add"),
            project_name_updated=_says(_CHANGED, *CHANGE),
            project_path_updated=_says(_CHANGED, *CHANGE),
            project_namespace_updated=_says(_CHANGED, *CHANGE),
            project_visibility_level_updated=_says(_CHANGED, *CHANGE),
            project_default_branch_updated=_says(_CHANGED, *CHANGE),
            project_archived=_says(_CHANGED, *CHANGE),
            project_unarchived=_says(_CHANGED, *CHANGE),
            project_feature_repository_access_level_updated=_says(_CHANGED, *CHANGE),
            project_feature_builds_access_level_updated=_says(_CHANGED, *CHANGE),
            project_only_allow_merge_if_all_status_checks_passed_updated=_says(_CHANGED, *CHANGE),
            project_only_allow_merge_if_pipeline_succeeds_updated=_says(_CHANGED, *CHANGE),
            project_ci_pipeline_variables_minimum_override_role_updated=_says(_CHANGED, *CHANGE),
            project_merge_method_updated=_says(_CHANGED, *CHANGE),
            squash_option_updated=_says(_CHANGED, *CHANGE),
            project_only_allow_merge_if_all_discussions_are_resolved_updated=_says(_CHANGED, *CHANGE),
            project_destroyed=_says("Removed project", "remove"),
            secure_ci_job_token_inbound_enabled=_says("Secure ci_job_token was enabled for inbound"),
            secure_ci_job_token_inbound_disabled=_says("Secure ci_job_token was disabled for inbound"),
            secure_ci_job_token_project_added=_says(
                "Project * was added to inbound list of allowed projects for *"
            ),
            secure_ci_job_token_project_removed=_says(
                "Project * was removed from inbound list of allowed projects for *"
            ),
        ),
        *_types(
            "Project",
            "Group",
            secure_ci_job_token_group_added=_says("Group * was added to list of allowed groups for *"),
            secure_ci_job_token_group_removed=_says("Group * was removed from list of allowed groups for *"),
        ),
        *_types(
            "Project",
            "User",
            project_access_token_created=_says(
                "Created project access token with token_id: * with scopes: * and access level *"
            ),
            project_access_token_deleted=_says("Revoked project access token with token_id: *"),
        ),
        *_types(
            "Group",
            "User",
            group_access_token_created=_says(
                "Created group access token with token_id: * with scopes: * and access level *"
            ),
            group_access_token_deleted=_says("Revoked group access token with token_id: *"),
        ),
        *_types(
            _SOURCES,
            "User",
            member_created=_says(("Membership created", "Invitation created"), "add", "expires_at", *_MEMBER),
            member_updated=_says(
                ("Membership updated", "Invitation updated"), *CHANGE, "expiry_from", "expiry_to", *_MEMBER
            ),
            member_destroyed=_says(
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
        *_types(
            "Project",
            "ProtectedBranch",
            protected_branch_created=_says("Added protected branch with *", *_BRANCH),
            protected_branch_updated=_says(_CHANGED, *CHANGE),
            protected_branch_removed=_says("Unprotected branch", *_BRANCH),
        ),
        *_types(
            "Project",
            "ProtectedTag",
            protected_tag_created=_says("Added protected tag with *", "create_access_levels"),
            protected_tag_deleted=_says("Unprotected tag", "create_access_levels"),
        ),
        *_types(
            "Project",
            "Release",
            release_created=_says("Created release *"),
            release_updated=_says("Updated release *"),
            release_deleted_audit_event=_says("Deleted release *"),
        ),
        *_types(
            "Project",
            "ExternalStatusCheck",
            create_status_check=_says("Added * status check with *"),
            external_status_check_name_updated=_says("Changed name from * to *", *CHANGE),
            external_status_check_url_updated=_says("Changed external url from * to *", *CHANGE),
            external_status_check_secret_updated=_says("Changed shared secret of * status check", "change"),
            update_status_check=_says(
                (
                    "Added * to * status check",
                    "Added * and removed all other branches from status check",
                    "Removed * from * status check",
                    "Resumed * status check",
                )
            ),
            delete_status_check=_says("Removed * status check"),
            status_check_delivery_redelivered=_says("Redelivered to * status check", "delivery_id"),
            external_status_check_paused=_says("Paused * status check: *"),
        ),
        *_types(
            "Project",
            "MergeRequest",
            status_check_response_update=_says("Updated response for status check * to *", *_CHECK_ANSWER),
            delete_merge_request=_says("Removed merge request *", "remove"),
        ),
        *_types(
            "Project",
            "RemoteMirror",
            remote_mirror_created=_says("Added push mirror", "add"),
            remote_mirror_updated=_says("Changed * of push mirror*", *CHANGE),
            remote_mirror_deleted=_says("Removed push mirror", "remove"),
            remote_mirror_update_failed=_says("Push mirror failed", "reason"),
        ),
        *_types(
            ("Project", "Group", _INSTANCE),
            "Ci::Runner",
            runner_registered=_says("Added runner", "runner_type"),
            runner_updated=_says("Changed the runner", *CHANGE),
            runner_token_reset=_says("Replaced the runner's token"),
            runner_unregistered=_says("Removed runner", "runner_type"),
            runner_assigned_to_project=_says("Gave the runner a further project", "project_id"),
            runner_unassigned_from_project=_says("Took a project from the runner", "project_id"),
        ),
        *_types(
            ("Project", "Group", _INSTANCE),
            "RunnerRegistrationToken",
            runner_registration_token_reset=_says("Replaced the registration token of runners"),
        ),
        *_types(
            "Project",
            "Clusters::Agent",
            cluster_agent_created=_says("Created cluster agent '*' with id *", "add"),
            cluster_agent_deleted=_says("Deleted cluster agent '*' with id *", "remove"),
        ),
        *_types(
            "Project",
            "Ci::Variable",
            ci_variable_created=_says("Added ci variable", "add"),
            ci_variable_updated=_says("Changed *", *CHANGE),
            ci_variable_deleted=_says("Removed ci variable", "remove"),
        ),
        *_types(
            "Group",
            "Ci::GroupVariable",
            ci_group_variable_created=_says("Added ci variable", "add"),
            ci_group_variable_updated=_says("Changed *", *CHANGE),
            ci_group_variable_deleted=_says("Removed ci variable", "remove"),
        ),
        *_types(
            _INSTANCE,
            "Ci::InstanceVariable",
            ci_instance_variable_created=_says("Added ci variable", "add"),
            ci_instance_variable_updated=_says("Changed *", *CHANGE),
            ci_instance_variable_deleted=_says("Removed ci variable", "remove"),
        ),
        *_types(
            "Project",
            "Job",
            job_erased=_says("Erased the log and the artifacts of job *", "pipeline_id"),
            job_artifacts_deleted=_says("Deleted the artifacts of job *", "artifacts"),
        ),
        *_types(
            "Project",
            "Ci::Trigger",
            pipeline_trigger_created=_says("Added pipeline trigger with id *"),
            pipeline_trigger_updated=_says("Changed pipeline trigger with id *", *CHANGE),
            pipeline_trigger_destroyed=_says("Removed pipeline trigger with id *"),
        ),
        *_types(
            "Project",
            "Ci::PipelineSchedule",
            pipeline_schedule_created=_says("Added pipeline schedule with id *"),
            pipeline_schedule_updated=_says("Changed pipeline schedule with id *", *CHANGE),
            pipeline_schedule_destroyed=_says("Removed pipeline schedule with id *"),
        ),
        *_types(
            "Project", "Project", project_artifacts_deleted=_says("Deleted the artifacts of the project")
        ),
        *_types("Project", "Ci::Pipeline", destroy_pipeline=_says("Deleted pipeline", "remove")),
        *_types(_INSTANCE, "ApplicationSetting", application_setting_updated=_says("Changed *", *CHANGE)),
        *_types(
            _INSTANCE,
            "MemberRole",
            member_role_created=_says("Created custom role *"),
            member_role_deleted=_says("Deleted custom role *"),
        ),
        *_types(
            _INSTANCE,
            "AuditEvents",
            audit_events_removed=_says("Removed * exported audit events", "before", "events", "sha256"),
        ),
        *_types(_INSTANCE, "Job", job_data_removed=_says("Removed * jobs*", "before", "jobs")),
    ]
)
