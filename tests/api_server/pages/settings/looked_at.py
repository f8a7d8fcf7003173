"""What pages of settings show when they are looked at: some of everything, and some of it failing."""

from typing import Any

from api_server.web.routes import Role
from tests.support.ci import CiProject
from tests.support.forge import Forge
from tests.support.ports import free_port

PATHS = [
    "/{project}/-/audit_events",
    "/{project}/-/audit_events?event_type=none",
    "/groups/{group}/-/audit_events",
    "/{project}/-/project_members",
    "/groups/{group}/-/group_members",
    "/{project}/-/edit",
    "/groups/{group}/-/edit",
    "/{project}/-/settings/repository",
    "/{project}/-/settings/ci_cd",
    "/{project}/-/settings/ci_cd?reveal=true",
    "/groups/{group}/-/settings/ci_cd",
    "/{project}/-/jobs/{stuck_job}",
    "/{project}/-/pipelines/{stuck_pipeline}",
    "/{project}/-/settings/merge_requests",
    "/{project}/-/settings/merge_requests/status_checks/{check}",
    "/{project}/-/settings/merge_requests/status_checks/{check}/deliveries/{check_delivery}",
]
_DELIVERY = "SELECT max(id) FROM status_check_deliveries WHERE check_id = %(check_id)s"


async def settings(forge: Forge, things: dict[str, Any]) -> None:
    """Members and invitations, mirrors of both kinds, protected refs."""
    owner = things["_owner"]
    project = (await owner.api.get(f"/projects/{things['project'].replace('/', '%2F')}")).body
    url = f"/projects/{project['id']}"
    await forge.new_member(project["id"], Role.DEVELOPER, "devon")
    await forge.new_member(project["id"], Role.MAINTAINER, "mary-with-quite-a-long-user-name")
    for path in (f"{url}/invitations", f"/groups/{project['namespace']['id']}/invitations"):
        invited = {"email": "someone.new@example.org", "access_level": 30, "expires_at": "2999-12-31"}
        assert (await owner.api.post(path, invited)).status == 201
    nobody = f"http://127.0.0.1:{free_port()}"
    for target in (
        {"url": f"{nobody}/target.git", "enabled": True},
        {"url": "ssh://git@198.51.100.7/team/copy.git", "auth_method": "ssh_public_key", "enabled": False},
    ):
        assert (await owner.api.post(f"{url}/remote_mirrors", target)).status == 201
    for branch in ("main", "release/*"):
        assert (await owner.api.post(f"{url}/protected_branches", {"name": branch})).status in (201, 409)
    assert (await owner.api.post(f"{url}/protected_tags", {"name": "v*"})).status == 201
    variables = [
        {"key": "DEPLOY_TOKEN", "value": "not-to-be-seen", "masked": True, "protected": True},
        {"key": "A_FILE", "value": "x" * 300, "variable_type": "file", "environment_scope": "review/*"},
        {
            "key": "NEVER",
            "value": "shown-to-nobody",
            "masked_and_hidden": True,
            "description": "Of the registry",
        },
    ]
    for path in (f"{url}/variables", f"/groups/{project['namespace']['id']}/variables"):
        for variable in variables:
            assert (await owner.api.post(path, variable)).status == 201
    assert (await owner.api.post(f"{url}/triggers", {"description": "Nightly"})).status == 201
    other = (await owner.api.get(f"/projects/{things['empty'].replace('/', '%2F')}")).body
    allowed = {"target_project_id": other["id"]}
    assert (await owner.api.post(f"{url}/job_token_scope/allowlist", allowed)).status == 201
    allowed = {"target_group_id": project["namespace"]["id"]}
    assert (await owner.api.post(f"{url}/job_token_scope/groups_allowlist", allowed)).status == 201
    waits = "build:\n  script: make\n  tags: [macos]\n"
    waiting = CiProject(forge, project["id"], project["path_with_namespace"], owner)
    things["stuck_pipeline"] = (pipeline := await waiting.pipeline(waits, branch="stuck"))["id"]
    things["stuck_job"] = (await waiting.jobs(pipeline))["build"]["id"]
    checks = (await owner.api.get(f"{url}/external_status_checks")).body
    things["check"] = checks[0]["id"]
    things["check_delivery"] = await forge.database.value(_DELIVERY, check_id=things["check"])
