"""`DELETE /projects/:id/artifacts`: all but the newest artifacts of each branch and tag go, in the background."""

import asyncio
from typing import Any

import gitlab

from api_server.ci.jobs import upkeep
from api_server.git.repositories import REPOSITORIES
from api_server.web.context import SERVICES
from tests.support.ci import ONE_JOB, CiProject, ci_project, eventually
from tests.support.folders import files_below
from tests.support.forge import Forge
from tests.support.runner import Runner, a_runner


class Scene:
    """A project whose pipelines have one job each, which leaves an archive and a log."""

    def __init__(self, project: CiProject, runner: Runner) -> None:
        self.project, self.runner = project, runner

    async def run(self, state: str = "success", branch: str = "topic") -> int:
        """The id of the job of a new pipeline."""
        await self.project.pipeline(ONE_JOB, branch=branch)
        return await self.work(state)

    async def run_on_tag(self, tag: str) -> int:
        root, url = self.project.forge.root, self.project.url
        await root.post(f"{url}/repository/tags", {"tag_name": tag, "ref": "topic"}, expect=201)
        assert (await root.post(f"{url}/pipeline", {"ref": tag})).status == 201
        return await self.work("success")

    async def work(self, state: str) -> int:
        job = await self.runner.job()
        await job.log(b"a log")
        assert (await job.upload(b"an archive", expire_in="never")).status == 201
        await job.finish(state)
        return job.id

    async def kept(self) -> set[int]:
        """Ids of the jobs that have an archive."""
        jobs: list[dict[str, Any]] = (
            await self.project.api.get(f"{self.project.url}/jobs?per_page=100")
        ).body
        return {job["id"] for job in jobs if "artifacts_file" in job}


async def a_scene(forge: Forge) -> Scene:
    project = await ci_project(forge)
    return Scene(project, await a_runner(forge, project_id=project.id))


async def test_what_is_not_the_newest_of_its_ref_goes(forge: Forge) -> None:
    scene = await a_scene(forge)
    project = scene.project
    old, last_success = await scene.run(), await scene.run()
    failed = [await scene.run("failed") for _ in range(2)]
    of_deleted_branch = await scene.run(branch="gone")
    never_succeeded = [await scene.run("failed", branch="other") for _ in range(2)]
    of_tag = await scene.run_on_tag("v1")
    everything = {old, last_success, *failed, of_deleted_branch, *never_succeeded, of_tag}
    assert await scene.kept() == everything
    assert (await forge.root.delete(f"{project.url}/repository/branches/gone")).status == 204
    await upkeep.delete_all_but_the_newest(
        forge.database, forge.server.app[SERVICES][REPOSITORIES], project.id, batch=3
    )
    assert await scene.kept() == {last_success, failed[1], never_succeeded[1], of_tag}
    shown = (await project.api.get(f"{project.url}/jobs/{old}")).body
    assert ([one["file_type"] for one in shown["artifacts"]], shown["artifacts_expire_at"]) == (
        ["trace"],
        None,
    )


async def test_python_gitlab_has_them_deleted_with_their_bytes(forge: Forge) -> None:
    scene = await a_scene(forge)
    old, newest = await scene.run(), await scene.run()
    objects = forge.settings.data_dir / "objects" / "projects" / str(scene.project.id) / "jobs" / str(old)

    def use() -> None:
        api = gitlab.Gitlab(forge.base, private_token=forge.root.token)
        api.projects.get(scene.project.id).artifacts.delete()

    async def is_done() -> bool:
        return await scene.kept() == {newest} and len(files_below(objects)) == 1  # the log

    log = await scene.project.api.get(f"{scene.project.url}/jobs/{old}/trace")
    await asyncio.to_thread(use)
    await eventually(is_done)
    assert (await scene.project.api.get(f"{scene.project.url}/jobs/{old}/trace")).body == log.body == "a log"


async def test_the_answer_and_who_may(forge: Forge) -> None:
    project = await ci_project(forge)
    url = f"{project.url}/artifacts"
    refused = await project.api.delete(url)
    assert (refused.status, refused.body) == (403, {"message": "403 Forbidden"})
    answer = await forge.root.delete(url)
    assert (answer.status, answer.body) == (202, {"message": "202 Accepted"})
    assert (await forge.root.post(f"{project.url}/archive")).status == 201
    assert (await forge.root.delete(url)).status == 403
    await upkeep.delete_all_but_the_newest(
        forge.database, forge.server.app[SERVICES][REPOSITORIES], 999_999_999
    )
