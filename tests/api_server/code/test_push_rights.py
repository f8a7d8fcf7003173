"""The rights of a push are checked when its pack has arrived: rights that have ended meanwhile do not count, and none
ends while git moves refs."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from api_server.code import ref_queries, refs
from api_server.git.received_push import Push, RefUpdate
from api_server.state import preconditions
from api_server.state.database import Transaction
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.support.forge import Forge, Person
from tests.support.git_client import Git, git_url, push_files
from tests.support.processes import children_of, runs
from tests.support.raw_push import NO_COMMIT, commands, pack_of, processes, send_push, until_git_runs
from tests.support.waiting import until, until_somebody_waits

END_WAITERS = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
CREDENTIALS = (
    "HTTP Basic: Access denied. The password must be a token with the scope read_repository, "
    "write_repository or api."
)


@attrs.frozen
class Pushing:
    """A project of alice's, in which the Developer bob is about to push a new commit to `topic`."""

    forge: Forge
    alice: Person
    bob: Person
    project: dict[str, Any]
    old: str
    new: str
    pack: bytes

    @property
    def path(self) -> str:
        return str(self.project["path_with_namespace"])

    @property
    def url(self) -> str:
        return f"/projects/{self.project['id']}"

    @property
    def repository(self) -> Path:
        return self.forge.repository_path(self.project["id"])

    async def topic(self) -> str | None:
        """Return the commit of the branch."""
        found = await self.alice.api.get(f"{self.url}/repository/branches/topic")
        return found.body["commit"]["id"] if found.status == 200 else None


@pytest.fixture
async def pushing(forge: Forge, tmp_path: Path) -> Pushing:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    project = await forge.project(alice, members={Role.DEVELOPER: bob})
    old = await push_files(forge, tmp_path / "work", project, alice, {"a": "1"})
    git = Git(tmp_path / "work")
    await git(
        "push", "--quiet", git_url(forge, project["path_with_namespace"], alice), "HEAD:refs/heads/topic"
    )
    new = await git.commit(b="2")
    return Pushing(forge, alice, bob, project, old, new, await pack_of(git, "HEAD"))


#: Who takes a right away with which request, its body and status, and the resulting message to a push.
TAKEN: dict[str, tuple[str, str, dict[str, Any] | None, int, str]] = {
    "the token is revoked": ("bob", "DELETE /personal_access_tokens/self", None, 204, CREDENTIALS),
    "the user is blocked": ("root", "POST /users/{bob}/block", None, 201, "Your account has been blocked."),
    "the membership ends": (
        "alice",
        "DELETE {url}/members/{bob}",
        None,
        204,
        "The project you were looking for could not be found or you don't have",
    ),
    "the role is lowered": (
        "alice",
        "PUT {url}/members/{bob}",
        {"access_level": Role.REPORTER},
        200,
        "You are not allowed to push code to this project.",
    ),
    "the branch is protected": (
        "alice",
        "POST {url}/protected_branches",
        {"name": "to*"},
        201,
        "You are not allowed to push code to protected branches on this project.",
    ),
    "the project is archived": (
        "alice", "POST {url}/archive", None, 201, "The repository is archived: nothing can be pushed to it."
    ),
    "the repository is closed": (
        "alice",
        "PUT {url}",
        {"repository_access_level": "disabled"},
        200,
        "The project you were looking for could not be found",
    ),
}  # fmt: skip


async def _take(it: Pushing, what: str) -> None:
    person, request, body, status, _ = TAKEN[what]
    client = {"bob": it.bob.api, "alice": it.alice.api, "root": it.forge.root}[person]
    method, path = request.format(url=it.url, bob=it.bob.id).split()
    await client.request(method, path, json=body, expect=status)


@pytest.mark.parametrize("what", TAKEN)
async def test_a_right_that_ends_while_the_pack_arrives_does_not_count(pushing: Pushing, what: str) -> None:
    sentence = TAKEN[what][-1]
    taken = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield commands((pushing.old, pushing.new, "refs/heads/topic"))
        yield pushing.pack[:50]
        await taken.wait()
        yield pushing.pack[50:]

    sent = asyncio.create_task(send_push(pushing.forge, pushing.path, pushing.bob, body()))
    await until_git_runs(pushing.repository)
    await _take(pushing, what)
    taken.set()
    told = await sent
    assert told.status == 200
    assert sentence in told.text
    assert "ng refs/heads/topic pre-receive hook declined" in told.text
    if what == "the repository is closed":
        await pushing.alice.api.put(pushing.url, {"repository_access_level": "enabled"})
    assert await pushing.topic() == pushing.old


async def test_a_tag_that_is_protected_while_the_pack_arrives_is_not_made(pushing: Pushing) -> None:
    protected = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield commands((NO_COMMIT, pushing.new, "refs/tags/v1"))
        yield pushing.pack[:50]
        await protected.wait()
        yield pushing.pack[50:]

    sent = asyncio.create_task(send_push(pushing.forge, pushing.path, pushing.bob, body()))
    await until_git_runs(pushing.repository)
    assert (await pushing.alice.api.post(f"{pushing.url}/protected_tags", {"name": "v*"})).status == 201
    protected.set()
    told = await sent
    assert "You are not allowed to create this tag as it is protected." in told.text
    assert "ng refs/tags/v1 pre-receive hook declined" in told.text
    assert (await pushing.alice.api.get(f"{pushing.url}/repository/tags")).body == []


@pytest.mark.parametrize("what", TAKEN)
async def test_no_right_ends_between_the_verdict_and_the_last_moved_ref(pushing: Pushing, what: str) -> None:
    """The request that takes a right away waits for git: after its answer, no ref is moved any more."""
    database = pushing.forge.database
    body = commands((pushing.old, pushing.new, "refs/heads/topic")) + pushing.pack
    async with database.transaction() as held:
        await hold_alone(held, f"user:{pushing.bob.id}")
        sent = asyncio.create_task(send_push(pushing.forge, pushing.path, pushing.bob, body))
        await until_somebody_waits(database)  # the push has locked the names that it needs first
        taking = asyncio.create_task(_take(pushing, what))
        await until_somebody_waits(database, count=2)
        git = int(processes(pushing.repository)[0].name)
        os.kill(git, signal.SIGSTOP)
    try:
        await _until_no_hook_of(git)
        await until_somebody_waits(database)
        assert not taking.done()
    finally:
        os.kill(git, signal.SIGCONT)
    told = await sent
    assert "ok refs/heads/topic" in told.text
    await taking
    if what != "the repository is closed":
        assert await pushing.topic() == pushing.new


async def hold_alone(transaction: Transaction, name: str) -> None:
    """Lock the name exclusively, as requests do that take rights away."""
    await preconditions.lock_names(transaction, shared=frozenset(), alone={name})


async def _until_no_hook_of(git: int) -> None:
    """Wait until the hook has received the verdict and ended."""
    await until(lambda: not any(map(runs, children_of(git))))


async def test_a_push_is_refused_where_the_server_cannot_judge_it(pushing: Pushing) -> None:
    """In this case because its connection to the database breaks."""
    body = commands((pushing.old, pushing.new, "refs/heads/topic")) + pushing.pack
    database = pushing.forge.database
    async with database.transaction() as held:
        await hold_alone(held, f"user:{pushing.bob.id}")
        sent = asyncio.create_task(send_push(pushing.forge, pushing.path, pushing.bob, body))
        await until_somebody_waits(database)
        await database.value(END_WAITERS)
        told = await sent
    assert "The server could not judge the push, try again in a minute." in told.text
    assert "ng refs/heads/topic pre-receive hook declined" in told.text
    assert await pushing.topic() == pushing.old
    told = await send_push(pushing.forge, pushing.path, pushing.bob, body)
    assert "ok refs/heads/topic" in told.text


async def test_pushes_and_api_writes_of_one_project_do_not_wait_for_each_others_refs(
    pushing: Pushing,
) -> None:
    """A push that moves many refs takes a while; others are settled meanwhile."""
    database = pushing.forge.database
    async with database.transaction() as moving:
        await preconditions.share(moving, {f"project:{pushing.project['id']}", f"user:{pushing.alice.id}"})
        body = commands((NO_COMMIT, pushing.old, "refs/heads/other")) + pushing.pack
        told = await send_push(pushing.forge, pushing.path, pushing.bob, body)
        assert "ok refs/heads/other" in told.text
        made = {"branch": "third", "ref": "main"}
        assert (await pushing.bob.api.post(f"{pushing.url}/repository/branches", made)).status == 201


async def test_what_git_is_busy_with_is_not_settled_as_a_leftover(pushing: Pushing) -> None:
    """The task that runs every minute would block the process that moves the refs, and is only for abandoned pushes."""
    app, push = pushing.forge.server.app, Push((RefUpdate(NO_COMMIT, pushing.old, "refs/heads/x"),))
    await refs.propose(app[SERVICES], pushing.project["id"], pushing.bob.id, push)
    database = pushing.forge.database
    async with database.transaction() as busy:
        await ref_queries.hold_push(busy, push.id)
        assert push.id not in [left.id for left in await ref_queries.leftovers(database)]
    assert push.id in [left.id for left in await ref_queries.leftovers(database)]
    await refs.settle_push(app[SERVICES], pushing.project["id"], push)
