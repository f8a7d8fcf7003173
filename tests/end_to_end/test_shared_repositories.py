"""Two servers on one data directory and one database: pushes, packs and merges from both at once lose nothing."""

import asyncio
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from api_server.git.upkeep import Style, pack
from tests.support.forge import ROOT_TOKEN
from tests.support.git_client import Git
from tests.support.server_process import ServerProcess, server_process

ROUNDS = 3
PUSHERS = 2  # of each server


async def test_what_two_servers_do_in_one_repository_at_once_is_all_there(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    url, data = new_database(), tmp_path / "data"
    settings = {"git_processes_each": 20}
    async with server_process(url, data, **settings) as one, server_process(url, data, **settings) as two:
        made = await one.root.post("/projects", {"name": "shared", "initialize_with_readme": True})
        assert made.status == 201, made
        project = made.body["id"]
        (repository,) = (data / "repositories").glob(f"[0-9]*/{project}.git")
        pushing = [
            _push(server, tmp_path / f"clone{number}-{pusher}")
            for number, server in enumerate((one, two))
            for pusher in range(PUSHERS)
        ]
        over = asyncio.Event()
        packing = asyncio.create_task(_pack(repository, over))
        merging = asyncio.gather(
            *(_merge(server, project, name) for server, name in ((one, "a"), (two, "b")))
        )
        pushed: dict[str, str] = dict(chain.from_iterable(await asyncio.gather(*pushing)))
        merged = await merging
        over.set()
        assert await packing > 0
        refs = await _refs(repository)
        assert {ref: refs.get(ref) for ref in pushed} == pushed
        git = Git(tmp_path)
        for commit in chain.from_iterable(merged):
            await git(
                "--git-dir", str(repository), "merge-base", "--is-ancestor", commit, refs["refs/heads/main"]
            )
        told = await git(
            "--git-dir", str(repository), "fsck", "--full", "--strict", "--no-dangling", "--no-progress"
        )
        assert told == ""
        for server in (one, two):
            shown = await server.root.get(f"/projects/{project}/repository/branches?per_page=100")
            assert {branch["commit"]["id"] for branch in shown.body} >= set(pushed.values())


async def _push(server: ServerProcess, folder: Path) -> list[tuple[str, str]]:
    """Clones, and pushes a new commit to a branch of its own and to one that is new each time; where each ref is."""
    address = server.base.replace("://", f"://root:{ROOT_TOKEN}@")
    parent = Git(folder.parent)
    await parent("clone", "--quiet", f"{address}/root/shared.git", str(folder))
    git, pushed = Git(folder), {}
    for number in range(ROUNDS):
        commit = await git.commit(**{f"{folder.name}.txt": f"{number}"})
        for branch in (folder.name, f"{folder.name}-{number}"):
            await _pushed(git, branch)
            pushed[f"refs/heads/{branch}"] = commit
    return list(pushed.items())


async def _pushed(git: Git, branch: str) -> None:
    """git itself refuses a push, and keeps nothing of it, where a packing git has just removed the folder that it was
    to move an object into; one that packs without a break makes that likely. Who is refused so comes again."""
    for _ in range(10):
        ran = await git.run("push", "--quiet", "origin", f"HEAD:refs/heads/{branch}")
        if "unable to migrate objects" not in ran.output:
            break
    assert ran.code == 0, ran.output


async def _merge(server: ServerProcess, project: int, name: str) -> list[str]:
    """Merge requests from new branches into the branch that the other server merges into as well; their commits."""
    commits = []
    for number in range(ROUNDS):
        branch = f"topic-{name}-{number}"
        body = {"branch": branch, "start_branch": "main", "content": branch, "commit_message": branch}
        await _until(201, lambda body=body, branch=branch: server.root.post(
            f"/projects/{project}/repository/files/{branch}", body
        ))  # fmt: skip
        asked = {"source_branch": branch, "target_branch": "main", "title": branch}
        request = await _until(
            201, lambda asked=asked: server.root.post(f"/projects/{project}/merge_requests", asked)
        )
        path = f"/projects/{project}/merge_requests/{request['iid']}/merge"
        merged = await _until(200, lambda path=path: server.root.put(path, {}))
        commits.append(merged["sha"])
    return commits


async def _until(status: int, ask: Callable[[], Any]) -> Any:
    """What is answered in the end: who meets the other server is told so (409 and the like), and comes again."""
    async with asyncio.timeout(60):
        while (answer := await ask()).status != status:
            assert answer.status in (400, 405, 406, 409, 422, 503), answer
            await asyncio.sleep(0.05)
    return answer.body


async def _pack(repository: Path, over: asyncio.Event) -> int:
    """Packs over and over, as the servers do now and then; how often."""
    count = 0
    while not over.is_set():
        count += await pack(repository, Style(), 0.0)
        await asyncio.sleep(0.05)
    return count


async def _refs(repository: Path) -> dict[str, str]:
    told = await Git(repository)("for-each-ref", "--format=%(refname) %(objectname)")
    return dict(line.split(" ", 1) for line in told.splitlines())
