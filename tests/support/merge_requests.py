"""Functions that create commits, branches and merge requests through the API."""

import itertools
from typing import Any

from tests.support.forge import Client, Forge, Person

_numbers = itertools.count(1)


async def commit(
    client: Client, project: dict[str, Any], branch: str, path: str | None = None, **values: Any
) -> str:
    """Commit one new file; `start_branch` creates the branch. Return the branch's new SHA."""
    number = next(_numbers)
    wanted = {"branch": branch, "commit_message": f"Change {number}", "content": f"{number}\n"} | values
    name = path or f"file-{number}.txt"
    made = await client.post(f"/projects/{project['id']}/repository/files/{name}", wanted)
    assert made.status == 201, made
    return await head_of(client, project, branch)


async def head_of(client: Client, project: dict[str, Any], branch: str) -> str:
    encoded = branch.replace("/", "%2F")
    answer = await client.get(f"/projects/{project['id']}/repository/branches/{encoded}")
    assert answer.status == 200, answer
    return str(answer.body["commit"]["id"])


async def new_project(forge: Forge, owner: Person, **values: Any) -> dict[str, Any]:
    """Create a project with one commit on `main`."""
    project = await forge.project(owner, **values)
    await commit(owner.api, project, "main", "README.md")
    return project


async def open_merge_request(
    owner: Person,
    project: dict[str, Any],
    source_branch: str = "feature",
    target_branch: str = "main",
    **values: Any,
) -> dict[str, Any]:
    """Create a merge request from a new branch that is one commit ahead of its target."""
    await commit(owner.api, project, source_branch, start_branch=target_branch)
    wanted = {"source_branch": source_branch, "target_branch": target_branch, "title": "Add a feature"}
    made = await owner.api.post(f"/projects/{project['id']}/merge_requests", wanted | values)
    assert made.status == 201, made
    return dict(made.body)
