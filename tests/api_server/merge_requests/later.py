"""What tests of merges that are to come do with a merge request and its pipeline."""

from typing import Any

from api_server.merge_requests import merging
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.api_server.merge_requests.conftest import Proposed
from tests.support.ci import ONE_JOB, eventually, happen, run
from tests.support.forge import Forge, Person

ALL_ARE_MADE = """
    SELECT NOT EXISTS (SELECT FROM procrastinate_jobs
        WHERE task_name LIKE 'create_%%_pipeline' AND status IN ('todo', 'doing'))
"""


async def under_way(proposed: Proposed) -> int:
    """The id of the one job of the head's pipeline, where no other one is still to be made."""
    pipeline = await proposed.project.pipeline(ONE_JOB)
    await eventually(lambda: proposed.project.forge.database.value(ALL_ARE_MADE))
    return int((await proposed.project.jobs(pipeline))["build"]["id"])


async def succeed(forge: Forge, job_id: int) -> None:
    await run(forge, job_id)
    await happen(forge, job_id, "success")


async def merged(proposed: Proposed) -> dict[str, Any]:
    """The merge request when it has been merged."""
    return await proposed.until(lambda shown: shown["state"] == "merged")


async def look(proposed: Proposed) -> dict[str, Any]:
    """The merge request after it has been looked at whether it can be merged."""
    await merging.merge_when_ready(
        proposed.project.forge.server.app[SERVICES], (await proposed.shown())["id"]
    )
    return await proposed.shown()


async def maintainer(forge: Forge, proposed: Proposed) -> Person:
    return await forge.new_member(proposed.project.id, Role.MAINTAINER, "maintainer")
