"""A project and a group with an entity of each kind that the API reads, and the paths at which routes find them."""

from typing import Any

import attrs

from api_server.git.repositories import REPOSITORIES
from api_server.web.context import SERVICES
from api_server.web.routes import Route
from tests.support.forge import Answer, Client, Forge
from tests.support.route_table import name_of, path_of, required
from tests.support.runner import Runner, RunningJob, a_runner
from tests.support.signed_commits import signed
from tests.support.zips import archive

CONFIG = """
finished: {script: 'true', artifacts: {paths: [out.txt]}}
running: {script: 'true', needs: []}
reviewed: {script: 'true', only: [merge_requests]}
"""

#: Without these times, the answer about a running job is the same each time.
WITHOUT_DURATION = "UPDATE jobs SET queued_at = NULL, started_at = NULL WHERE id = %(id)s"

#: An attempt between two requests would make their answers differ.
NO_MORE_ATTEMPTS = "UPDATE status_check_deliveries SET next_attempt_at = '2999-01-01' WHERE check_id = %(id)s"

#: Parameters of requests that have to name existing entities instead of examples.
_PARAMETERS: dict[str, dict[str, str]] = {
    "GET /projects/{id}/repository/compare": {"from": "v1", "to": "feature"},
    "GET /projects/{id}/repository/merge_base": {"refs": "v1,feature"},
    "GET /projects/{id}/jobs/artifacts/{ref:.+}/download": {"job": "finished"},
    "GET /projects/{id}/jobs/artifacts/{ref:.+}/raw/{path:(?s:.+)}": {"job": "finished"},
}


@attrs.frozen
class Furnished:
    """The project and the group. `ids` are the values of path parameters; `of_root` are the values in paths without a
    project or group."""

    root: Client
    ids: dict[str, Any]
    of_root: dict[str, Any]
    job_token: str

    async def read(self, route: Route, method: str = "GET", if_none_match: str | None = None) -> Answer:
        """Send the route's request about existing entities; return the answer."""
        of_job = route.access.kind == "job" or route.path.startswith("/jobs/")
        client = attrs.evolve(self.root, token=None) if of_job else self.root
        headers = {"JOB-TOKEN": self.job_token} if of_job else {}
        if if_none_match is not None:
            headers["If-None-Match"] = if_none_match
        parameters = required(route) | _PARAMETERS.get(name_of(route), {})
        return await client.request(method, self.path_to(route), params=parameters, headers=headers)

    def path_to(self, route: Route) -> str:
        """Return the route's path with the ids of existing entities."""
        values = dict(self.ids)
        if route.access.kind == "group":
            values |= {"id": self.ids["group_id"], "token_id": self.ids["group_token_id"]}
        elif "/projects/{id}" not in route.path:
            values |= self.of_root | {"id": self._id_of(route)}
        if "merge_requests" in route.path:
            values["external_status_check_id"] = self.ids["check_id"]
        if "audit_event_id" in route.path:
            values["audit_event_id"] = self.ids[f"{route.access.kind}_event_id"]
        if route.path.endswith("/signature"):
            values["sha"] = self.ids["signed_sha"]
        if "/tags/" in route.path:
            values["name"] = "v1"
        if "/artifacts/" in route.path:
            values["path"] = "out.txt"
        if "/downloads/" in route.path:
            values["path"] = "bin"
        return path_of(route, values)

    def _id_of(self, route: Route) -> object:
        kind = route.path.split("/")[1]
        return self.of_root.get(f"{kind}_id", self.of_root["users_id"])


async def _jobs(
    forge: Forge, url: str, runner: Runner
) -> tuple[dict[str, Any], RunningJob, RunningJob, RunningJob]:
    """Create two pipelines; return the first one, its finished job, and the other one's finished and running jobs."""
    pipeline = await _made(forge.root, f"{url}/pipeline", ref="main")
    over, last = await _artifacts(runner)
    await last.finish()
    await _made(forge.root, f"{url}/pipeline", ref="main")
    finished, running = await _artifacts(runner)
    async with forge.database.transaction() as transaction:
        await transaction.row(WITHOUT_DURATION, id=running.id)
    return pipeline, over, finished, running


async def _merge_request(forge: Forge, url: str, check_id: int) -> dict[str, Any]:
    await _commit(forge.root, url, "feature", {"new.txt": "new\n"}, start_branch="main")
    made = await _made(
        forge.root, f"{url}/merge_requests", source_branch="feature", target_branch="main", title="Add a file"
    )
    async with forge.database.transaction() as transaction:
        await transaction.run(NO_MORE_ATTEMPTS, id=check_id)
    return made


async def _release(client: Client, url: str, tag: str) -> int:
    """Create a release with a link, and a protected tag; return the link's id."""
    link = {"name": "bin", "url": "http://203.0.113.7/bin", "direct_asset_path": "/bin"}
    made = await _made(client, f"{url}/releases", tag_name=tag, ref="main", assets={"links": [link]})
    await _made(client, f"{url}/protected_tags", name="main")
    return int(made["assets"]["links"][0]["id"])


async def _of_merge_request(root: Client, url: str) -> dict[str, Any]:
    thread = await _made(root, f"{url}/discussions", body="Why?")
    return {
        "merge_request_iid": thread["notes"][0]["noteable_iid"],
        "discussion_id": thread["id"],
        "note_id": thread["notes"][0]["id"],
        "version_id": (await root.get(f"{url}/versions")).body[0]["id"],
    }


async def _what_starts_pipelines(root: Client, url: str) -> dict[str, int]:
    """Create a schedule with a variable, and a trigger."""
    schedules = f"{url}/pipeline_schedules"
    schedule = await _made(root, schedules, description="x", ref="main", cron="0 4 1 1 *")
    await _made(root, f"{schedules}/{schedule['id']}/variables", key="KEY", value="value")
    trigger = await _made(root, f"{url}/triggers", description="nightly")
    return {"pipeline_schedule_id": schedule["id"], "trigger_id": trigger["id"]}


async def furnish(forge: Forge) -> Furnished:
    root = forge.root
    project = await forge.project()
    group = await forge.group()
    url = f"/projects/{project['id']}"
    await _commit(root, url, "main", {".gitlab-ci.yml": CONFIG, "README.md": "Hello\n"})
    runner = await a_runner(forge, project_id=project["id"])
    pipeline, over, finished, running = await _jobs(forge, url, runner)
    check = await _made(root, f"{url}/external_status_checks", name="QA", external_url="http://203.0.113.7")
    link_id = await _release(root, url, "v1")
    merge_request = await _merge_request(forge, url, check["id"])
    for place in (url, f"/groups/{group['id']}"):
        await _made(root, f"{place}/variables", key="KEY", value="value")
    everywhere = await _made(root, "/admin/ci/variables", key=f"FURNISHED_{project['id']}", value="value")
    email = await _made(root, "/user/emails", email=f"furnished-{project['id']}@example.org")
    user_id = (await root.get("/user")).body["id"]
    ids = {
        "id": project["id"],
        "group_id": group["id"],
        "user_id": user_id,
        "name": "main",
        "path": "README.md",
        "ref": "main",
        **await _commits(forge, project["id"]),
        "key": "KEY",
        "tag_name": "v1",
        "link_id": link_id,
        "suffix_path": "assets/links",
        "format": "zip",
        "pipeline_id": pipeline["id"],
        "job_id": over.id,
        **await _of_merge_request(root, f"{url}/merge_requests/{merge_request['iid']}"),
        "check_id": check["id"],
        "delivery_id": await _first(root, f"{url}/external_status_checks/{check['id']}/deliveries"),
        "project_event_id": await _first(root, f"{url}/audit_events"),
        "group_event_id": await _first(root, f"/groups/{group['id']}/audit_events"),
        "email_id": email["id"],
        **await _outside(root, url),
        **await _what_starts_pipelines(root, url),
        **await _access_tokens(root, url, f"/groups/{group['id']}"),
    }
    of_root = {
        "path": "root",
        "key": everywhere["key"],
        "users_id": user_id,
        "runners_id": runner.id,
        "jobs_id": finished.id,
        "personal_access_tokens_id": (await root.get("/personal_access_tokens/self")).body["id"],
    }
    return Furnished(root, ids, of_root, running.token)


async def _commits(forge: Forge, project_id: int) -> dict[str, str]:
    """Return the SHA of the last commit, and of a signed copy of it."""
    main = (await forge.root.get(f"/projects/{project_id}/repository/branches/main")).body
    sha = main["commit"]["id"]
    repository = forge.server.app[SERVICES][REPOSITORIES].open(project_id)
    return {"sha": sha, "signed_sha": signed(repository, sha, "PGP")}


async def _outside(root: Client, url: str) -> dict[str, int]:
    """Create a mirror and an agent."""
    target = {"url": "ssh://git@203.0.113.7/a.git", "auth_method": "ssh_public_key"}
    return {
        "mirror_id": (await _made(root, f"{url}/remote_mirrors", **target))["id"],
        "agent_id": (await _made(root, f"{url}/cluster_agents", name="agent"))["id"],
    }


async def _access_tokens(root: Client, project: str, group: str) -> dict[str, int]:
    return {
        name: (await _made(root, f"{place}/access_tokens", name="bot", scopes=["api"]))["id"]
        for name, place in (("token_id", project), ("group_token_id", group))
    }


async def _artifacts(runner: Runner) -> tuple[RunningJob, RunningJob]:
    """Take the jobs of a new pipeline; return a finished one with artifacts, and a running one."""
    jobs = {job.payload["job_info"]["name"]: job for job in [await runner.job(), await runner.job()]}
    await jobs["finished"].log(b"hello\n")
    uploaded = await jobs["finished"].upload(archive(**{"out.txt": b"out\n"}))
    assert uploaded.status == 201, uploaded
    await jobs["finished"].finish()
    return jobs["finished"], jobs["running"]


async def _first(client: Client, path: str) -> int:
    """Return the id of the first entry of a list."""
    return int((await client.get(path)).body[0]["id"])


async def _made(client: Client, path: str, **values: Any) -> dict[str, Any]:
    answer = await client.post(path, values)
    assert answer.status == 201, (path, answer)
    return dict(answer.body)


async def _commit(client: Client, url: str, branch: str, files: dict[str, str], **values: Any) -> None:
    for path, content in files.items():
        answer: Answer = await client.post(
            f"{url}/repository/files/{path.replace('.', '%2E')}",
            {"branch": branch, "content": content, "commit_message": "Add [ci skip]"} | values,
        )
        assert answer.status == 201, answer
