"""The types of audit events: their scopes, targets, messages and permitted details.

The names are GitLab's where GitLab has the event (decision D7). `audit_trail.record` refuses other types.
"""

import functools
from collections.abc import Iterator, Mapping
from string import Formatter
from typing import Literal

import attrs

EntityType = Literal["User", "Group", "Project", "Service::Audit::InstanceScope"]

#: Details of an event that records a change of one value.
CHANGE = ("change", "from", "to")
_CHANGED = "Changed {change} from {from} to {to}"


def _names_in(message: str) -> frozenset[str]:
    return frozenset(name for _, name, _, _ in Formatter().parse(message) if name)


@attrs.frozen
class EventType:
    """A type of audit event. `scopes` are the kinds of entity that an event can belong to; `target` is the
    kind of thing that it is about.

    The message is the first of `messages` unless the caller gives another; the others show what a given
    message looks like. In braces stand details, values that only the message names, `{id}` and `{target}` of
    the target, and `{entity}`, the path of the entity. `details` are the keys beyond those that every event
    has; those in `always` have the same value in every event.
    """

    scopes: frozenset[EntityType]
    target: str
    messages: tuple[str, ...]
    details: frozenset[str]
    always: Mapping[str, str]

    @functools.cached_property
    def takes(self) -> frozenset[str]:
        """The names of the values that an event of this type is recorded with."""
        return self.details | _names_in(self.messages[0]) - {"id", "target", "entity"}


_Texts = tuple[tuple[str, ...], frozenset[str], dict[str, str]]


def says(messages: str | tuple[str, ...], *details: str, **always: str) -> _Texts:
    return (messages,) if isinstance(messages, str) else messages, frozenset(details), always


def types(
    scopes: tuple[EntityType, ...] | EntityType, target: str, **names: _Texts
) -> Iterator[tuple[str, EventType]]:
    scope_set = frozenset((scopes,) if isinstance(scopes, str) else scopes)
    for name, parts in names.items():
        yield name, EventType(scope_set, target, *parts)


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
        cluster_agent_created=says("Created cluster agent '{target}' with id {id}", add="cluster_agent"),
        cluster_agent_deleted=says("Deleted cluster agent '{target}' with id {id}", remove="cluster_agent"),
    ),
    *types(
        "Project",
        "Ci::Variable",
        ci_variable_created=says("Added ci variable", add="ci_variable"),
        ci_variable_updated=says((_CHANGED, "Changed value"), *CHANGE),
        ci_variable_deleted=says("Removed ci variable", remove="ci_variable"),
    ),
    *types(
        "Group",
        "Ci::GroupVariable",
        ci_group_variable_created=says("Added ci variable", add="ci_variable"),
        ci_group_variable_updated=says((_CHANGED, "Changed value"), *CHANGE),
        ci_group_variable_deleted=says("Removed ci variable", remove="ci_variable"),
    ),
    *types(
        INSTANCE,
        "Ci::InstanceVariable",
        ci_instance_variable_created=says("Added ci variable", add="ci_variable"),
        ci_instance_variable_updated=says((_CHANGED, "Changed value"), *CHANGE),
        ci_instance_variable_deleted=says("Removed ci variable", remove="ci_variable"),
    ),
    *types(
        INSTANCE,
        "Ci::IdentityKey",
        identity_key_rotated=says(
            (
                "Made {target} the next key for identity tokens",
                "Made {target} the key for identity tokens and revoked all others",
            )
        ),
    ),
    *types(
        "Project",
        "Job",
        job_erased=says("Erased the log and the artifacts of job {id}", "pipeline_id"),
        job_artifacts_deleted=says("Deleted the artifacts of job {id}", "artifacts"),
    ),
    *types(
        "Project",
        "Ci::Trigger",
        pipeline_trigger_created=says("Added pipeline trigger with id {id}"),
        pipeline_trigger_updated=says("Changed pipeline trigger with id {id}", *CHANGE),
        pipeline_trigger_destroyed=says("Removed pipeline trigger with id {id}"),
    ),
    *types(
        "Project",
        "Ci::PipelineSchedule",
        pipeline_schedule_created=says("Added pipeline schedule with id {id}"),
        pipeline_schedule_updated=says("Changed pipeline schedule with id {id}", *CHANGE),
        pipeline_schedule_destroyed=says("Removed pipeline schedule with id {id}"),
    ),
    *types("Project", "Project", project_artifacts_deleted=says("Deleted the artifacts of the project")),
    *types("Project", "Ci::Pipeline", destroy_pipeline=says("Deleted pipeline", remove="pipeline")),
]


# Like GitLab, record an invitation as the membership that it will become.
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
            user_created=says("User {target} created"),
            user_updated=says("Changed {names}"),
            user_destroyed=says("User destroyed"),
            user_blocked=says("User blocked"),
            user_unblocked=says("User unblocked"),
            user_email_address_updated=says(_CHANGED, *CHANGE),
            password_reset_requested=says("Ask for password reset"),
            user_password_updated=says("Changed the password"),
            user_admin_status_updated=says(_CHANGED, *CHANGE),
            static_object_token_rotated=says("Static object token rotated"),
            personal_access_token_created=says("Created personal access token with id {token_id}"),
            personal_access_token_revoked=says("Revoked personal access token with id {token_id}"),
            authenticated_with_password=says(
                "Signed in with STANDARD authentication", **{"with": "STANDARD"}
            ),
            authenticated_with_link=says("Signed in with LINK authentication", **{"with": "LINK"}),
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
                "Failed to login with STANDARD authentication", failed_login="STANDARD"
            ),
        ),
        *types(
            "Group",
            "Group",
            group_created=says("Added group", add="group"),
            group_name_updated=says(_CHANGED, *CHANGE),
            group_path_updated=says(_CHANGED, *CHANGE),
            group_visibility_level_updated=says(_CHANGED, *CHANGE),
            group_destroyed=says("Removed group", remove="group"),
        ),
        *types(
            "Project",
            "Project",
            project_created=says("Added project", add="project"),
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
            project_ci_id_token_sub_claim_components_updated=says(_CHANGED, *CHANGE),
            project_merge_method_updated=says(_CHANGED, *CHANGE),
            squash_option_updated=says(_CHANGED, *CHANGE),
            project_only_allow_merge_if_all_discussions_are_resolved_updated=says(_CHANGED, *CHANGE),
            project_destroyed=says("Removed project", remove="project"),
            secure_ci_job_token_inbound_enabled=says("Secure ci_job_token was enabled for inbound"),
            secure_ci_job_token_inbound_disabled=says("Secure ci_job_token was disabled for inbound"),
            secure_ci_job_token_project_added=says(
                "Project {target} was added to inbound list of allowed projects for {entity}"
            ),
            secure_ci_job_token_project_removed=says(
                "Project {target} was removed from inbound list of allowed projects for {entity}"
            ),
        ),
        *types(
            "Project",
            "Group",
            secure_ci_job_token_group_added=says(
                "Group {target} was added to list of allowed groups for {entity}"
            ),
            secure_ci_job_token_group_removed=says(
                "Group {target} was removed from list of allowed groups for {entity}"
            ),
        ),
        *types(
            "Project",
            "User",
            project_access_token_created=says(
                "Created project access token with token_id: {token_id} with scopes: {scopes} and access level {level}"
            ),
            project_access_token_deleted=says("Revoked project access token with token_id: {token_id}"),
        ),
        *types(
            "Group",
            "User",
            group_access_token_created=says(
                "Created group access token with token_id: {token_id} with scopes: {scopes} and access level {level}"
            ),
            group_access_token_deleted=says("Revoked group access token with token_id: {token_id}"),
        ),
        *types(
            SOURCES,
            "User",
            member_created=says(
                ("Membership created", "Invitation created"), "expires_at", *_MEMBER, add="user_access"
            ),
            member_updated=says(
                ("Membership updated", "Invitation updated"),
                "from",
                "to",
                "expiry_from",
                "expiry_to",
                *_MEMBER,
                change="access_level",
            ),
            member_destroyed=says(
                (
                    "Membership destroyed",
                    "Membership expired on {day}",
                    "Invitation destroyed",
                    "Invitation declined",
                    "Invitation {ended}",
                ),
                "reason",
                "system_event",
                *_MEMBER,
                remove="user_access",
            ),
        ),
        *types(
            "Project",
            "ProtectedBranch",
            protected_branch_created=says("Added protected branch with [{rules}]", *_BRANCH),
            protected_branch_updated=says(_CHANGED, *CHANGE),
            protected_branch_removed=says("Unprotected branch", *_BRANCH),
        ),
        *types(
            "Project",
            "ProtectedTag",
            protected_tag_created=says(
                "Added protected tag with [allowed to create: [{create_access_levels}]]",
                "create_access_levels",
            ),
            protected_tag_deleted=says("Unprotected tag", "create_access_levels"),
        ),
        *types(
            "Project",
            "Release",
            release_created=says("Created release {tag}"),
            release_updated=says("Updated release {tag}"),
            release_deleted_audit_event=says("Deleted release {tag}"),
        ),
        *types(
            "Project",
            "ExternalStatusCheck",
            create_status_check=says("Added {target} status check with {branches}"),
            external_status_check_name_updated=says(_CHANGED, *CHANGE),
            external_status_check_url_updated=says(_CHANGED, *CHANGE),
            external_status_check_secret_updated=says(
                "Changed shared secret of {target} status check", change="shared secret"
            ),
            update_status_check=says(
                (
                    "Resumed {target} status check",
                    "Added {branches} to {target} status check",
                    "Added {branches} to {target} status check and removed all other branches from status check",
                    "Removed {branch} from {target} status check",
                )
            ),
            delete_status_check=says("Removed {target} status check"),
            status_check_delivery_redelivered=says("Redelivered to {target} status check", "delivery_id"),
            external_status_check_paused=says("Paused {target} status check: {reason}"),
        ),
        *types(
            "Project",
            "MergeRequest",
            status_check_response_update=says(
                "Updated response for status check {external_status_check_name} to {status}", *_CHECK_ANSWER
            ),
            delete_merge_request=says("Removed merge request !{iid}"),
        ),
        *types(
            "Project",
            "RemoteMirror",
            remote_mirror_created=says("Added push mirror", add="mirror"),
            remote_mirror_updated=says(
                ("Changed {change} of push mirror from {from} to {to}", "Changed {change} of push mirror"),
                *CHANGE,
            ),
            remote_mirror_deleted=says("Removed push mirror", remove="mirror"),
            remote_mirror_update_failed=says("Push mirror failed", "reason"),
        ),
        *CI_EVENT_TYPES,
        *types(
            INSTANCE,
            "ApplicationSetting",
            application_setting_updated=says((_CHANGED, "Changed {change}"), *CHANGE),
        ),
        *types(
            INSTANCE,
            "MemberRole",
            member_role_created=says("Created custom role {target}"),
            member_role_deleted=says("Deleted custom role {target}"),
        ),
        *types(
            INSTANCE,
            "AuditEvents",
            audit_events_removed=says("Removed {events} exported audit events", "before", "events", "sha256"),
        ),
        *types(
            INSTANCE,
            "Job",
            job_data_removed=says("Removed the logs and artifacts of {jobs} jobs", "before", "jobs"),
        ),
    ]
)


def declared(event_type: str, entity_type: str, values: frozenset[str]) -> EventType:
    """Return the declaration of an event. Raise ValueError if no declaration allows the event."""
    declaration = EVENT_TYPES.get(event_type)
    if declaration is None:
        raise ValueError(f"{event_type} is no type of audit event; add it to audit_event_types.py")
    if entity_type not in declaration.scopes:
        raise ValueError(f"{event_type} does not belong to a {entity_type}")
    if unknown := values - declaration.takes:
        raise ValueError(f"{event_type} has no details {', '.join(sorted(unknown))}")
    return declaration
