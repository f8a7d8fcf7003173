"""What goes with a project, a group and a user, and what tells of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import asyncpg
import pytest

from api_server.git.repositories import REPOSITORIES
from api_server.namespaces import removal
from api_server.state.audit_trail import Author
from api_server.state.database import Database, Transaction
from api_server.web.routes import Role
from scripts.bench.filling import fill_jobs as fill
from tests.support.ci import ci_project, eventually
from tests.support.forge import Answer, Forge
from tests.support.purges import Told

Json = dict[str, Any]
#: The three ways in which a project is removed.
WAYS = ("alone", "with its group", "with its owner")


async def _project(forge: Forge, way: str) -> tuple[Json, str]:
    """A project with a repository, and the URL whose DELETE removes it that way."""
    alice = await forge.user("alice")
    if way == "with its group":
        group = await forge.group(alice)
        subgroup = await forge.group(parent_id=group["id"])
        project = await forge.project(alice, namespace_id=subgroup["id"], initialize_with_readme=True)
        return project, f"/groups/{group['id']}"
    project = await forge.project(alice, initialize_with_readme=True)
    return project, f"/projects/{project['id']}" if way == "alone" else f"/users/{alice.id}"


async def _removed(forge: Forge, url: str) -> Answer:
    answer = await forge.root.delete(url)
    assert answer.status in (202, 204), answer
    return answer


async def _events(forge: Forge, kind: str) -> dict[str, tuple[str, str]]:
    """Who has caused which events of this type, and what they say, by the path of their entity."""
    rows = await forge.database.rows(
        "SELECT entity_path, author_name, details::json ->> 'custom_message' AS message FROM audit_events"
        " WHERE event_type = %(kind)s",
        kind=kind,
    )
    return {row.entity_path: (row.author_name, row.message) for row in rows}


@pytest.mark.parametrize("way", WAYS)
async def test_a_project_leaves_an_event_and_nothing_on_disk(forge: Forge, way: str) -> None:
    project, url = await _project(forge, way)
    repositories = forge.server.app[REPOSITORIES]
    assert repositories.exists(project["id"])
    await _removed(forge, url)
    assert (await forge.root.get(f"/projects/{project['id']}")).status == 404
    events = await _events(forge, "project_destroyed")
    assert events[project["path_with_namespace"]] == ("Administrator", "Removed project")

    async def is_gone() -> bool:
        return not repositories.exists(project["id"])

    await eventually(is_gone)


@pytest.mark.parametrize("way", WAYS)
async def test_edges_are_told_of_a_removed_project(with_edge: tuple[Forge, Told], way: str) -> None:
    forge, told = with_edge
    project, url = await _project(forge, way)
    assert await told.by(forge.root.delete(url)) == {f"project-{project['id']}"}


async def test_a_group_goes_with_all_that_is_below_it_and_each_leaves_an_event(forge: Forge) -> None:
    group = await forge.group()
    middle = await forge.group(parent_id=group["id"])
    lowest = await forge.group(parent_id=middle["id"])
    projects = [await forge.project(namespace_id=place["id"]) for place in (group, middle, lowest)]
    beside = await forge.group()
    await _removed(forge, f"/groups/{group['id']}")
    groups, gone = await _events(forge, "group_destroyed"), await _events(forge, "project_destroyed")
    assert {group["full_path"], middle["full_path"], lowest["full_path"]} <= groups.keys()
    assert {project["path_with_namespace"] for project in projects} <= gone.keys()
    assert beside["full_path"] not in groups
    for place in (group, middle, lowest):
        assert (await forge.root.get(f"/groups/{place['id']}")).status == 404


async def test_what_is_removed_twice_at_once_leaves_one_event(forge: Forge) -> None:
    group = await forge.group()
    project = await forge.project(namespace_id=group["id"])
    urls = [f"/projects/{project['id']}", f"/groups/{group['id']}", f"/groups/{group['id']}"]
    answers = await asyncio.gather(*(forge.root.delete(url) for url in urls))
    assert {answer.status for answer in answers} <= {202, 404}
    count = "SELECT count(*) FROM audit_events WHERE event_type = %(kind)s AND entity_id = %(id)s"
    for kind, gone in (("project_destroyed", project), ("group_destroyed", group)):
        assert await forge.database.value(count, kind=kind, id=gone["id"]) == 1


async def test_nothing_is_left_behind_in_a_group_that_is_removed_meanwhile(forge: Forge) -> None:
    """A project or subgroup that is made while its group is removed is not made, or removed with it."""
    for number in range(5):
        group = await forge.group()
        made = [
            forge.root.post("/projects", {"path": f"p{number}", "namespace_id": group["id"]}),
            forge.root.post("/groups", {"name": "g", "path": f"g{number}", "parent_id": group["id"]}),
        ]
        project, subgroup, removed = await asyncio.gather(*made, forge.root.delete(f"/groups/{group['id']}"))
        assert removed.status == 202
        for answer, kind in ((project, "project_destroyed"), (subgroup, "group_destroyed")):
            assert answer.status in (201, 404), answer
            if answer.status == 201:
                path = answer.body.get("path_with_namespace") or answer.body["full_path"]
                assert path in await _events(forge, kind)


async def test_a_users_memberships_end_with_her_and_so_does_what_she_has_invited_to(forge: Forge) -> None:
    alice = await forge.user("alice")
    group, project = await forge.group(alice), await forge.project(members={Role.MAINTAINER: alice})
    for url in (f"/groups/{group['id']}", f"/projects/{project['id']}"):
        invited = await alice.api.post(
            f"{url}/invitations", {"email": f"{alice.username}@example.net", "access_level": 30}
        )
        assert invited.body == {"status": "success"}
    await _removed(forge, f"/users/{alice.id}")
    for kind, place in (("Group", group), ("Project", project)):
        rows = await forge.database.rows(
            "SELECT author_name, target_details, details::json ->> 'custom_message' AS message FROM audit_events"
            " WHERE event_type = 'member_destroyed' AND entity_type = %(kind)s AND entity_id = %(id)s ORDER BY id",
            kind=kind,
            id=place["id"],
        )
        assert [tuple(row) for row in rows] == [
            ("Administrator", alice.username.title(), "Membership destroyed"),
            ("Administrator", f"{alice.username}@example.net", "Invitation destroyed"),
        ]
        invitations = await forge.root.get(f"/{kind.lower()}s/{place['id']}/invitations")
        assert invitations.body == []


#: Rows of a project that are there without it.
LEFT = """
    SELECT (SELECT count(*) FROM pipelines WHERE project_id = %(id)s)
        + (SELECT count(*) FROM jobs WHERE project_id = %(id)s)
        + (SELECT count(*) FROM job_artifacts WHERE project_id = %(id)s)
"""
OF_JOBS = """
    INSERT INTO job_artifacts (project_id, job_id, file_type, file_format, filename, size, object_key, sha256)
    SELECT project_id, id, 'archive', 'zip', 'artifacts.zip', 1, 'none/' || id, '' FROM jobs
    WHERE project_id = %(id)s AND status = 'success'
"""


async def _full_project(forge: Forge, jobs: int) -> int:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    async with forge.database.transaction() as transaction:
        await fill(transaction, project_id=project["id"], user_id=alice.id, runner_id=None, jobs=jobs)
        await transaction.run(OF_JOBS, id=project["id"])
    return int(project["id"])


async def test_a_removal_waits_for_none_of_the_jobs_that_have_finished(forge: Forge) -> None:
    """However many they are: they go after the project."""
    project_id = await _full_project(forge, 2 * removal.STEP_JOBS)
    finished = (
        "SELECT id FROM jobs WHERE project_id = $1 AND status = 'success' ORDER BY id DESC LIMIT 1 FOR UPDATE"
    )
    holder = await asyncpg.connect(forge.settings.database_url)
    try:
        async with holder.transaction():
            job_id = await holder.fetchval(finished, project_id)
            assert (await forge.root.delete(f"/projects/{project_id}")).status == 202
            for path in ("", f"/jobs/{job_id}", f"/jobs/{job_id}/trace", f"/jobs/{job_id}/artifacts"):
                assert (await forge.root.get(f"/projects/{project_id}{path}")).status == 404
    finally:
        await holder.close()

    async def nothing_is_left() -> bool:
        return not await forge.database.value(LEFT, id=project_id)

    await eventually(nothing_is_left)


async def test_a_running_job_ends_with_its_project(forge: Forge) -> None:
    project = await ci_project(forge)
    job = await project.job_in("running")
    async with forge.database.transaction() as transaction:
        await removal.remove_project(transaction, project.id, Author(id=-1, name="Nobody"))
        assert not await transaction.value("SELECT count(*) FROM jobs WHERE id = %(id)s", id=job["id"])


class _Ending(Exception):
    """As when the process is killed."""


class _Mortal:
    """A database that is there for so many transactions."""

    def __init__(self, database: Database, transactions: int) -> None:
        self.database, self.left = database, transactions

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self.database.transaction() as transaction:
            yield transaction
            self.left -= 1
            if self.left < 0:
                raise _Ending


@pytest.mark.parametrize("transactions", [0, 1, 3])
async def test_a_removal_that_was_killed_goes_on(forge: Forge, transactions: int) -> None:
    project_id = await _full_project(forge, 3 * removal.STEP_JOBS + 200)
    before = await forge.database.value(LEFT, id=project_id)
    await removal.remove_pipelines(forge.database, project_id)
    assert await forge.database.value(LEFT, id=project_id) == before, "the project is there"
    async with forge.database.transaction() as transaction:
        await transaction.run("DELETE FROM projects WHERE id = %(id)s", id=project_id)
    with pytest.raises(_Ending):
        await removal.remove_pipelines(cast("Database", _Mortal(forge.database, transactions)), project_id)
    left = await forge.database.value(LEFT, id=project_id)
    assert 0 < left <= before
    assert (left < before) == (transactions > 0)
    await removal.remove_pipelines(forge.database, project_id)
    assert await forge.database.value(LEFT, id=project_id) == 0
