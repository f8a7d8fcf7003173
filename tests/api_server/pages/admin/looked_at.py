"""What administrators' pages show when they are looked at: some of everything, and some of it failing."""

from typing import Any

from api_server.operations import figures
from api_server.state.queue import enqueue
from tests.support.forge import Forge
from tests.support.merge_requests import new_project, open_merge_request
from tests.support.ports import free_port

PATHS = [
    "/admin", "/admin/users", "/admin/users?search=nobody-is-called-so", "/admin/tokens", "/admin/runners",
    "/admin/projects", "/admin/mirrors", "/admin/deliveries", "/admin/deliveries/{delivery}", "/admin/edges",
    "/admin/audit_events", "/admin/background_tasks", "/admin/background_tasks?status=todo", "/admin/settings",
]  # fmt: skip
_DELIVERIES = "SELECT max(id) FROM status_check_deliveries"


async def administrators_things(forge: Forge, things: dict[str, Any]) -> None:
    """A mirror and a receiver that do not answer, a runner that was never there, a task that nobody knows, figures of
    three minutes. Nothing waits until all of that has failed: pages have to be readable in all states."""
    owner, nobody = things["_owner"], f"http://127.0.0.1:{free_port()}"
    project = await new_project(forge, owner)
    allowed = {"outbound_local_requests_whitelist": ["127.0.0.1"]}
    assert (await forge.root.put("/application/settings", allowed)).status == 200
    mirror = {"url": f"{nobody}/a-target-with-quite-a-long-name/and-a-path-of-its-own.git", "enabled": True}
    assert (await owner.api.post(f"/projects/{project['id']}/remote_mirrors", mirror)).status == 201
    check = {"name": "Quality assurance", "external_url": nobody}
    assert (await owner.api.post(f"/projects/{project['id']}/external_status_checks", check)).status == 201
    await open_merge_request(owner, project)
    things["delivery"] = await forge.database.value(_DELIVERIES)
    runner = {"runner_type": "instance_type", "description": "builder", "tag_list": "linux,docker"}
    assert (await forge.root.post("/user/runners", runner)).status == 201
    async with forge.database.transaction() as transaction:
        await enqueue(transaction, "of_another_version", words="x" * 300)
    await figures.keep_sample(forge.database, dict.fromkeys(figures.SAMPLE_NAMES, 3.0))
