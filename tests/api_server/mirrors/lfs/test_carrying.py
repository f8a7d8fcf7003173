"""Mirror runs carry LFS objects before they push refs."""

import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest

from api_server.git.errors import GitError
from api_server.git.remote.access import Remote
from api_server.mirrors import lfs
from api_server.mirrors.lfs import LfsTransfer
from tests.api_server.code.lfs.client import LfsClient, oid_of
from tests.api_server.code.lfs.test_git_lfs import clone
from tests.api_server.mirrors.lfs.servers import ONE, THREE, TWO, LargeFiles, LfsServer
from tests.api_server.mirrors.repositories import BareRepository
from tests.api_server.mirrors.service import new_mirror, with_credentials
from tests.api_server.mirrors.targets import Http
from tests.support.ci import eventually
from tests.support.forge import Forge
from tests.support.git_client import git_url


async def test_objects_arrive_before_the_refs_that_point_to_them(
    files: LargeFiles, server: LfsServer, target: BareRepository, http_target: Http
) -> None:
    await files.client.bring(ONE)
    await files.client.bring(TWO)
    first = files.commit(ONE)
    sha = files.commit(TWO, first)
    shown = await files.push(sha, run=1)
    assert (shown["update_status"], shown["last_error"]) == ("finished", None)
    assert target.refs() == {"refs/heads/main": sha}
    assert server.objects == {oid_of(ONE): ONE, oid_of(TWO): TWO}
    assert server.verified == set(server.objects)
    requests = http_target[0].requests
    last_object = max(number for number, request in enumerate(requests) if "/info/lfs/" in request)
    first_push = min(
        number for number, request in enumerate(requests) if "POST /target.git/git-rec" in request
    )
    assert last_object < first_push


async def test_only_what_the_target_has_not_got_yet_is_asked_about(
    files: LargeFiles, server: LfsServer
) -> None:
    for content in (ONE, TWO, THREE):
        await files.client.bring(content)
    first = files.commit(ONE)
    await files.push(first, run=1)
    second = files.commit(TWO, first)
    await files.push(second, run=2)
    await files.sync(run=3)
    await files.push(first, run=4, ref="refs/heads/copy")
    assert server.asked == [[oid_of(ONE)], [oid_of(TWO)]]


async def test_what_is_not_mirrored_is_not_carried(
    working: Forge, http_target: Http, server: LfsServer
) -> None:
    files = await LargeFiles.create(working, with_credentials(http_target[1]), mirror_branch_regex="main")
    await files.client.bring(ONE)
    await files.client.bring(b"secret")
    secret = files.commit(b"secret")
    await files.mirrored.push({"refs/heads/secret": secret})
    await files.ended(run=1)
    await files.push(files.commit(ONE), run=2)
    assert server.objects == {oid_of(ONE): ONE}


async def test_a_project_without_objects_costs_no_request_and_no_search(
    files: LargeFiles, server: LfsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_arguments: object) -> Any:
        raise AssertionError("searched")

    monkeypatch.setattr(lfs, "pointers_in", never)
    shown = await files.push(files.commit(ONE), run=1)
    assert shown["update_status"] == "finished"
    assert server.requests == []


async def test_objects_that_come_after_their_pointers_are_carried_by_the_next_run(
    files: LargeFiles, server: LfsServer
) -> None:
    first = files.commit(ONE)
    await files.push(first, run=1)
    await files.client.bring(TWO)
    await files.push(files.commit(TWO, first), run=2)
    assert set(server.objects) == {oid_of(TWO)}
    await files.client.bring(ONE)
    await files.sync(run=3)
    assert set(server.objects) == {oid_of(ONE), oid_of(TWO)}
    assert server.asked == [[oid_of(TWO)], [oid_of(ONE)]]


async def test_another_target_gets_everything_again(
    files: LargeFiles, http_target: Http, server: LfsServer
) -> None:
    await files.client.bring(ONE)
    await files.push(files.commit(ONE), run=1)
    server.objects.clear()
    url = http_target[1].removesuffix(".git")
    (http_target[0].root / "target").symlink_to(http_target[0].root / "target.git")
    answer = await files.mirrored.owner.api.put(files.mirrored.path, {"url": with_credentials(url)})
    assert answer.status == 200
    await files.sync(run=3)
    assert server.objects == {oid_of(ONE): ONE}


async def test_objects_reach_a_second_instance_of_this_service(
    working: Forge, forge: Forge, tmp_path: Path
) -> None:
    bob = await forge.user("bob")
    there = await forge.project(bob)
    url = git_url(forge, there["path_with_namespace"], bob)
    files = await LargeFiles.create(working, url)
    await files.client.bring(ONE)
    await files.client.bring(TWO)
    shown = await files.push(files.commit(TWO, files.commit(ONE)), run=1)
    assert (shown["update_status"], shown["last_error"]) == ("finished", None)
    arrived = LfsClient.of(forge, there, bob)
    for content in (ONE, TWO):
        assert (await arrived.request("GET", f"/objects/{oid_of(content)}")).body == content


@pytest.mark.skipif(shutil.which("git-lfs") is None, reason="git-lfs is not installed")
async def test_what_git_lfs_pushes_here_git_lfs_fetches_from_the_mirror(
    working: Forge, forge: Forge, tmp_path: Path
) -> None:
    alice, bob = await working.user("alice"), await forge.user("bob")
    here, there = await working.project(alice), await forge.project(bob)
    target = git_url(forge, there["path_with_namespace"], bob)
    mirror = await new_mirror(working, alice, here["id"], target, enabled=True)
    git = await clone(working, tmp_path / "work", here["path_with_namespace"], alice)
    await git("lfs", "track", "*.bin")
    await git.commit_files({"a.bin": TWO})
    await git("push", "--quiet", "origin", "main")

    async def finished() -> bool:
        path = f"/projects/{here['id']}/remote_mirrors/{mirror['id']}"
        return bool((await alice.api.get(path)).body["update_status"] == "finished")

    assert await eventually(finished)
    copy = await clone(forge, tmp_path / "copy", there["path_with_namespace"], bob)
    await copy("pull", "--quiet", "origin", "main")
    assert (tmp_path / "copy" / "a.bin").read_bytes() == TWO


async def test_a_mirror_over_ssh_carries_no_objects(files: LargeFiles, server: LfsServer) -> None:
    carry = LfsTransfer(files.mirrored.forge.server.app, await files.mirrored.found(), 10)
    assert await carry(Remote("ssh://git@example.org/x.git"), {"0" * 40}, set()) is None
    assert server.requests == []


async def test_a_search_that_fails_is_made_again_from_the_first_commit(
    files: LargeFiles, server: LfsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_arguments: object) -> Any:
        raise GitError("log", 128, "broken")

    await files.client.bring(ONE)
    await files.client.bring(TWO)
    first = files.commit(ONE)
    await files.push(first, run=1)
    second = files.commit(TWO, first)
    with monkeypatch.context() as patched:
        patched.setattr(lfs, "pointers_in", broken)
        assert (await files.push(second, run=2))["update_status"] == "finished"
    assert set(server.objects) == {oid_of(ONE)}
    await files.sync(run=3)
    assert set(server.objects) == {oid_of(ONE), oid_of(TWO)}


async def test_a_run_that_has_been_superseded_records_nothing(files: LargeFiles, server: LfsServer) -> None:
    await files.client.bring(ONE)
    mirror = await files.mirrored.found()
    carry = LfsTransfer(files.mirrored.forge.server.app, attrs.evolve(mirror, run=mirror.run + 1), 10)
    assert await carry(Remote("http://example.org/x.git"), {files.commit(ONE)}, set()) is None
    assert not (await files.mirrored.row()).lfs_followed
