"""Child pipelines whose files are artifacts of jobs in their parent pipeline (`trigger:include:artifact`)."""

from typing import Any

import attrs
import pytest

from api_server.ci.config.yaml_text import MAX_BYTES
from tests.support.ci import CiProject, ci_project
from tests.support.forge import Forge
from tests.support.runner import Runner, RunningJob, a_runner
from tests.support.waiting import until
from tests.support.zips import archive

PARENT = """
stages: [build, child]
generate: {stage: build, script: x, artifacts: {paths: [ci/], access: none}}
child:
  stage: child
  variables: {WHERE: ci}
  trigger:
    strategy: depend
    include: INCLUDE
"""
ONE = "[{artifact: $WHERE/child.yml, job: generate}]"


@attrs.frozen
class Scene:
    project: CiProject
    runner: Runner

    async def child(self, *, include: str = ONE, **files: bytes) -> dict[str, Any] | None:
        """Run the parent, whose job uploads these files. Return the child pipeline, once the bridge has begun."""
        pipeline = await self.project.pipeline(PARENT.replace("INCLUDE", include))
        job = await self.runner.job()
        if files:
            assert (await job.upload(archive(**files))).status == 201
        await job.finish()

        async def bridge() -> dict[str, Any] | None:
            found = (await self.project.bridges(pipeline))["child"]
            return found if found["status"] in ("running", "failed", "success") else None

        started: dict[str, Any] = (await until(bridge))["downstream_pipeline"]
        return started and dict(
            (await self.project.api.get(f"{self.project.url}/pipelines/{started['id']}")).body
        )

    async def refusal(self, **values: Any) -> str:
        """Return the reason why the child pipeline, and therefore its bridge, has failed."""
        child = await self.child(**values)
        assert child is not None
        reason = await self.project.forge.database.value(
            "SELECT jobs.failure_reason FROM pipelines JOIN jobs ON jobs.id = pipelines.source_job_id "
            "WHERE pipelines.id = %(id)s",
            id=child["id"],
        )
        assert (child["status"], reason) == ("failed", "downstream_pipeline_creation_failed")
        return str(child["yaml_errors"])


@pytest.fixture
async def scene(forge: Forge) -> Scene:
    project = await ci_project(forge)
    return Scene(project, await a_runner(forge, project_id=project.id))


async def test_a_child_pipeline_is_made_from_what_a_job_before_has_made(scene: Scene) -> None:
    await scene.project.commit(".shared: {script: shared}", path="shared.yml")
    child = await scene.child(
        ci__child=b"",
        **{"ci__child.yml": b"include: shared.yml\ninner: {extends: .shared, variables: {A: $WHERE}}"},
    )
    assert child is not None
    job: RunningJob = await scene.runner.job()
    (script, *_) = job.payload["steps"]
    assert (job.payload["job_info"]["name"], script["script"]) == ("inner", ["shared"])
    assert job.variables["A"] == "ci"
    assert child["source"] == "parent_pipeline"


async def test_several_files_and_what_they_include_themselves(scene: Scene) -> None:
    await scene.project.commit("include: {artifact: ci/more.yml, job: generate}", path="local.yml")
    files = {
        "ci__child.yml": b"spec: {inputs: {name: {}}}\n---\n'$[[ inputs.name ]]': {script: x}",
        "ci__more.yml": b"of more: {script: x}",
    }
    child = await scene.child(
        include="[{artifact: ci/child.yml, job: generate, inputs: {name: given}}, local.yml]", **files
    )
    assert child is not None
    assert sorted(await scene.project.jobs(child)) == ["given", "of more"]


@pytest.mark.parametrize(
    ("include", "files", "said"),
    [
        (ONE, {}, "Job `generate` not found in parent pipeline or does not have artifacts!"),
        (
            "[{artifact: ci/child.yml, job: nobody}]",
            {"ci__child.yml": b"a: {script: x}"},
            "Job `nobody` not found in parent pipeline or does not have artifacts!",
        ),
        (
            ONE,
            {"ci__other.yml": b"a: {script: x}"},
            "Path `ci/child.yml` does not exist inside the `generate` artifacts archive!",
        ),
        (ONE, {"ci__child.yml": b" "}, "File `ci/child.yml` is empty!"),
        (
            ONE,
            {"ci__child.yml": b"#" * (MAX_BYTES * 2)},
            "The file `ci/child.yml` in job `generate` is too large: 2 MiB exceeds maximum of 1 MiB",
        ),
        (
            "[{artifact: ci/child.txt, job: generate}]",
            {"ci__child.txt": b"a: {script: x}"},
            "Included file `ci/child.txt` does not have YAML extension!",
        ),
        (
            ONE,
            {"ci__child.yml": b"include: {artifact: ci/child.yml, job: generate}\na: {script: x}"},
            "Artifact file `ci/child.yml` includes itself: ci/child.yml -> ci/child.yml",
        ),
        (ONE, {"ci__child.yml": b"a: {script: x, tag: y}"}, "jobs:a config contains unknown keys: tag"),
        (ONE, {"ci__child.yml": b"a: ["}, "`ci/child.yml`: Invalid configuration format: did not find"),
    ],
)
async def test_what_cannot_be_included_is_said_of_the_child_pipeline(
    scene: Scene, include: str, files: dict[str, bytes], said: str
) -> None:
    assert (await scene.refusal(include=include, **files)).startswith(said)


async def test_expired_artifacts_are_gone(forge: Forge, scene: Scene) -> None:
    pipeline = await scene.project.pipeline(
        PARENT.replace("INCLUDE", ONE).replace("variables", "when: manual\n  variables")
    )
    job = await scene.runner.job()
    await job.upload(archive(**{"ci__child.yml": b"a: {script: x}"}))
    await job.finish()
    await forge.execute(
        "UPDATE job_artifacts SET expire_at = now() - interval '1 s' WHERE job_id = %(id)s", id=job.id
    )
    bridge = (await scene.project.bridges(pipeline))["child"]
    await scene.project.api.post(f"{scene.project.url}/jobs/{bridge['id']}/play", expect=200)

    async def child() -> Any:
        return (await scene.project.bridges(pipeline))["child"]["downstream_pipeline"]

    started = await until(child)
    shown = (await scene.project.api.get(f"{scene.project.url}/pipelines/{started['id']}")).body
    assert shown["yaml_errors"] == "Job `generate` not found in parent pipeline or does not have artifacts!"
