"""Every route that changes something writes its audit event, or is on a short list with the reason (decision D7)."""

import fnmatch
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import orjson

from api_server.state.audit_event_types import EVENT_TYPES
from tests.support.forge import Client, Forge, new_name
from tests.support.route_table import ROUTES, name_of

#: Routes after which the trail has nothing to tell, and why.
SILENT = {
    "POST /projects/{id}/ci/lint": "reads only",
    "POST /projects/{id}/repository/branches": "git's own history tells who made what, and pushes are not audited",
    "DELETE /projects/{id}/repository/branches/{name}": "as above",
    "POST /projects/{id}/repository/commits": "the commit names its author",
    "POST /projects/{id}/repository/tags": "as above",
    "DELETE /projects/{id}/repository/tags/{name}": "as above",
    "POST /projects/{id}/repository/files/{path}": "the commit names its author",
    "PUT /projects/{id}/repository/files/{path}": "the commit names its author",
    "DELETE /projects/{id}/repository/files/{path}": "the commit names its author",
    "POST /projects/{id}/merge_requests": "daily work, told by the merge request itself",
    "PUT /projects/{id}/merge_requests/{merge_request_iid}": "as above",
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/merge": "as above; the merge commit names who merged",
    "POST /projects/{id}/merge_requests/{merge_request_iid}/approve": "as above",
    "POST /projects/{id}/merge_requests/{merge_request_iid}/unapprove": "as above",
    "POST /projects/{id}/pipeline": "daily work, told by the pipeline itself",
    "POST /projects/{id}/pipelines/{pipeline_id}/cancel": "as above",
    "POST /projects/{id}/pipelines/{pipeline_id}/retry": "as above",
    "POST /projects/{id}/jobs/{job_id}/cancel": "daily work, told by the job itself",
    "POST /projects/{id}/jobs/{job_id}/retry": "as above",
    "POST /projects/{id}/jobs/{job_id}/play": "as above",
    "POST /projects/{id}/remote_mirrors/{mirror_id}/sync": "the mirror tells when it was updated; failures are audited",
    "POST /projects/{id}/jobs/{job_id}/artifacts/keep": "as above",
    "POST /runners/verify": "changes nothing that lasts",
    "DELETE /runners/managers": "a machine of a runner signs off; the runner stays",
    "POST /jobs/request": "runners at work; the job tells",
    "PUT /jobs/{id}": "as above",
    "PATCH /jobs/{id}/trace": "as above",
    "POST /jobs/{id}/artifacts": "as above",
    "POST /jobs/{id}/artifacts/authorize": "changes nothing",
}
#: Routes whose events are shown by the tests of their own folder, because they need much of their own to stand on.
SHOWN_ELSEWHERE = {
    "POST /projects/{id}/external_status_checks/{check_id}/deliveries/{delivery_id}/redeliver": (
        "status_check_delivery_redelivered"
    ),
    "POST /runners": "runner_registered",
    "POST /user/runners": "runner_registered",
    "DELETE /runners": "runner_unregistered",
    "DELETE /runners/{id}": "runner_unregistered",
    "PUT /runners/{id}": "runner_updated",
    "POST /runners/reset_authentication_token": "runner_token_reset",
    "POST /runners/{id}/reset_authentication_token": "runner_token_reset",
    "POST /projects/{id}/runners": "runner_assigned_to_project",
    "DELETE /projects/{id}/runners/{runner_id}": "runner_unassigned_from_project",
    "DELETE /projects/{id}/jobs/{job_id}/artifacts": "job_artifacts_deleted",
    "POST /projects/{id}/jobs/{job_id}/erase": "job_erased",
    "DELETE /projects/{id}/pipelines/{pipeline_id}": "destroy_pipeline",
    "POST /projects/{id}/merge_requests/{merge_request_iid}/status_check_responses": "status_check_response_update",
    "POST /projects/{id}/merge_requests/{merge_request_iid}/status_checks/{external_status_check_id}/retry": (
        "status_check_response_update"
    ),
}
CHANGING = {name_of(route) for route in ROUTES if route.method != "GET"}


@attrs.define
class Walk:
    """Calls routes as root, and notes which events each call has recorded."""

    forge: Forge
    walked: dict[str, set[str]] = attrs.Factory(dict)

    async def step(
        self, route: str, *expected: str, json: Any = None, client: Client | None = None, **path: Any
    ) -> Any:
        """The answer's body, after checking that exactly the events of the types `expected` were recorded."""
        before = await self._last()
        method, _, template = route.partition(" ")
        url = re.sub(r"\{(\w+)\}", lambda name: quote(str(path[name[1]]), safe=""), template)
        answer = await (client or self.forge.root).request(method, url, json=json)
        assert answer.status < 300, (route, answer)
        rows = await self.forge.database.rows(
            "SELECT event_type, details FROM audit_events WHERE id > %(before)s", before=before
        )
        recorded = {row.event_type for row in rows}
        assert all(_has_declared_message(row) for row in rows), rows
        # Go clients decode details into structs of strings.
        assert all(isinstance(value, str) for row in rows for value in orjson.loads(row.details).values())
        assert recorded == set(expected), route
        self.walked[route] = recorded
        return answer.body

    async def _last(self) -> int:
        return int(await self.forge.database.value("SELECT coalesce(max(id), 0) FROM audit_events"))


def _has_declared_message(row: Any) -> bool:
    message = orjson.loads(row.details)["custom_message"]
    return any(fnmatch.fnmatchcase(message, shape) for shape in EVENT_TYPES[row.event_type].messages)


def test_every_route_that_changes_something_is_known() -> None:
    """A new one belongs into the walk below, or, with a reason, on one of the lists above."""
    walked = set(re.findall(r'step\(\s*"([A-Z]+ /[^"]*)"', Path(__file__).read_text()))
    known = walked | set(SILENT) | set(SHOWN_ELSEWHERE)
    assert CHANGING - known == set()
    assert not walked & set(SILENT)
    assert set(SHOWN_ELSEWHERE.values()) <= set(EVENT_TYPES)


async def test_users_and_tokens(new_forge: Any) -> None:
    async with new_forge() as forge:
        walk = Walk(forge)
        account = {
            "username": "carol",
            "name": "Carol",
            "email": "carol@example.org",
            "password": "long enough",
        }
        user = (await walk.step("POST /users", "user_created", json=account))["id"]
        await walk.step("PUT /users/{id}", "user_updated", json={"name": "Caroline"}, id=user)
        await walk.step(
            "PUT /users/{id}",
            "user_email_address_updated",
            "user_password_updated",
            "user_admin_status_updated",
            json={"email": "new@example.org", "password": "even longer", "admin": True},
            id=user,
        )
        await walk.step("PUT /users/{id}", json={"email": "new@example.org"}, id=user)
        second = {"email": "second@example.org"}
        email = await walk.step("POST /users/{id}/emails", "email_created", json=second, id=user)
        await walk.step(
            "DELETE /users/{id}/emails/{email_id}", "email_destroyed", id=user, email_id=email["id"]
        )
        role = {"name": "Auditor", "base_access_level": 20}
        made = await walk.step("POST /member_roles", "member_role_created", json=role)
        await walk.step("DELETE /member_roles/{id}", "member_role_deleted", id=made["id"])
        await walk.step("POST /users/{id}/block", "user_blocked", id=user)
        await walk.step("POST /users/{id}/unblock", "user_unblocked", id=user)
        created, revoked = "personal_access_token_created", "personal_access_token_revoked"
        new = {"name": "t", "scopes": ["api"]}
        token = await walk.step(
            "POST /users/{user_id}/personal_access_tokens", created, json=new, user_id=user
        )
        carol = attrs.evolve(forge.root, token=token["token"])
        email = await walk.step("POST /user/emails", "email_created", json=second, client=carol)
        await walk.step(
            "DELETE /user/emails/{email_id}", "email_destroyed", email_id=email["id"], client=carol
        )
        await walk.step("POST /user/static_object_token/rotate", "static_object_token_rotated", client=carol)
        token = await walk.step("POST /personal_access_tokens/{id}/rotate", created, revoked, id=token["id"])
        carol = attrs.evolve(forge.root, token=token["token"])
        token = await walk.step("POST /personal_access_tokens/self/rotate", created, revoked, client=carol)
        carol = attrs.evolve(forge.root, token=token["token"])
        await walk.step("DELETE /personal_access_tokens/self", revoked, client=carol)
        other = await walk.step(
            "POST /users/{user_id}/personal_access_tokens", created, json=new, user_id=user
        )
        await walk.step("DELETE /personal_access_tokens/{id}", revoked, id=other["id"])
        await walk.step("DELETE /users/{id}", "user_destroyed", id=user)


async def test_groups_and_projects(new_forge: Any) -> None:
    async with new_forge() as forge:
        walk = Walk(forge)
        group = (await walk.step("POST /groups", "group_created", json={"name": "Tools", "path": "tools"}))[
            "id"
        ]
        await walk.step("PUT /groups/{id}", "group_name_updated", json={"name": "Toolbox"}, id=group)
        project = (await walk.step("POST /projects", "project_created", json={"name": "app"}))["id"]
        await walk.step(
            "PUT /projects/{id}", "project_name_updated", json={"name": "application"}, id=project
        )
        await walk.step("POST /projects/{id}/archive", "project_archived", id=project)
        await walk.step("POST /projects/{id}/unarchive", "project_unarchived", id=project)
        await walk.step(
            "PUT /projects/{id}/transfer", "project_namespace_updated", json={"namespace": group}, id=project
        )
        created, updated, destroyed = "member_created", "member_updated", "member_destroyed"
        person = (await forge.user()).id
        for kind, source in (("groups", group), ("projects", project)):
            by, level = {"id": source, "user_id": person}, {"access_level": 40}
            asked = {"id": source, "email": f"{new_name('x')}@example.org"}
            new, invited = (
                {"user_id": person, "access_level": 30},
                {"email": asked["email"], "access_level": 30},
            )
            if kind == "groups":
                await walk.step("POST /groups/{id}/members", created, json=new, id=source)
                await walk.step("PUT /groups/{id}/members/{user_id}", updated, json=level, **by)
                await walk.step("DELETE /groups/{id}/members/{user_id}", destroyed, **by)
                await walk.step("POST /groups/{id}/invitations", created, json=invited, id=source)
                await walk.step("PUT /groups/{id}/invitations/{email}", updated, json=level, **asked)
                await walk.step("DELETE /groups/{id}/invitations/{email}", destroyed, **asked)
            else:
                await walk.step("POST /projects/{id}/members", created, json=new, id=source)
                await walk.step("PUT /projects/{id}/members/{user_id}", updated, json=level, **by)
                await walk.step("DELETE /projects/{id}/members/{user_id}", destroyed, **by)
                await walk.step("POST /projects/{id}/invitations", created, json=invited, id=source)
                await walk.step("PUT /projects/{id}/invitations/{email}", updated, json=level, **asked)
                await walk.step("DELETE /projects/{id}/invitations/{email}", destroyed, **asked)
        new, changed = {"key": "KEY", "value": "x"}, {"protected": True}
        by = {"id": group, "key": "KEY"}
        await walk.step("POST /groups/{id}/variables", "ci_group_variable_created", json=new, id=group)
        await walk.step("PUT /groups/{id}/variables/{key}", "ci_group_variable_updated", json=changed, **by)
        await walk.step("DELETE /groups/{id}/variables/{key}", "ci_group_variable_deleted", **by)
        by = {"id": project, "key": "KEY"}
        await walk.step("POST /projects/{id}/variables", "ci_variable_created", json=new, id=project)
        await walk.step("PUT /projects/{id}/variables/{key}", "ci_variable_updated", json=changed, **by)
        await walk.step("DELETE /projects/{id}/variables/{key}", "ci_variable_deleted", **by)
        reset = "runner_registration_token_reset"
        await walk.step("POST /runners/reset_registration_token", reset)
        await walk.step("POST /groups/{id}/runners/reset_registration_token", reset, id=group)
        await walk.step("POST /projects/{id}/runners/reset_registration_token", reset, id=project)
        await walk.step("DELETE /projects/{id}", "project_destroyed", id=project)
        await walk.step("DELETE /groups/{id}", "group_destroyed", id=group)


async def test_what_projects_have(new_forge: Any) -> None:
    async with new_forge(allow_local_requests=True) as forge:
        walk = Walk(forge)
        project = (await forge.project())["id"]
        branch = {"id": project, "name": "release/*"}
        await walk.step(
            "POST /projects/{id}/protected_branches",
            "protected_branch_created",
            json={"name": "release/*"},
            id=project,
        )
        await walk.step(
            "PATCH /projects/{id}/protected_branches/{name}",
            "protected_branch_updated",
            json={"allow_force_push": True},
            **branch,
        )
        await walk.step(
            "DELETE /projects/{id}/protected_branches/{name}", "protected_branch_removed", **branch
        )

        service = {"name": "QA", "external_url": "https://qa.example.org", "shared_secret": "one"}
        check = await walk.step(
            "POST /projects/{id}/external_status_checks", "create_status_check", json=service, id=project
        )
        check = {"id": project, "check_id": check["id"]}
        changes = {"name": "Quality", "external_url": "https://q.example.org", "shared_secret": "two"}
        await walk.step(
            "PUT /projects/{id}/external_status_checks/{check_id}",
            "external_status_check_name_updated",
            "external_status_check_url_updated",
            "external_status_check_secret_updated",
            json=changes,
            **check,
        )
        await walk.step(
            "DELETE /projects/{id}/external_status_checks/{check_id}", "delete_status_check", **check
        )

        target = {"url": "https://user:secret@127.0.0.1/app.git", "enabled": False}
        mirror = await walk.step(
            "POST /projects/{id}/remote_mirrors", "remote_mirror_created", json=target, id=project
        )
        mirror = {"id": project, "mirror_id": mirror["id"]}
        await walk.step(
            "PUT /projects/{id}/remote_mirrors/{mirror_id}",
            "remote_mirror_updated",
            json={"keep_divergent_refs": True},
            **mirror,
        )
        await walk.step("DELETE /projects/{id}/remote_mirrors/{mirror_id}", "remote_mirror_deleted", **mirror)

        agent = await walk.step(
            "POST /projects/{id}/cluster_agents", "cluster_agent_created", json={"name": "agent"}, id=project
        )
        await walk.step(
            "DELETE /projects/{id}/cluster_agents/{agent_id}",
            "cluster_agent_deleted",
            id=project,
            agent_id=agent["id"],
        )
        await walk.step(
            "PUT /application/settings", "application_setting_updated", json={"default_projects_limit": 7}
        )
        secrets = await forge.database.rows(
            "SELECT 1 FROM audit_events e WHERE e::text ~ 'user:secret|\"(one|two)\"'"
        )
        assert secrets == [], "secrets never reach the trail"
