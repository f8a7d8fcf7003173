"""`POST .../sync`: one run however often it is asked for, not before its time, and not of what is disabled."""

import pytest

from tests.api_server.mirrors.service import URL, database, new_mirror, queued
from tests.support.forge import Forge


async def test_sync_queues_one_run_however_often_it_is_asked_for(answering: Forge) -> None:
    alice = await answering.user("alice")
    project = await answering.project(alice)
    mirror = await new_mirror(answering, alice, project["id"], URL, enabled=True)
    path = f"/projects/{project['id']}/remote_mirrors/{mirror['id']}"
    for _ in range(3):
        answer = await alice.api.post(f"{path}/sync")
        assert (answer.status, answer.body) == (204, "")
    (job,) = await queued(answering, mirror["id"])
    assert job.scheduled_at is None


@pytest.mark.parametrize(("only_protected", "seconds"), [(False, 300), (True, 60)])
async def test_a_run_soon_after_the_last_one_waits_a_full_back_off(
    answering: Forge, only_protected: bool, seconds: int
) -> None:
    """A.6."""
    alice = await answering.user("alice")
    project = await answering.project(alice)
    mirror = await new_mirror(
        answering, alice, project["id"], URL, enabled=True, only_protected_branches=only_protected
    )
    async with database(answering).transaction() as transaction:
        await transaction.row(
            "UPDATE remote_mirrors SET last_update_started_at = %(now)s - interval '50 seconds' WHERE id = %(id)s",
            id=mirror["id"],
        )
    path = f"/projects/{project['id']}/remote_mirrors/{mirror['id']}"
    assert (await alice.api.post(f"{path}/sync")).status == 204
    waits = await database(answering).value(
        "SELECT extract(epoch FROM scheduled_at - %(now)s) FROM procrastinate_jobs WHERE lock = %(lock)s",
        lock=f"remote_mirror:{mirror['id']}",
    )
    assert seconds - 5 < waits <= seconds


@pytest.mark.parametrize("why", ["the mirror", "the repository"])
async def test_what_is_disabled_is_not_synced(answering: Forge, why: str) -> None:
    alice = await answering.user("alice")
    project = await answering.project(alice)
    mirror = await new_mirror(answering, alice, project["id"], URL, enabled=why == "the repository")
    if why == "the repository":
        values = {"repository_access_level": "disabled"}
        assert (await alice.api.put(f"/projects/{project['id']}", values)).status == 200
    path = f"/projects/{project['id']}/remote_mirrors/{mirror['id']}"
    assert (await alice.api.get(path)).body["enabled"] is False
    answer = await alice.api.post(f"{path}/sync")
    text = "Cannot proceed with the push mirroring. Please verify your mirror configuration."
    assert (answer.status, answer.body) == (400, {"message": text})


async def test_a_mirror_that_has_changed_since_it_was_seen_is_not_deleted(answering: Forge) -> None:
    project = await answering.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    path += f"/{(await answering.root.post(path, {'url': URL})).body['id']}"
    stale = {"If-Unmodified-Since": "Thu, 01 Jan 1998 00:00:00 GMT"}
    answer = await answering.root.delete(path, headers=stale)
    assert (answer.status, answer.body) == (412, {"message": "412 Precondition Failed"})
    fresh = {"If-Unmodified-Since": "Fri, 01 Jan 2100 00:00:00 GMT"}
    assert (await answering.root.delete(path, headers=fresh)).status == 204
    assert (await answering.root.get(path)).status == 404
