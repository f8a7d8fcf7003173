"""Functions for commits and for the statuses that other systems give them."""

from typing import Any

from tests.support.ci import CiProject
from tests.support.forge import Answer, new_name
from tests.support.merge_requests import commit


async def a_commit(project: CiProject, branch: str = "") -> str:
    """Return the SHA of a commit without a pipeline: a new one on `branch`, or on a branch of its own."""
    values = {} if branch else {"start_branch": "main"}
    return await commit(project.forge.root, {"id": project.id}, branch or new_name("outside"), **values)


async def say(project: CiProject, sha: str, state: str, *, by: Any = None, **values: Any) -> Answer:
    return await (by or project.api).post(f"{project.url}/statuses/{sha}", {"state": state, **values})


async def said(project: CiProject, sha: str, query: str = "") -> list[dict[str, Any]]:
    answer = await project.api.get(f"{project.url}/repository/commits/{sha}/statuses?{query}")
    assert answer.status == 200, answer
    return list(answer.body)


async def pipeline_of(project: CiProject, status: dict[str, Any]) -> dict[str, Any]:
    return dict((await project.api.get(f"{project.url}/pipelines/{status['pipeline_id']}")).body)
