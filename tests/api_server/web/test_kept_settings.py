"""What is written is what is read afterwards: every parameter of every route that changes something."""

import contextlib
import re
from collections.abc import Mapping
from typing import Any

import attrs
import pytest

from api_server.web.params import public_name
from api_server.web.routes import Role, Route
from tests.support.deviations import Deviations
from tests.support.forge import Forge, new_name
from tests.support.furnished import furnish
from tests.support.route_table import ROUTES, name_of, path_of, required

#: Changes of state, and what runners tell: no settings.
ACTIONS = {
    "PUT /projects/{id}/transfer",
    "PUT /projects/{id}/repository/files/{path}",
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/reset_approvals",
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/merge",
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/rebase",
    "PUT /jobs/{id}",
    "PATCH /jobs/{id}/trace",
}
#: What is never shown, and what chooses the thing that is changed.
NOT_SHOWN = {"filter", "password", "shared_secret", "static_objects_external_storage_auth_token"}


@attrs.frozen
class Shown:
    """What is read after `sent`, where it is not what was sent under its name: at `key`, dots leading inwards."""

    sent: Mapping[str, Any]
    key: str
    value: Any


VARIABLE = {
    "value": "12345678", "variable_type": "file", "protected": True, "masked": True, "raw": True,
    "environment_scope": "a", "description": "a",
}  # fmt: skip
MEMBER = {"access_level": 20, "expires_at": "2999-01-01"}
INVITATION = MEMBER | {
    "expires_at": Shown({"expires_at": "2999-01-01"}, "expires_at", "2999-01-01T00:00:00.000Z")
}
#: For each route and parameter a value that the thing does not have before, or what is read instead.
SAMPLES: dict[str, dict[str, Any]] = {
    "PUT /users/{id}": {
        "admin": Shown({"admin": True}, "is_admin", True),
        "external": True,
        "can_create_group": False,
        "projects_limit": 7,
        "bio": "a",
        "location": "a",
        "public_email": Shown({"public_email": ""}, "public_email", ""),
        "website_url": "https://example.org/a",
        "organization": "a",
        "job_title": "a",
        "email": Shown(
            {"email": "kept@example.org", "skip_reconfirmation": True}, "email", "kept@example.org"
        ),
        "username": new_name("kept"),
        "name": "Other",
    },
    "PUT /groups/{id}": {
        "name": "Other",
        "path": new_name("kept"),
        "description": "a",
        "visibility": "internal",
        "project_creation_level": "noone",
    },
    "PUT /projects/{id}": {
        "name": "Other",
        "path": new_name("kept"),
        "description": "a",
        "visibility": "internal",
        "default_branch": "feature",
        "ci_config_path": "other.yml",
        "public_jobs": False,
        "public_builds": Shown({"public_builds": True}, "public_jobs", True),
        "repository_access_level": "private",
        "jobs_enabled": Shown({"jobs_enabled": False}, "builds_access_level", "disabled"),
        "builds_access_level": "private",
        "only_allow_merge_if_pipeline_succeeds": True,
        "allow_merge_on_skipped_pipeline": True,
        "only_allow_merge_if_all_status_checks_passed": True,
        "restrict_user_defined_variables": True,
        "ci_pipeline_variables_minimum_override_role": "owner",
        "merge_method": "ff",
        "squash_option": "always",
        "only_allow_merge_if_all_discussions_are_resolved": True,
        "build_timeout": 7200,
        "remove_source_branch_after_merge": True,
        "ci_default_git_depth": 7,
        "build_git_strategy": "clone",
        "auto_cancel_pending_pipelines": "disabled",
        "ci_id_token_sub_claim_components": ["project_path", "ref"],
    },
    "PATCH /projects/{id}/job_token_scope": {"enabled": Shown({"enabled": False}, "inbound_enabled", False)},
    "PUT /projects/{id}/members/{user_id}": MEMBER,
    "PUT /groups/{id}/members/{user_id}": MEMBER,
    "PUT /projects/{id}/invitations/{email}": INVITATION,
    "PUT /groups/{id}/invitations/{email}": INVITATION,
    "PATCH /projects/{id}/protected_branches/{name}": {
        "push_access_level": Shown({"push_access_level": 0}, "push_access_levels.0.access_level", 0),
        "merge_access_level": Shown({"merge_access_level": 30}, "merge_access_levels.0.access_level", 30),
        "allowed_to_push": Shown(
            {"allowed_to_push": [{"access_level": 40}]}, "push_access_levels.0.access_level", 40
        ),
        "allowed_to_merge": Shown(
            {"allowed_to_merge": [{"access_level": 40}]}, "merge_access_levels.0.access_level", 40
        ),
        "allow_force_push": True,
        "code_owner_approval_required": Shown(
            {"code_owner_approval_required": False}, "code_owner_approval_required", False
        ),
    },
    "PUT /application/settings": {
        "static_objects_external_storage_url": Shown(
            {
                "static_objects_external_storage_url": "https://edge.example.org",
                "static_objects_external_storage_auth_token": "secret",
            },
            "static_objects_external_storage_url",
            "https://edge.example.org",
        ),
        "allow_local_requests_from_web_hooks_and_services": True,
        "allow_local_requests_from_system_hooks": False,
        "deny_all_requests_except_allowed": True,
        "outbound_local_requests_whitelist": ["example.org"],
        "default_projects_limit": 7,
        "throttle_authenticated_api_requests_per_period": 9_999,
        "throttle_authenticated_api_period_in_seconds": 60,
        "throttle_authenticated_api_enabled": True,
    },
    "PUT /projects/{id}/merge_requests/{merge_request_iid}": {
        "title": "Other",
        "description": "a",
        "labels": ["a"],
        "add_labels": Shown({"add_labels": "b"}, "labels", ["a", "b"]),
        "remove_labels": Shown({"remove_labels": "b"}, "labels", ["a"]),
        "remove_source_branch": Shown({"remove_source_branch": True}, "force_remove_source_branch", True),
        "squash": True,
        "assignee_id": Shown({"assignee_id": 1}, "assignee.id", 1),
        "assignee_ids": Shown({"assignee_ids": [1]}, "assignees.0.id", 1),
        "reviewer_ids": Shown({"reviewer_ids": [1]}, "reviewers.0.id", 1),
        "target_branch": "other",
        "state_event": Shown({"state_event": "close"}, "state", "closed"),
    },
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/notes/{note_id}": {"body": "Other"},
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/discussions/{discussion_id}": {
        "resolved": Shown({"resolved": True}, "notes.0.resolved", True)
    },
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/discussions/{discussion_id}/notes/{note_id}": {
        "body": Shown({"body": "Third"}, "body", "Third"),
        "resolved": Shown({"resolved": False}, "resolved", False),
    },
    "PUT /projects/{id}/external_status_checks/{check_id}": {
        "name": "Other",
        "external_url": "http://203.0.113.8",
        "protected_branch_ids": Shown({"protected_branch_ids": []}, "protected_branches", []),
        "paused": Shown({"paused": False}, "paused", False),
    },
    "PUT /projects/{id}/triggers/{trigger_id}": {"description": "Other"},
    "PUT /projects/{id}/pipeline_schedules/{pipeline_schedule_id}": {
        "description": "Other",
        "ref": Shown({"ref": "feature"}, "ref", "refs/heads/feature"),
        "cron": "1 2 3 4 *",
        "cron_timezone": "Berlin",
        "active": False,
        "inputs": [{"name": "a", "value": [1]}],
    },
    "PUT /projects/{id}/pipeline_schedules/{pipeline_schedule_id}/variables/{key}": {
        "value": "a",
        "variable_type": "file",
    },
    "PUT /groups/{id}/variables/{key}": VARIABLE,
    "PUT /projects/{id}/variables/{key}": VARIABLE,
    "PUT /admin/ci/variables/{key}": {
        name: value for name, value in VARIABLE.items() if name != "environment_scope"
    },
    "PUT /runners/{id}": {
        "description": "Other",
        "active": Shown({"active": False}, "active", False),
        "paused": False,
        "locked": True,
        "tag_list": ["a"],
        "run_untagged": False,
        "access_level": "ref_protected",
        "maximum_timeout": 7200,
        "maintenance_note": "a",
    },
    "PUT /projects/{id}/remote_mirrors/{mirror_id}": {
        "url": "ssh://git@203.0.113.8/a.git",
        "enabled": True,
        "only_protected_branches": True,
        "keep_divergent_refs": True,
        "mirror_branch_regex": Shown(
            {"mirror_branch_regex": "a.*", "only_protected_branches": False}, "mirror_branch_regex", "a.*"
        ),
        "auth_method": Shown({"auth_method": "password"}, "auth_method", "password"),
        "host_keys": Shown({"host_keys": []}, "host_keys", []),
    },
    "PUT /projects/{id}/releases/{tag_name}": {
        "name": "Other",
        "description": "a",
        "released_at": "2026-01-02T03:04:05.000Z",
    },
    "PUT /projects/{id}/releases/{tag_name}/assets/links/{link_id}": {
        "name": "Other",
        "url": "https://example.org/other",
        "filepath": Shown({"filepath": "/a"}, "direct_asset_url", "/a"),
        "direct_asset_path": Shown({"direct_asset_path": "/b"}, "direct_asset_url", "/b"),
        "link_type": "image",
    },
}
SETTINGS = [route for route in ROUTES if route.method in ("PUT", "PATCH") and name_of(route) not in ACTIONS]


def _parameters(route: Route) -> set[str]:
    declared = {public_name(field) for field in attrs.fields(route.parameters)} if route.parameters else set()
    return declared - set(re.findall(r"{(\w+)", route.path)) - NOT_SHOWN


def test_every_parameter_has_a_sample() -> None:
    assert {name_of(route): set(SAMPLES[name_of(route)]) for route in SETTINGS} == {
        name_of(route): _parameters(route) for route in SETTINGS
    }


@pytest.fixture(scope="module")
async def paths(forge: Forge) -> dict[str, str]:
    """Where there is one of everything."""
    furnished = await furnish(forge)
    user, member = await forge.user(), await forge.user()
    await forge.root.post(
        f"/projects/{furnished.ids['id']}/repository/branches", {"branch": "other", "ref": "main"}
    )
    places = {"projects": furnished.ids["id"], "groups": furnished.ids["group_id"]}
    for source, source_id in places.items():
        await forge.member(source, source_id, member, Role.DEVELOPER)
        invitation = {"email": "kept@example.net", "access_level": 30}
        await forge.root.post(f"/{source}/{source_id}/invitations", invitation)
    found = {}
    for route in SETTINGS:
        path = furnished.path_to(route)
        if route.path == "/users/{id}":
            path = f"/users/{user.id}"
        elif "/members/" in route.path or "/invitations/" in route.path:
            path = path_of(
                route,
                {"id": places[route.path.split("/")[1]], "user_id": member.id, "email": "kept@example.net"},
            )
        found[name_of(route)] = path
    return found


def _at(body: Any, key: str) -> Any:
    for name in key.split("."):
        body = body[int(name)] if isinstance(body, list) else body[name]
    return body


async def test_what_is_written_is_what_is_read(forge: Forge, paths: dict[str, str]) -> None:
    deviations = Deviations()
    for route in SETTINGS:
        is_of_all = route.path == "/application/settings"
        async with forge.instance_settings() if is_of_all else contextlib.nullcontext():
            for name, sample in SAMPLES[name_of(route)].items():
                shown = sample if isinstance(sample, Shown) else Shown({name: sample}, name, sample)
                needed = {} if name == "resolved" else required(route)
                path = paths[name_of(route)]
                answer = await forge.root.request(route.method, path, json=needed | dict(shown.sent))
                with deviations.of(f"{name_of(route)} {name}"):
                    assert answer.status in (200, 204), answer.body
                    read = await forge.root.get(path)
                    body = answer.body if read.status != 200 or isinstance(read.body, list) else read.body
                    value = _at(body, shown.key)
                    assert value == shown.value or (shown.key == "direct_asset_url" and shown.value in value)
    assert not deviations, deviations.report


#: What is ignored and shown all the same says what is so here: that there is nothing of it, or this.
SO_HERE = {
    "emails_enabled": True,
    "lfs_enabled": True,
    "shared_runners_enabled": True,
    "group_runners_enabled": True,
    "shared_runners_setting": "enabled",
    "ci_separated_caches": True,  # of protected refs and of others
    "ci_forward_deployment_rollback_allowed": True,
    "ci_restrict_pipeline_cancellation_role": "developer",
    "keep_latest_artifact": True,
    "auto_devops_deploy_strategy": "continuous",  # of no deployment
    "repository_object_format": "sha1",
    "subgroup_creation_level": "owner",
    "default_branch_protection": 2,
    "default_branch_protection_defaults": {
        "allowed_to_push": [{"access_level": 40}],
        "allow_force_push": False,
        "allowed_to_merge": [{"access_level": 40}],
        "developer_can_initial_push": False,
    },
    "organization_id": 1,
    "theme_id": 1,
    "color_scheme_id": 1,
}
#: What says the same as a parameter that is kept.
FOLLOWS = {
    "merge_requests_access_level",
    "merge_requests_enabled",
    "releases_access_level",
    "commit_email",
    "allow_local_requests_from_system_hooks",
}
NOTHING = (None, False, 0, "", [], "disabled")


async def test_what_is_ignored_is_not_shown_as_if_it_were_so(forge: Forge, paths: dict[str, str]) -> None:
    deviations = Deviations()
    for route in SETTINGS:
        if not route.ignores:
            continue
        shown = (await forge.root.get(paths[name_of(route)])).body
        for name in (one.name for one in route.ignores):
            if name in shown and name not in FOLLOWS:
                with deviations.of(f"{name_of(route)} {name}"):
                    assert shown[name] in NOTHING or shown[name] == SO_HERE[name]
    assert not deviations, deviations.report
