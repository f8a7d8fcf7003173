"""Runs of a running server by each way that leads to a target: ssh, git, another service."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from tests.api_server.mirrors.repositories import MAIN, BareRepository
from tests.api_server.mirrors.service import Mirrored, new_mirror, with_credentials
from tests.api_server.mirrors.targets import SshTarget, serve_ssh
from tests.support.forge import Forge
from tests.support.git_client import git_url, push_files


async def test_mirrors_by_ssh_with_the_key_that_the_service_made(
    working: Forge, target: BareRepository, tmp_path: Path
) -> None:
    """The public half is given to the target, whose host key is learnt at the first run and pinned from then on."""
    alice = await working.user("alice")
    project = await working.project(alice)
    mirror = await new_mirror(
        working, alice, project["id"], "ssh://x@127.0.0.1:1/x.git", auth_method="ssh_public_key"
    )
    path = f"/projects/{project['id']}/remote_mirrors/{mirror['id']}"
    public_key = (await alice.api.get(f"{path}/public_key")).body["public_key"]
    with serve_ssh(tmp_path / "ssh", authorized=public_key) as server:
        if isinstance(server, str):
            pytest.skip(server)
        url = f"ssh://{server.user}@127.0.0.1:{server.port}{target.path}"
        assert (await alice.api.put(path, {"url": url, "enabled": True})).status == 200
        sha = await push_files(working, tmp_path / "work", project, alice, {"a": "1"})
        async with asyncio.timeout(20):
            while not (shown := (await alice.api.get(path)).body)["last_update_at"]:
                await asyncio.sleep(0.05)
        assert (shown["update_status"], shown["last_error"]) == ("finished", None)
        assert target.refs() == {MAIN: sha}
        expected = subprocess.run(
            ["ssh-keygen", "-lf", "-"],
            input=server.host_key.public,
            text=True,
            capture_output=True,
            check=True,
        ).stdout.split()[1]
        assert shown["host_keys"] == [{"fingerprint_sha256": expected}]


async def test_mirrors_by_ssh_with_a_password(
    working: Forge, target: BareRepository, ssh_by_password: SshTarget
) -> None:
    url = with_credentials(f"ssh://127.0.0.1:{ssh_by_password.port}{target.path}")
    mirrored = await Mirrored.create(working, url)
    commit = mirrored.source.commit("first")
    await mirrored.push({MAIN: commit})
    assert (await mirrored.reaches("finished", "to_retry"))["last_error"] is None
    assert target.refs() == {MAIN: commit}


async def test_mirrors_by_the_git_protocol(working: Forge, target: BareRepository, git_url: str) -> None:
    mirrored = await Mirrored.create(working, git_url)
    commit = mirrored.source.commit("first")
    await mirrored.push({MAIN: commit})
    assert (await mirrored.reaches("finished", "to_retry"))["last_error"] is None
    assert target.refs() == {MAIN: commit}


async def test_another_instance_of_this_service_is_a_target(
    working: Forge, forge: Forge, tmp_path: Path
) -> None:
    """And what it does not take is told in its words."""
    bob = await forge.user("bob")
    theirs = await forge.project(bob)
    url = git_url(forge, theirs["path_with_namespace"], bob)
    mirrored = await Mirrored.create(working, url)
    source = mirrored.source
    first = source.commit("first")
    branches = {f"refs/heads/b{n:02}": first for n in range(20)}
    await mirrored.push({MAIN: first, "refs/tags/v1": source.tag_object("v1", first), **branches})
    assert (await mirrored.reaches("finished", "to_retry"))["last_error"] is None
    listed = await bob.api.get(f"/projects/{theirs['id']}/repository/branches?per_page=100")
    assert {branch["name"] for branch in listed.body} == {"main", *(f"b{n:02}" for n in range(20))}
    await mirrored.push({MAIN: source.commit("amended"), "refs/heads/b00": None})
    await mirrored.hurry()
    shown = await mirrored.reaches("to_retry", "finished", run=2)
    assert "You are not allowed to force push" in shown["last_error"]
    assert shown["last_error"].startswith("Some refs have not been updated on the remote:\n\nrefs/heads/main")
