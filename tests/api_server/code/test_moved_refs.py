"""What the API moves in a repository has its consequences once, wherever the server dies."""

import asyncio
import datetime
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from api_server.code import refs
from api_server.git import ref_moves
from api_server.git.received_push import Push, RefUpdate
from api_server.git.repositories import REPOSITORIES
from api_server.services import Services
from api_server.web.context import SERVICES
from tests.support.forge import Answer, Client, Forge, Person
from tests.support.merge_requests import commit, head_of, new_project, open_merge_request
from tests.support.server_process import server_process

Json = dict[str, Any]
ZEROS = "0" * 40


async def _commit(owner: Person, project: Json) -> Answer:
    return await owner.api.post(
        f"/projects/{project['id']}/repository/files/new.txt",
        {"branch": "main", "commit_message": "Add", "content": "new"},
    )


async def _commit_to_a_new_branch(owner: Person, project: Json) -> Answer:
    return await owner.api.post(
        f"/projects/{project['id']}/repository/files/new.txt",
        {"branch": "new", "start_branch": "main", "commit_message": "Add", "content": "new"},
    )


async def _create_branch(owner: Person, project: Json) -> Answer:
    return await owner.api.post(
        f"/projects/{project['id']}/repository/branches", {"branch": "new", "ref": "main"}
    )


async def _create_tag(owner: Person, project: Json) -> Answer:
    return await owner.api.post(
        f"/projects/{project['id']}/repository/tags", {"tag_name": "v2", "ref": "main", "message": "Two"}
    )


async def _delete_tag(owner: Person, project: Json) -> Answer:
    return await owner.api.delete(f"/projects/{project['id']}/repository/tags/v1")


async def _delete_branch(owner: Person, project: Json) -> Answer:
    return await owner.api.delete(f"/projects/{project['id']}/repository/branches/feature")


async def _merge(owner: Person, project: Json) -> Answer:
    return await owner.api.put(
        f"/projects/{project['id']}/merge_requests/1/merge", {"should_remove_source_branch": True}
    )


WRITES: dict[str, tuple[Callable[[Person, Json], Awaitable[Answer]], list[tuple[str, str]]]] = {
    "commit": (_commit, [("update", "refs/heads/main")]),
    "commit to a new branch": (_commit_to_a_new_branch, [("create", "refs/heads/new")]),
    "create a branch": (_create_branch, [("create", "refs/heads/new")]),
    "delete a branch": (_delete_branch, [("delete", "refs/heads/feature")]),
    "create a tag": (_create_tag, [("create", "refs/tags/v2")]),
    "delete a tag": (_delete_tag, [("delete", "refs/tags/v1")]),
    "merge": (_merge, [("update", "refs/heads/main"), ("delete", "refs/heads/feature")]),
}


@pytest.fixture
def moved(forge: Forge) -> Any:
    """The updates that listeners were told of, by project."""
    told: dict[int, list[RefUpdate]] = {}

    async def listen(_transaction: Any, project: Any, _user_id: Any, updates: Sequence[RefUpdate]) -> None:
        told.setdefault(project.id, []).extend(updates)

    forge.server.app[SERVICES][refs.REF_LISTENERS].append(listen)
    yield told
    forge.server.app[SERVICES][refs.REF_LISTENERS].remove(listen)


@pytest.mark.parametrize("what", WRITES)
async def test_what_git_has_done_before_a_failure_is_settled_later_and_once(
    forge: Forge, what: str, moved: dict[int, list[RefUpdate]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, expected = WRITES[what]
    owner = await forge.user("owner")
    project = await moved_project(forge, owner)
    moved.clear()

    async def fail(*_: Any, **_options: Any) -> None:
        raise RuntimeError("the database is gone")

    with monkeypatch.context() as broken:
        broken.setattr(refs, "settle", fail)
        assert (await write(owner, project)).status == 500
    assert moved.get(project["id"]) is None
    for _ in range(2):
        await _settle(forge)
    updates = moved[project["id"]]
    assert [(update.kind, update.ref) for update in updates] == expected
    repository = forge.repository(project["id"])
    stands = {u.ref: str(repository.lookup_reference(u.ref).target) for u in updates if u.new != ZEROS}
    assert stands == {u.ref: u.new for u in updates if u.new != ZEROS}


@pytest.mark.parametrize("what", WRITES)
async def test_what_git_refuses_leaves_nothing_behind(
    forge: Forge, what: str, moved: dict[int, list[RefUpdate]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, _ = WRITES[what]
    owner = await forge.user("owner")
    project = await moved_project(forge, owner)
    moved.clear()
    propose = refs.propose

    async def propose_too_late(services: Services, project_id: int, user_id: int | None, push: Any) -> None:
        await propose(services, project_id, user_id, push)
        await _let_others_move(forge, project, push.updates)

    monkeypatch.setattr(refs, "propose", propose_too_late)
    assert (await write(owner, project)).status in (400, 409)
    monkeypatch.undo()
    assert (
        await forge.database.value("SELECT count(*) FROM pushes WHERE project_id = %(id)s", id=project["id"])
        == 0
    )
    assert project["id"] not in moved


async def moved_project(forge: Forge, owner: Person) -> Json:
    """With a merge request, and a tag `v1`."""
    project = await new_project(forge, owner)
    await open_merge_request(owner, project)
    await owner.api.post(
        f"/projects/{project['id']}/repository/tags", {"tag_name": "v1", "ref": "main"}, expect=201
    )
    return project


async def _let_others_move(forge: Forge, project: Json, updates: Sequence[RefUpdate]) -> None:
    """The first ref stands elsewhere by now, which nobody is told of."""
    repository = forge.repository(project["id"])
    parent = repository[repository.head.target]
    other = repository.create_commit(None, parent.author, parent.author, "other", parent.tree_id, [parent.id])
    repository.references.create(updates[0].ref, other, force=True)


async def _settle(forge: Forge) -> None:
    await refs.settle_leftovers(forge.server.app[SERVICES], datetime.datetime.now(datetime.UTC))


async def test_half_a_push_is_settled_as_far_as_it_has_come(
    forge: Forge, moved: dict[int, list[RefUpdate]]
) -> None:
    """A push goes on while another server, or this one's task, looks for what was left."""
    owner = await forge.user("owner")
    project = await new_project(forge, owner)
    head = await head_of(owner.api, project, "main")
    moved.clear()
    first, second = (RefUpdate(ZEROS, head, f"refs/heads/{name}") for name in ("a", "b"))
    push = Push((first, second))
    app = forge.server.app
    await refs.propose(app[SERVICES], project["id"], owner.id, push)
    repository = app[SERVICES][REPOSITORIES].path(project["id"])
    for update, so_far in ((first, [first]), (second, [first, second])):
        await ref_moves.apply_push(repository, Push((update,), id=push.id))
        await _settle(forge)
        assert moved[project["id"]] == so_far
    await refs.settle_push(app[SERVICES], project["id"], push)
    assert moved[project["id"]] == [first, second]


#: git that kills who has started it once it has moved refs, when it is told to.
DEADLY_GIT = """#!/bin/sh
PATH={path}
git "$@"
status=$?
case " $* " in *" update-ref "*)
    if [ -e {armed} ]; then rm {armed}; kill -9 $PPID; fi ;;
esac
exit $status
"""


@pytest.mark.parametrize("what", ["commit", "merge"])
async def test_a_server_killed_between_git_and_the_database_goes_on_where_it_was(
    new_database: Any, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    armed, programs = tmp_path / "armed", tmp_path / "programs"
    programs.mkdir()
    (programs / "git").write_text(DEADLY_GIT.format(path=os.environ["PATH"], armed=armed))
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    async with server_process(new_database(), tmp_path / "data") as server:
        root = Person(1, "root", "", server.root)
        project = (await server.root.post("/projects", {"name": "app"})).body
        before = await commit(server.root, project, "main", ".gitlab-ci.yml", content="job: {script: echo}")
        await open_merge_request(root, project)
        armed.touch()
        with pytest.raises(aiohttp.ClientError):
            await WRITES[what][0](root, project)
        assert await asyncio.wait_for(server.wait(), 60) == -9
        await server.start()
        after = await head_of(server.root, project, "main")
        assert after != before
        assert await _pipelines(server.root, project, number=2) == [after, before]
        merge_request = await server.root.get(f"/projects/{project['id']}/merge_requests/1")
        assert merge_request.body["state"] == ("merged" if what == "merge" else "opened")


async def _pipelines(client: Client, project: Json, number: int) -> list[str]:
    """The commits of the pipelines on main, newest first, once the queue has made so many."""
    for _ in range(600):
        made = await client.get(f"/projects/{project['id']}/pipelines?ref=main")
        if len(made.body) >= number:
            break
        await asyncio.sleep(0.1)
    return [pipeline["sha"] for pipeline in made.body]


async def test_a_push_that_moves_nothing_for_seven_hours_is_given_up(
    forge: Forge, moved: dict[int, list[RefUpdate]]
) -> None:
    """Until then it may still be going on."""
    project = await forge.project(initialize_with_readme=True)
    moved.clear()
    app = forge.server.app
    head = await head_of(forge.root, project, "main")
    push = Push((RefUpdate(ZEROS, head, "refs/heads/never"),))
    await refs.propose(app[SERVICES], project["id"], None, push)
    now = datetime.datetime.now(datetime.UTC)
    for hours, waiting in ((6.9, 1), (7.1, 0)):
        await refs.settle_leftovers(app[SERVICES], now + datetime.timedelta(hours=hours))
        count = "SELECT count(*) FROM pushes WHERE id = %(id)s"
        assert await forge.database.value(count, id=push.id) == waiting
    assert project["id"] not in moved
