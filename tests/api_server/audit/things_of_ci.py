"""Agents, variables, what starts pipelines, pipelines, jobs and runners that a change in the table needs: a part of
`Things`."""

from tests.api_server.audit.making import Making
from tests.support.ci import CiProject, ci_project, give_log
from tests.support.forge import new_name
from tests.support.runner import Runner, RunningJob, a_runner

ARTIFACTS = "build:\n  script: echo\n  artifacts: {paths: [out.txt]}\n"


class ThingsOfCi(Making):
    async def make_agent(self) -> int:
        return int((await self.post("/projects/{project}/cluster_agents", name="agent"))["id"])

    async def make_variable(self) -> str:
        return str((await self.post("/projects/{project}/variables", key="KEY", value="x"))["key"])

    async def make_group_variable(self) -> str:
        return str((await self.post("/groups/{group}/variables", key="KEY", value="x"))["key"])

    async def make_trigger(self) -> int:
        return int((await self.post("/projects/{project}/triggers", description="nightly"))["id"])

    async def make_instance_variable(self) -> str:
        key = new_name("KEY").replace("-", "_")
        return str((await self.post("/admin/ci/variables", key=key, value="x"))["key"])

    async def make_schedule(self) -> int:
        path, values = "/projects/{project}/pipeline_schedules", {"ref": "main", "cron": "0 4 * * *"}
        return int((await self.post(path, description="nightly", **values))["id"])

    async def make_schedule_variable(self) -> str:
        path = "/projects/{project}/pipeline_schedules/{schedule}/variables"
        return str((await self.post(path, key="KEY", value="x"))["key"])

    async def make_pipelines(self) -> CiProject:
        return await ci_project(self.forge)

    async def make_ci(self) -> int:
        return int((await self.get("pipelines")).id)

    async def make_topic(self) -> str:
        """A second branch."""
        await (await self.get("pipelines")).commit("", path="NEWS.md", branch="topic")
        return "topic"

    async def make_pipeline(self) -> int:
        return int((await (await self.get("pipelines")).pipeline())["id"])

    async def make_finished_job(self) -> int:
        """With a log."""
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

    async def make_runner(self) -> int:
        return int((await self.get("a_runner")).id)

    async def make_runner_token(self) -> str:
        return str((await self.get("a_runner")).token)

    async def make_other_project(self) -> int:
        return int((await self.forge.project())["id"])

    async def make_assigned_runner(self) -> int:
        await self.post("/projects/{other_project}/runners", runner_id="{runner}")
        return int(await self.get("runner"))

    async def make_registration(self) -> str:
        return str((await self.post("/projects/{project}/runners/reset_registration_token"))["token"])
