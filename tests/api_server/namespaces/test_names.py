"""Names of users, groups and projects are never blank; what the trail says when something is called otherwise."""

from typing import Any

import pytest

from tests.support.forge import Forge, new_name

Json = dict[str, Any]
BLANK = (400, {"message": {"name": ["can't be blank"]}})


@pytest.fixture(scope="module")
async def things(forge: Forge) -> dict[str, str]:
    """One of each kind: its path below the API."""
    user, group, project = await forge.user(), await forge.group(), await forge.project()
    return {
        "users": f"/users/{user.id}",
        "groups": f"/groups/{group['id']}",
        "projects": f"/projects/{project['id']}",
    }


@pytest.mark.parametrize("kind", ["users", "groups", "projects"])
async def test_a_name_is_not_made_blank(forge: Forge, things: dict[str, str], kind: str) -> None:
    before = (await forge.root.get(things[kind])).body["name"]
    for blank in ("", " ", "\t\n", "\u2003"):
        answer = await forge.root.put(things[kind], {"name": blank})
        assert (answer.status, answer.body) == BLANK
    assert (await forge.root.get(things[kind])).body["name"] == before
    assert (await forge.root.put(things[kind], {"name": None})).status == 200
    assert (await forge.root.put(things[kind], {"name": " x"})).status == 200


async def test_a_project_is_not_made_with_a_blank_name(forge: Forge) -> None:
    answer = await forge.root.post("/projects", {"name": " ", "path": new_name("project")})
    assert (answer.status, answer.body) == BLANK


async def last_event(forge: Forge, path: str, event_type: str) -> Json:
    (event,) = (await forge.root.get(f"{path}/audit_events?event_type={event_type}&per_page=1")).body
    return dict(event["details"])


@pytest.mark.parametrize(("kind", "path_key"), [("groups", "full_path"), ("projects", "path_with_namespace")])
async def test_an_event_of_a_new_path_stands_under_that_path(
    forge: Forge, things: dict[str, str], kind: str, path_key: str
) -> None:
    old = (await forge.root.get(things[kind])).body[path_key]
    changed = await forge.root.put(things[kind], {"path": new_name("renamed"), "name": new_name("name")})
    new = changed.body[path_key]
    assert (changed.status, new != old) == (200, True)
    for event_type in ("path_updated", "name_updated"):
        told = await last_event(forge, things[kind], f"{kind.removesuffix('s')}_{event_type}")
        assert told["entity_path"] == new
    told = await last_event(forge, things[kind], f"{kind.removesuffix('s')}_path_updated")
    assert (told["from"], told["to"]) == (old, new)


async def test_an_event_of_a_new_user_name_stands_under_that_name(
    forge: Forge, things: dict[str, str]
) -> None:
    name = new_name("renamed")
    assert (await forge.root.put(things["users"], {"username": name})).status == 200
    user_id = things["users"].rpartition("/")[2]
    query = f"entity_type=User&entity_id={user_id}&event_type=user_updated&per_page=1"
    (event,) = (await forge.root.get(f"/audit_events?{query}")).body
    assert event["details"]["entity_path"] == name
