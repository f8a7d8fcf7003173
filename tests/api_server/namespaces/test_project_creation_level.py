"""Who makes projects in a group, and moves some into it, by its `project_creation_level`."""

import pytest

from tests.support.deviations import Deviations
from tests.support.forge import Forge, new_name

ROLES = ("stranger", "reporter", "developer", "maintainer", "owner")
LEVELS = {
    "developer": {"developer", "maintainer", "owner", "administrator"},
    "maintainer": {"maintainer", "owner", "administrator"},
    "owner": {"owner", "administrator"},
    "administrator": {"administrator"},
    "noone": set(),
}


async def test_projects_are_made_by_those_whom_the_group_lets(forge: Forge) -> None:
    group = await forge.group()
    people = await forge.people(group["id"], "groups")
    clients = {role: people[role].api for role in ROLES} | {"administrator": forge.root}
    deviations = Deviations()
    for level, allowed in LEVELS.items():
        changed = await forge.root.put(f"/groups/{group['id']}", {"project_creation_level": level})
        assert (changed.status, changed.body["project_creation_level"]) == (200, level)
        for role, client in clients.items():
            made = await client.post("/projects", {"name": new_name("made"), "namespace_id": group["id"]})
            with deviations.of(f"{level}: {role}"):
                assert made.status == (201 if role in allowed else 403), made.body
    assert not deviations, deviations.report


async def test_a_group_is_made_with_a_level_and_takes_no_others_projects(forge: Forge) -> None:
    group = await forge.group(project_creation_level="noone")
    assert group["project_creation_level"] == "noone"
    assert (await forge.group())["project_creation_level"] == "developer"
    project = await forge.project()
    moved = await forge.root.put(f"/projects/{project['id']}/transfer", {"namespace": group["id"]})
    assert moved.status == 400
    refused = await forge.root.put(f"/groups/{group['id']}", {"project_creation_level": "everybody"})
    assert refused.body == {"error": "project_creation_level does not have a valid value"}


@pytest.mark.parametrize("says", [None, False, True])
async def test_merge_requests_begin_with_what_the_project_says_of_their_branch(
    forge: Forge, says: bool | None
) -> None:
    project = await forge.project(initialize_with_readme=True, remove_source_branch_after_merge=True)
    where = f"/projects/{project['id']}"
    await forge.root.post(f"{where}/repository/branches", {"branch": "topic", "ref": "main"})
    new = {"source_branch": "topic", "target_branch": "main", "title": "a", "remove_source_branch": says}
    made = await forge.root.post(f"{where}/merge_requests", new)
    assert (made.status, made.body["force_remove_source_branch"]) == (201, says is not False)
