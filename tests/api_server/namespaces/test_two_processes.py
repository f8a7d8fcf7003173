"""Projects that go away while others look: in this process and in another one."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from api_server.git.repositories import REPOSITORIES
from api_server.web.context import SERVICES
from tests.support.forge import Answer, Client, Forge

WAYS: dict[str, Callable[[Client, str], Awaitable[Answer]]] = {
    "show": lambda client, url: client.get(url),
    "change": lambda client, url: client.put(url, {"description": "changed"}),
    "archive": lambda client, url: client.post(f"{url}/archive"),
    "transfer": lambda client, url: client.put(f"{url}/transfer", {"namespace": "root"}),
    "delete": lambda client, url: client.delete(url),
    "protect": lambda client, url: client.post(f"{url}/protected_branches", {"name": "x"}),
    "branches": lambda client, url: client.get(f"{url}/repository/branches"),
    "commit": lambda client, url: client.post(
        f"{url}/repository/files/new", {"branch": "main", "content": "", "commit_message": "Add"}
    ),
    "protected": lambda client, url: client.get(f"{url}/protected_branches/main"),
    "add a member": lambda client, url: client.post(
        f"{url}/members", {"username": "root", "access_level": 40}
    ),
    "invite": lambda client, url: client.post(
        f"{url}/invitations", {"email": "a@example.org", "access_level": 30}
    ),
}


@pytest.mark.parametrize("way", WAYS)
async def test_what_another_process_has_deleted_is_404_while_it_is_remembered(
    two_forges: tuple[Forge, Forge], way: str
) -> None:
    one, other = two_forges
    project = await one.project(initialize_with_readme=True)
    url = f"/projects/{project['id']}"
    assert (await other.root.get(url)).status == 200
    assert (await one.root.delete(url)).status == 202
    repositories = one.server.app[SERVICES][REPOSITORIES]
    await repositories.delete(project["id"])
    answer = await WAYS[way](other.root, url)
    assert answer.status == 404, answer
    assert answer.body["message"].startswith("404 ")
    assert not repositories.exists(project["id"]), "nothing of it comes back"


async def test_a_change_by_another_process_is_seen_within_a_second(two_forges: tuple[Forge, Forge]) -> None:
    one, other = two_forges
    stranger = await one.user("stranger")
    project = await one.project(visibility="public")
    url = f"{other.base}/api/v4/projects/{project['id']}"
    assert (await stranger.api.get(url)).status == 200
    await one.root.put(f"/projects/{project['id']}", {"visibility": "private"})
    await asyncio.sleep(1)
    assert (await stranger.api.get(url)).status == 404


@pytest.mark.parametrize("kind", ["projects", "groups"])
async def test_gets_that_race_a_delete_show_it_whole_or_not_at_all(
    two_forges: tuple[Forge, Forge], kind: str
) -> None:
    for _ in range(3):
        made = await (two_forges[0].project() if kind == "projects" else two_forges[0].group())
        url = f"/{kind}/{made['id']}"
        reads = [forge.root.get(url) for forge in two_forges for _ in range(20)]
        deletes = [two_forges[0].root.delete(url)]
        answers = await asyncio.gather(*reads[:20], *deletes, *reads[20:])
        gone = {"message": f"404 {'Project' if kind == 'projects' else 'Group'} Not Found"}
        for answer in answers[:20] + answers[21:]:
            if answer.status == 200:
                assert answer.body["id"] == made["id"]
            else:
                assert answer.status == 404
                assert answer.body in (gone, {"message": "404 Not found"})
        assert answers[20].status == 202
