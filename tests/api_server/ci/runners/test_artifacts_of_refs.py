"""Artifacts by the name of a branch or tag: of that one and of no other of its name."""

import io
import zipfile
from typing import Any

import orjson
import pytest

from api_server.git.repositories import Repository
from tests.support.ci import CiProject
from tests.support.forge import Forge
from tests.support.runner import Runner

CONFIG = "build: {script: 'true', artifacts: {paths: [out]}}\n"
AMBIGUOUS = {
    "message": "400 Bad request - Ref is ambiguous. 'topic' is both a branch and a tag: "
    "say refs/heads/topic or refs/tags/topic."
}


@pytest.fixture
def repository(forge: Forge, project: CiProject) -> Repository:
    return forge.repository(project.id)


def _packed(content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as writer:
        writer.writestr("out", content)
    return packed.getvalue()


async def _both(project: CiProject, ref: str) -> list[tuple[int, Any]]:
    """What the two routes answer."""
    found = []
    for rest in ("download", "raw/out"):
        url = f"{project.forge.base}/api/v4{project.url}/jobs/artifacts/{ref}/{rest}?job=build"
        headers = {"PRIVATE-TOKEN": project.developer.token}
        async with project.forge.session.get(url, headers=headers) as answer:
            body = await answer.read()
            found.append((answer.status, body if answer.status == 200 else orjson.loads(body)))
    return found


async def test_a_tag_does_not_take_the_place_of_a_branch(
    project: CiProject, runner: Runner, repository: Repository
) -> None:
    """Neither while it is there nor when it has been removed again."""
    expected = {}
    await project.commit(CONFIG)
    for kind, content in (("heads", b"branch"), ("tags", b"the tag's")):
        if kind == "tags":
            head = repository.lookup_reference("refs/heads/topic").target
            repository.references.create("refs/tags/topic", head)
        await project.api.post(f"{project.url}/pipeline", {"ref": f"refs/{kind}/topic"}, expect=201)
        job = await runner.job()
        packed = _packed(content)  # once: it holds the time
        await job.upload(packed)
        await job.finish()
        expected[kind] = [(200, packed), (200, content)]
    assert await _both(project, "topic") == [(400, AMBIGUOUS)] * 2
    assert await _both(project, "refs/heads/topic") == expected["heads"]
    assert await _both(project, "refs/tags/topic") == expected["tags"]
    repository.references.delete("refs/tags/topic")
    assert await _both(project, "topic") == expected["heads"]
    repository.references.delete("refs/heads/topic")
    assert await _both(project, "topic") == expected["heads"]
