"""The changes of changes.yml, and the entities that they need, which are created on first use of their names, such as
`{project}` in a path."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import yaml

from tests.support.browser import PASSWORD
from tests.support.ci import CiProject, ci_project, give_log
from tests.support.forge import Client, Forge, Person, new_name
from tests.support.invitations import page_of
from tests.support.merge_requests import new_project, open_merge_request
from tests.support.runner import Runner, RunningJob, a_runner
from tests.support.waiting import until

_NAME = re.compile(r"{(\w+)}")
ARTIFACTS = "build:\n  script: echo\n  artifacts: {paths: [out.txt]}\n"
#: An address to which requests are allowed but that nobody answers (RFC 5737).
ELSEWHERE = "http://203.0.113.7"
HURRY = """
    WITH hurried AS (
        UPDATE procrastinate_jobs SET scheduled_at = NULL WHERE status = 'todo' AND scheduled_at IS NOT NULL)
    SELECT pg_notify('procrastinate_any_queue_v1', '{"type": "job_inserted"}')
"""
IS_RECORDED = "SELECT EXISTS (SELECT FROM audit_events WHERE event_type = %(event_type)s)"
EXPIRE = "UPDATE members SET expires_at = %(now)s::date - 1 WHERE user_id = %(user_id)s"
PAUSE = "UPDATE external_status_checks SET paused_at = %(now)s, pause_reason = 'It failed' WHERE id = %(id)s"
_TOKEN = {"name": "token", "scopes": ["api"]}
_MEMBER = {"user_id": "{user}", "access_level": 30}
_INVITED = {"email": "{new}@example.org", "access_level": 30}
_VARIABLE = {"key": "KEY", "value": "x"}
_NIGHTLY = {"description": "nightly", "ref": "main", "cron": "0 4 * * *"}
#: Entities that one request of root's creates: its path and body, and the value of the name, which is a value of the
#: answer or a text with names of other entities.
POSTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "agent": ("/projects/{project}/cluster_agents", {"name": "agent"}, "id"),
    "archived": ("/projects/{project}/archive", {}, "{project}"),
    "assigned_runner": ("/projects/{other_project}/runners", {"runner_id": "{runner}"}, "{runner}"),
    "blocked": ("/users/{user}/block", {}, "{user}"),
    "branch": ("/projects/{project}/protected_branches", {"name": "{new}"}, "name"),
    "branch_id": ("/projects/{project}/protected_branches", {"name": "{new}-too"}, "id"),
    "other_branch_id": ("/projects/{project}/protected_branches", {"name": "{new}-other"}, "id"),
    "check": (
        "/projects/{project}/external_status_checks",
        {"name": "QA", "external_url": f"{ELSEWHERE}/qa", "shared_secret": "one"},
        "id",
    ),
    "email": ("/users/{user}/emails", {"email": "{new}@example.org"}, "id"),
    "group_access_token": ("/groups/{group}/access_tokens", _TOKEN, "id"),
    "group_member": ("/groups/{group}/members", _MEMBER, "{user}"),
    "group_variable": ("/groups/{group}/variables", _VARIABLE, "key"),
    "invited_to_group": ("/groups/{group}/invitations", _INVITED, "{new}@example.org"),
    "invited_to_project": ("/projects/{project}/invitations", _INVITED, "{new}@example.org"),
    "maintainer": ("/projects/{project}/members", _MEMBER | {"access_level": 40}, "{caller}"),
    "mirror": (
        "/projects/{project}/remote_mirrors",
        {"url": "https://user:secret@203.0.113.7/app.git"},
        "id",
    ),
    "project_access_token": ("/projects/{project}/access_tokens", _TOKEN, "id"),
    "project_member": ("/projects/{project}/members", _MEMBER, "{user}"),
    "protected_tag": ("/projects/{project}/protected_tags", {"name": "{new}"}, "name"),
    "registration": ("/projects/{project}/runners/reset_registration_token", {}, "token"),
    "release": ("/projects/{repository}/releases", {"tag_name": "{new}", "ref": "main"}, "tag_name"),
    "role": ("/member_roles", {"name": "{new}", "base_access_level": 30}, "id"),
    "schedule": ("/projects/{project}/pipeline_schedules", _NIGHTLY, "id"),
    "schedule_variable": ("/projects/{project}/pipeline_schedules/{schedule}/variables", _VARIABLE, "key"),
    "scoped_check": (
        "/projects/{project}/external_status_checks",
        {"name": "QA", "external_url": ELSEWHERE, "protected_branch_ids": ["{branch_id}"]},
        "id",
    ),
    "token": ("/users/{user}/personal_access_tokens", _TOKEN, "id"),
    "trigger": ("/projects/{project}/triggers", {"description": "nightly"}, "id"),
    "variable": ("/projects/{project}/variables", _VARIABLE, "key"),
}
#: Attributes of other entities.
PARTS = {
    "address": ("person", "email"),
    "caller": ("person", "api"),
    "ci": ("pipelines", "id"),
    "ci_path": ("pipelines", "path"),
    "runner": ("a_runner", "id"),
    "runner_token": ("a_runner", "token"),
    "user": ("person", "id"),
}


class Things:
    """Entities by their names. `root` creates each once, in the entities whose names its request contains."""

    def __init__(self, forge: Forge) -> None:
        self.forge = forge
        self._made: dict[str, Any] = {}

    async def get(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = await self._make(name)
        return self._made[name]

    async def _make(self, name: str) -> Any:
        if name in PARTS:
            whole, part = PARTS[name]
            return getattr(await self.get(whole), part)
        if name in POSTED:
            path, values, value = POSTED[name]
            answer = await self.post(path, **values)
            return await self.fill(value) if "{" in value else answer[value]
        return await getattr(self, f"make_{name}")()

    async def fill(self, wanted: Any) -> Any:
        """Return `wanted` with values for the names in it; a text that is one name becomes the value itself."""
        if isinstance(wanted, dict):
            return {key: await self.fill(value) for key, value in wanted.items()}
        if isinstance(wanted, list):
            return [await self.fill(value) for value in wanted]
        if not isinstance(wanted, str):
            return wanted
        if (only := _NAME.fullmatch(wanted)) is not None:
            return await self.get(only[1])
        for name in _NAME.findall(wanted):
            wanted = wanted.replace(f"{{{name}}}", str(await self.get(name)))
        return wanted

    async def post(self, path: str, **values: Any) -> Any:
        """Send a request as root, which has to succeed; return the answer."""
        answer = await self.forge.root.post(await self.fill(path), await self.fill(values))
        assert answer.status in (200, 201, 204), (path, answer)
        return answer.body

    async def until_recorded(self, event_type: str) -> None:
        """Wait until an event of this type is recorded. Queued tasks do not wait for their next attempt meanwhile."""

        async def is_recorded() -> bool:
            await self.forge.execute(HURRY)
            return bool(await self.forge.database.value(IS_RECORDED, event_type=event_type))

        await until(is_recorded, seconds=20)

    async def make_project_bot(self) -> Client:
        return await self._bot("/projects/{project}/access_tokens")

    async def make_group_bot(self) -> Client:
        return await self._bot("/groups/{group}/access_tokens")

    async def _bot(self, path: str) -> Client:
        return attrs.evolve(self.forge.anonymous, token=(await self.post(path, **_TOKEN))["token"])

    async def make_instance_variable(self) -> str:
        key = new_name("KEY").replace("-", "_")
        return str((await self.post("/admin/ci/variables", key=key, value="x"))["key"])

    async def make_pipelines(self) -> CiProject:
        return await ci_project(self.forge)

    async def make_topic(self) -> str:
        """Create a second branch."""
        await (await self.get("pipelines")).commit("", path="NEWS.md", branch="topic")
        return "topic"

    async def make_pipeline(self) -> int:
        return int((await (await self.get("pipelines")).pipeline())["id"])

    async def make_finished_job(self) -> int:
        """Create a finished job with a log."""
        job = await (await self.get("pipelines")).job_in("success")
        await give_log(self.forge, job["id"])
        return int(job["id"])

    async def make_job_with_artifacts(self) -> int:
        project: CiProject = await self.get("pipelines")
        runner = await a_runner(self.forge, project_id=project.id)
        await project.pipeline(ARTIFACTS)
        job: RunningJob = await runner.job()
        assert (await job.upload(b"not unpacked here")).status == 201
        await job.finish()
        return job.id

    async def make_a_runner(self) -> Runner:
        return await a_runner(self.forge, project_id=await self.get("project"))

    async def make_paused_runner(self) -> int:
        runner: int = await self.get("runner")
        await self.forge.root.put(f"/runners/{runner}", {"paused": True}, expect=200)
        return runner

    async def make_paused_check(self) -> int:
        check: int = await self.get("check")
        await self.forge.execute(PAUSE, id=check)
        return check

    async def make_other_project(self) -> int:
        return int((await self.forge.project())["id"])

    async def make_new(self) -> str:
        return new_name("new")

    async def make_person(self) -> Person:
        return await self.forge.user()

    async def make_person_with_password(self) -> Person:
        self._made["person"] = await self.forge.user(password=PASSWORD)
        return await self.get("person")

    async def make_administrator(self) -> Person:
        return await self.forge.user(admin=True)

    async def make_anonymous(self) -> Client:
        return self.forge.anonymous

    async def make_revoked(self) -> int:
        token: int = await self.get("token")
        await self.forge.root.delete(f"/personal_access_tokens/{token}")
        return token

    async def make_group(self) -> int:
        return int((await self.forge.group())["id"])

    async def make_project(self) -> int:
        return int((await self.forge.project())["id"])

    async def make_open_to_jobs(self) -> int:
        project = (await self.forge.project())["id"]
        await self.forge.root.patch(f"/projects/{project}/job_token_scope", {"enabled": False}, expect=204)
        return int(project)

    async def make_allowed_project(self) -> int:
        target = int((await self.forge.project())["id"])
        await self.post("/projects/{project}/job_token_scope/allowlist", target_project_id=target)
        return target

    async def make_allowed_group(self) -> int:
        target = int((await self.forge.group())["id"])
        await self.post("/projects/{project}/job_token_scope/groups_allowlist", target_group_id=target)
        return target

    async def make_group_member_of_yesterday(self) -> int:
        return await self._ended_member("/groups/{group}/members")

    async def make_project_member_of_yesterday(self) -> int:
        return await self._ended_member("/projects/{project}/members")

    async def _ended_member(self, path: str) -> int:
        await self.post(path, user_id="{user}", access_level=30)
        user: int = await self.get("user")
        await self.forge.execute(EXPIRE, user_id=user)
        return user

    async def add_member(self, user_id: int) -> None:
        await self.post("/projects/{project}/members", user_id=user_id, access_level=40)

    async def make_invitation_page(self) -> str:
        """Create an invitation to a person who has an account and confirms the address only now."""
        address: str = await self.get("invited_to_project")
        self._made["invited_person"] = await self.forge.user(email=address)
        return await page_of(self.forge, address)

    async def make_owned(self) -> dict[str, Any]:
        return await new_project(self.forge, await self.get("person"))

    async def make_repository(self) -> int:
        """Create a project with a commit on `main` and one more on `feature`, which has a merge request."""
        return int((await self.get("owned"))["id"])

    async def make_repository_path(self) -> str:
        return str((await self.get("owned"))["path_with_namespace"])

    async def make_merge_request(self) -> int:
        self._made["request"] = await open_merge_request(await self.get("person"), await self.get("owned"))
        return int(self._made["request"]["iid"])

    async def make_head(self) -> str:
        await self.get("merge_request")
        return str(self._made["request"]["sha"])

    async def make_asked(self) -> int:
        """Create a status check without an answer."""
        path = "/projects/{repository}/external_status_checks"
        made = await self.post(path, name="QA", external_url=ELSEWHERE)
        await self.get("merge_request")
        return int(made["id"])

    async def make_failed(self) -> int:
        """Create a status check that has failed."""
        path = "/projects/{repository}/merge_requests/{merge_request}/status_check_responses"
        check: int = await self.get("asked")
        await self.post(path, sha="{head}", external_status_check_id=check, status="failed")
        return check

    async def make_delivery(self) -> int:
        path = await self.fill("/projects/{repository}/external_status_checks/{asked}/deliveries")
        return int((await self.forge.root.get(path)).body[0]["id"])


@attrs.frozen
class Change:
    """A row of changes.yml: a request of `by`, or of root, and the types of exactly those events that it writes."""

    request: str
    events: tuple[str, ...] = attrs.field(converter=lambda names: tuple(sorted(names.split())))
    body: dict[str, Any] = attrs.Factory(dict)
    case: str = ""
    by: str = ""

    def __str__(self) -> str:
        return f"{self.request}: {self.case}" if self.case else self.request

    async def made(self, things: Things) -> AsyncIterator[None]:
        """Prepare the change, yield once, and then send its request."""
        client: Client = await things.get(self.by) if self.by else things.forge.root
        method, _, path = (await things.fill(self.request)).partition(" ")
        body = await things.fill(self.body)
        yield
        answer = await client.request(method, path, json=body)
        assert answer.status in (200, 201, 202, 204), answer


CHANGES = [
    Change(*json.loads(row.replace("<source>", source)))
    for row in map(json.dumps, yaml.safe_load(Path(__file__).with_name("changes.yml").read_text()))
    for source in (("group", "project") if "<source>" in row else ("",))
]


def shape(route: str) -> str:
    """Return a route or a request without the names of its parameters."""
    return re.sub(r"{[^{}]*(?:{[^{}]*}[^{}]*)?}", "{}", route)
