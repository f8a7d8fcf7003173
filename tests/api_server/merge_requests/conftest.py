"""Alice and a project of hers with one commit on `main`; a merge request in a project with jobs."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from tests.support.ci import ONE_JOB, CiProject, ci_project
from tests.support.forge import Forge, Person
from tests.support.merge_requests import new_project


@pytest.fixture
async def alice(forge: Forge) -> Person:
    return await forge.user("alice")


@pytest.fixture
async def project(forge: Forge, alice: Person) -> dict[str, Any]:
    return await new_project(forge, alice)


@attrs.frozen
class Proposed:
    """A merge request of `topic` into `main`."""

    project: CiProject
    iid: int

    @property
    def url(self) -> str:
        return f"{self.project.url}/merge_requests/{self.iid}"

    async def shown(self) -> dict[str, Any]:
        answer = await self.project.forge.root.get(self.url, expect=200)
        return dict(answer.body)

    async def until(self, condition: Callable[[Any], object]) -> dict[str, Any]:
        return dict(await self.project.forge.root.until(self.url, condition))

    async def demand(self, **settings: bool) -> None:
        wanted = {"only_allow_merge_if_pipeline_succeeds": True} | settings
        assert (await self.project.forge.root.put(self.project.url, wanted)).status == 200


@pytest.fixture
async def proposed(forge: Forge) -> Proposed:
    project = await ci_project(forge)
    await project.commit(ONE_JOB)
    project.texts["topic"] = ONE_JOB
    wanted = {"source_branch": "topic", "target_branch": "main", "title": "Add a job"}
    made = await project.api.post(f"{project.url}/merge_requests", wanted, expect=201)
    return Proposed(project, made.body["iid"])
