"""Every change that the service makes for a caller, and the types of the audit events that it writes (decision D7)."""

import re
from collections.abc import AsyncIterator
from typing import Any

import attrs

from tests.api_server.audit.things import Things
from tests.support.forge import Client


@attrs.frozen
class Change:
    """A request, in whose path and body `{names}` stand for things; `by` is one too, who calls in root's place.

    `events` are the types of exactly those events that it writes, once each time.
    """

    request: str
    events: tuple[str, ...] = attrs.field(converter=lambda names: tuple(sorted(names.split())))
    body: dict[str, Any] = attrs.Factory(dict)
    case: str = ""
    by: str = ""

    def __str__(self) -> str:
        return f"{self.request}: {self.case}" if self.case else self.request

    async def made(self, things: Things) -> AsyncIterator[None]:
        """Yields once, when all is there and only the request itself has not been made."""
        client: Client = await things.get(self.by) if self.by else things.forge.root
        method, _, path = (await things.fill(self.request)).partition(" ")
        body = await things.fill(self.body)
        yield
        answer = await client.request(method, path, json=body)
        assert answer.status in (200, 201, 202, 204), answer


def shape(route: str) -> str:
    """A route or a request, without the names of its parameters."""
    return re.sub(r"{[^{}]*(?:{[^{}]*}[^{}]*)?}", "{}", route)


_TOKEN = {"name": "n", "scopes": ["api"]}
PEOPLE = [
    Change(
        "POST /user/personal_access_tokens",
        "personal_access_token_created",
        {"name": "n", "scopes": ["self_rotate"]},
        by="caller",
    ),
    *(
        each
        for source in ("group", "project")
        for tokens, made, gone in [
            (
                f"/{source}s/{{{source}}}/access_tokens",
                f"{source}_access_token_created",
                f"{source}_access_token_deleted",
            )
        ]
        for each in [
            Change(f"POST {tokens}", f"{made} member_created user_created", _TOKEN),
            Change(
                f"DELETE {tokens}/{{{source}_access_token}}",
                f"{gone} member_destroyed user_destroyed",
            ),
            Change(f"POST {tokens}/{{{source}_access_token}}/rotate", f"{made} {gone}"),
            Change(f"POST {tokens}/self/rotate", f"{made} {gone}", by=f"{source}_bot"),
        ]
    ),
]


_SCHEDULES = "/projects/{project}/pipeline_schedules"
_SCHEDULE = f"{_SCHEDULES}/{{schedule}}"

PIPELINES = [
    Change("POST /projects/{project}/triggers", "pipeline_trigger_created", {"description": "nightly"}),
    Change("PUT /projects/{project}/triggers/{trigger}", "pipeline_trigger_updated", {"description": "new"}),
    Change("DELETE /projects/{project}/triggers/{trigger}", "pipeline_trigger_destroyed"),
    Change(
        f"POST {_SCHEDULES}",
        "pipeline_schedule_created",
        {"description": "nightly", "ref": "main", "cron": "0 4 * * *"},
    ),
    Change(
        f"PUT {_SCHEDULE}",
        "pipeline_schedule_updated pipeline_schedule_updated",
        {"cron": "1 * * * *", "active": False},
    ),
    Change(f"POST {_SCHEDULE}/take_ownership", "pipeline_schedule_updated", by="maintainer"),
    Change(f"DELETE {_SCHEDULE}", "pipeline_schedule_destroyed"),
    Change(f"POST {_SCHEDULE}/variables", "pipeline_schedule_updated", {"key": "KEY", "value": "x"}),
    Change(f"PUT {_SCHEDULE}/variables/{{schedule_variable}}", "pipeline_schedule_updated", {"value": "y"}),
    Change(f"DELETE {_SCHEDULE}/variables/{{schedule_variable}}", "pipeline_schedule_updated"),
]


_CREATED, _REVOKED = "personal_access_token_created", "personal_access_token_revoked"
_SETTING = "application_setting_updated"

ACCOUNTS = [
    Change(
        "POST /users",
        "user_created",
        {"username": "{new}", "name": "n", "email": "{new}@example.org", "password": "long enough"},
    ),
    Change("PUT /users/{user}", "user_updated", {"name": "another", "bio": "new"}, "profile"),
    Change("PUT /users/{user}", "user_updated", {"username": "{new}"}, "username"),
    Change("PUT /users/{user}", "user_email_address_updated", {"email": "{new}@example.org"}, "address"),
    Change("PUT /users/{user}", "user_password_updated", {"password": "even longer"}, "password"),
    Change("PUT /users/{user}", "user_admin_status_updated", {"admin": True}, "administrator"),
    Change(
        "PUT /users/{user}",
        "user_updated user_email_address_updated user_password_updated user_admin_status_updated",
        {"name": "n", "email": "{new}@example.org", "password": "even longer", "admin": True},
        "all at once",
    ),
    Change("PUT /users/{user}", "", {"email": "{address}", "admin": False}, "nothing new"),
    Change("POST /users/{user}/block", "user_blocked"),
    Change("POST /users/{blocked}/block", "", case="again"),
    Change("POST /users/{blocked}/unblock", "user_unblocked"),
    Change("POST /users/{user}/unblock", "", case="who was not blocked"),
    Change("DELETE /users/{user}", "user_destroyed"),
    Change("POST /user/static_object_token/rotate", "static_object_token_rotated", by="caller"),
    Change("POST /user/emails", "email_created", {"email": "{new}@example.org"}, by="caller"),
    Change("DELETE /user/emails/{email}", "email_destroyed", by="caller"),
    Change("POST /users/{user}/emails", "email_created", {"email": "{new}@example.org"}),
    Change(
        "POST /users/{user}/emails",
        "email_created",
        {"email": "{new}@example.org", "skip_confirmation": True},
        "confirmed at once",
    ),
    Change("DELETE /users/{user}/emails/{email}", "email_destroyed"),
    Change("POST /users/{user}/personal_access_tokens", _CREATED, {"name": "n", "scopes": ["api"]}),
    Change("DELETE /personal_access_tokens/{token}", _REVOKED),
    Change("DELETE /personal_access_tokens/{revoked}", "", case="again"),
    Change("DELETE /personal_access_tokens/self", _REVOKED, by="caller"),
    Change("POST /personal_access_tokens/{token}/rotate", f"{_CREATED} {_REVOKED}"),
    Change("POST /personal_access_tokens/self/rotate", f"{_CREATED} {_REVOKED}", by="caller"),
    Change("POST /member_roles", "member_role_created", {"name": "{new}", "base_access_level": 20}),
    Change("DELETE /member_roles/{role}", "member_role_deleted"),
    Change(
        "PUT /application/settings",
        f"{_SETTING} {_SETTING}",
        {"default_projects_limit": 7, "outbound_local_requests_whitelist": ["192.0.2.1"]},
        "two settings",
    ),
    Change("PUT /application/settings", "", {"allow_local_requests_from_system_hooks": True}, "as it was"),
]

_SCOPE = "/projects/{project}/job_token_scope"
_ACCESS = {"repository_access_level": "private", "builds_access_level": "disabled"}

NAMESPACES = [
    Change("POST /groups", "group_created", {"name": "n", "path": "{new}"}),
    Change("PUT /groups/{group}", "group_name_updated", {"name": "another"}, "name"),
    Change("PUT /groups/{group}", "group_path_updated", {"path": "{new}"}, "path"),
    Change("PUT /groups/{group}", "group_visibility_level_updated", {"visibility": "private"}, "visibility"),
    Change("DELETE /groups/{group}", "group_destroyed"),
    Change("POST /projects", "project_created", {"path": "{new}"}),
    Change("PUT /projects/{project}", "project_name_updated", {"name": "another"}, "name"),
    Change("PUT /projects/{project}", "project_path_updated", {"path": "{new}"}, "path"),
    Change(
        "PUT /projects/{project}",
        "project_visibility_level_updated",
        {"visibility": "public"},
        "visibility",
    ),
    Change(
        "PUT /projects/{ci}",
        "project_default_branch_updated",
        {"default_branch": "{topic}"},
        "default branch",
    ),
    Change(
        "PUT /projects/{project}",
        "project_feature_repository_access_level_updated project_feature_builds_access_level_updated",
        _ACCESS,
        "who sees what",
    ),
    Change(
        "PUT /projects/{project}",
        "project_only_allow_merge_if_all_status_checks_passed_updated"
        " project_only_allow_merge_if_pipeline_succeeds_updated"
        " project_only_allow_merge_if_all_discussions_are_resolved_updated"
        " project_merge_method_updated squash_option_updated",
        {
            "only_allow_merge_if_all_status_checks_passed": True,
            "only_allow_merge_if_pipeline_succeeds": True,
            "only_allow_merge_if_all_discussions_are_resolved": True,
            "merge_method": "ff",
            "squash_option": "always",
        },
        "when and how to merge",
    ),
    Change(
        "PUT /projects/{project}",
        "project_ci_pipeline_variables_minimum_override_role_updated",
        {"restrict_user_defined_variables": True},
        "who gives variables",
    ),
    Change(
        "PUT /projects/{project}",
        "project_ci_id_token_sub_claim_components_updated",
        {"ci_id_token_sub_claim_components": ["project_path"]},
        "whom its jobs say that they are",
    ),
    Change("PUT /projects/{project}", "", {"visibility": "private"}, "as it was"),
    Change("POST /projects/{project}/archive", "project_archived"),
    Change("POST /projects/{archived}/unarchive", "project_unarchived"),
    Change("PUT /projects/{project}/transfer", "project_namespace_updated", {"namespace": "{group}"}),
    Change("DELETE /projects/{project}", "project_destroyed"),
    Change(f"PATCH {_SCOPE}", "secure_ci_job_token_inbound_disabled", {"enabled": False}, "for all"),
    Change(f"PATCH {_SCOPE}", "", {"enabled": True}, "as it was"),
    Change(
        "PATCH /projects/{open_to_jobs}/job_token_scope",
        "secure_ci_job_token_inbound_enabled",
        {"enabled": True},
        "for the list",
    ),
    Change(
        f"POST {_SCOPE}/allowlist",
        "secure_ci_job_token_project_added",
        {"target_project_id": "{other_project}"},
    ),
    Change(f"DELETE {_SCOPE}/allowlist/{{allowed_project}}", "secure_ci_job_token_project_removed"),
    Change(
        f"POST {_SCOPE}/groups_allowlist", "secure_ci_job_token_group_added", {"target_group_id": "{group}"}
    ),
    Change(f"DELETE {_SCOPE}/groups_allowlist/{{allowed_group}}", "secure_ci_job_token_group_removed"),
]

MEMBERS = [
    change
    for kind in ("group", "project")
    for members, invitations in [(f"/{kind}s/{{{kind}}}/members", f"/{kind}s/{{{kind}}}/invitations")]
    for change in [
        Change(f"POST {members}", "member_created", {"user_id": "{user}", "access_level": 30}),
        Change(
            f"POST {members}",
            "member_created member_destroyed",
            {"user_id": f"{{{kind}_member_of_yesterday}}", "access_level": 30},
            "whose membership has expired",
        ),
        Change(
            f"POST {members}",
            "member_created",
            {"user_id": "{user}", "access_level": 30, "expires_at": "2099-01-01"},
            "until a day",
        ),
        Change(f"PUT {members}/{{{kind}_member}}", "member_updated", {"access_level": 40}),
        Change(
            f"PUT {members}/{{{kind}_member}}",
            "member_updated",
            {"access_level": 30, "expires_at": "2099-01-01"},
            "until a day",
        ),
        Change(f"PUT {members}/{{{kind}_member}}", "", {"access_level": 30}, "as it was"),
        Change(f"DELETE {members}/{{{kind}_member}}", "member_destroyed"),
        Change(
            f"POST {invitations}",
            "member_created member_created",
            {"email": ["{new}@example.org", "{address}"], "access_level": 30},
            "somebody unknown and somebody known",
        ),
        Change(
            f"POST {invitations}",
            "",
            {"email": f"{{invited_to_{kind}}}", "access_level": 30},
            "who was invited before",
        ),
        Change(f"PUT {invitations}/{{invited_to_{kind}}}", "member_updated", {"access_level": 40}),
        Change(f"PUT {invitations}/{{invited_to_{kind}}}", "", {"access_level": 30}, "as it was"),
        Change(f"DELETE {invitations}/{{invited_to_{kind}}}", "member_destroyed"),
    ]
]

_VARIABLE = {"key": "KEY", "value": "x"}
_RESET = "runner_registration_token_reset"
_CHECKS, _CHECK = (
    "/projects/{project}/external_status_checks",
    {"name": "QA", "external_url": "http://203.0.113.7"},
)
_REQUEST = "/projects/{repository}/merge_requests/{merge_request}"

PROJECTS = [
    Change("POST /projects/{project}/protected_branches", "protected_branch_created", {"name": "new"}),
    Change(
        "PATCH /projects/{project}/protected_branches/{branch}",
        "protected_branch_updated protected_branch_updated",
        {"push_access_level": 0, "allow_force_push": True},
    ),
    Change("DELETE /projects/{project}/protected_branches/{branch}", "protected_branch_removed"),
    Change("POST /projects/{project}/protected_tags", "protected_tag_created", {"name": "v*"}),
    Change("DELETE /projects/{project}/protected_tags/{protected_tag}", "protected_tag_deleted"),
    Change("POST /projects/{repository}/releases", "release_created", {"tag_name": "v1", "ref": "main"}),
    Change("PUT /projects/{repository}/releases/{release}", "release_updated", {"name": "another"}, "name"),
    Change("PUT /projects/{repository}/releases/{release}", "", {"description": None}, "as it was"),
    Change("DELETE /projects/{repository}/releases/{release}", "release_deleted_audit_event"),
    Change(
        "POST /projects/{project}/remote_mirrors",
        "remote_mirror_created",
        {"url": "https://203.0.113.7/a.git"},
    ),
    Change(
        "PUT /projects/{project}/remote_mirrors/{mirror}",
        "remote_mirror_updated",
        {"keep_divergent_refs": True},
    ),
    Change("DELETE /projects/{project}/remote_mirrors/{mirror}", "remote_mirror_deleted"),
    Change("POST /projects/{project}/cluster_agents", "cluster_agent_created", {"name": "agent"}),
    Change("DELETE /projects/{project}/cluster_agents/{agent}", "cluster_agent_deleted"),
    Change("POST /groups/{group}/variables", "ci_group_variable_created", _VARIABLE),
    Change(
        "PUT /groups/{group}/variables/{group_variable}", "ci_group_variable_updated", {"protected": True}
    ),
    Change("DELETE /groups/{group}/variables/{group_variable}", "ci_group_variable_deleted"),
    Change("POST /projects/{project}/variables", "ci_variable_created", _VARIABLE),
    Change("PUT /projects/{project}/variables/{variable}", "ci_variable_updated", {"protected": True}),
    Change(
        "PUT /projects/{project}/variables/{variable}",
        "ci_variable_updated ci_variable_updated",
        {"value": "y", "environment_scope": "review/*"},
        "its value and its scope",
    ),
    Change("DELETE /projects/{project}/variables/{variable}", "ci_variable_deleted"),
    Change("POST /admin/ci/variables", "ci_instance_variable_created", {"key": "EVERYWHERE", "value": "x"}),
    Change(
        "PUT /admin/ci/variables/{instance_variable}", "ci_instance_variable_updated", {"protected": True}
    ),
    Change("DELETE /admin/ci/variables/{instance_variable}", "ci_instance_variable_deleted"),
]

STATUS_CHECKS = [
    Change(f"POST {_CHECKS}", "create_status_check", _CHECK, "for all branches"),
    Change(
        f"POST {_CHECKS}",
        "create_status_check",
        _CHECK | {"protected_branch_ids": ["{branch_id}"]},
        "for one",
    ),
    Change(f"PUT {_CHECKS}/{{check}}", "external_status_check_name_updated", {"name": "Quality"}, "name"),
    Change(
        f"PUT {_CHECKS}/{{check}}",
        "external_status_check_url_updated",
        {"external_url": "http://203.0.113.7/other"},
        "URL",
    ),
    Change(
        f"PUT {_CHECKS}/{{check}}", "external_status_check_secret_updated", {"shared_secret": "two"}, "secret"
    ),
    Change(
        f"PUT {_CHECKS}/{{check}}",
        "update_status_check",
        {"protected_branch_ids": ["{branch_id}"]},
        "one branch",
    ),
    Change(
        f"PUT {_CHECKS}/{{scoped_check}}", "update_status_check", {"protected_branch_ids": []}, "all branches"
    ),
    Change(
        f"PUT {_CHECKS}/{{scoped_check}}",
        "update_status_check update_status_check",
        {"protected_branch_ids": ["{other_branch_id}"]},
        "another branch",
    ),
    Change(f"DELETE {_CHECKS}/{{check}}", "delete_status_check"),
    Change(
        "POST /projects/{repository}/external_status_checks/{asked}/deliveries/{delivery}/redeliver",
        "status_check_delivery_redelivered",
    ),
    Change(
        f"POST {_REQUEST}/status_check_responses",
        "status_check_response_update",
        {"sha": "{head}", "external_status_check_id": "{asked}", "status": "passed"},
    ),
    Change(f"POST {_REQUEST}/status_checks/{{failed}}/retry", ""),
    Change(f"DELETE {_REQUEST}", "delete_merge_request"),
]

RUNNERS = [
    Change("DELETE /projects/{ci}/pipelines/{pipeline}", "destroy_pipeline"),
    Change("POST /projects/{ci}/jobs/{finished_job}/erase", "job_erased"),
    Change("DELETE /projects/{ci}/jobs/{job_with_artifacts}/artifacts", "job_artifacts_deleted"),
    Change("DELETE /projects/{ci}/artifacts", "project_artifacts_deleted"),
    Change("POST /runners", "runner_registered", {"token": "{registration}"}, by="anonymous"),
    Change(
        "POST /user/runners", "runner_registered", {"runner_type": "project_type", "project_id": "{project}"}
    ),
    Change("PUT /runners/{runner}", "runner_updated", {"description": "another"}, "one setting"),
    Change(
        "PUT /runners/{runner}", "runner_updated runner_updated", {"description": "x", "locked": True}, "two"
    ),
    Change("POST /runners/{runner}/reset_authentication_token", "runner_token_reset"),
    Change(
        "POST /runners/reset_authentication_token",
        "runner_token_reset",
        {"token": "{runner_token}"},
        by="anonymous",
    ),
    Change("DELETE /runners/{runner}", "runner_unregistered"),
    Change("DELETE /runners", "runner_unregistered", {"token": "{runner_token}"}, by="anonymous"),
    Change("POST /projects/{other_project}/runners", "runner_assigned_to_project", {"runner_id": "{runner}"}),
    Change("DELETE /projects/{other_project}/runners/{assigned_runner}", "runner_unassigned_from_project"),
    Change("POST /runners/reset_registration_token", _RESET),
    Change("POST /groups/{group}/runners/reset_registration_token", _RESET),
    Change("POST /projects/{project}/runners/reset_registration_token", _RESET),
]

CHANGES = [*ACCOUNTS, *PEOPLE, *NAMESPACES, *MEMBERS, *PROJECTS, *PIPELINES, *STATUS_CHECKS, *RUNNERS]
