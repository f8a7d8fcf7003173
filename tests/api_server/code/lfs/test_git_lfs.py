"""The real git-lfs against the service."""

import shutil
from pathlib import Path

import pytest

from api_server.web.routes import Role
from tests.api_server.code.lfs.client import pointer_to
from tests.support.forge import Forge, Person
from tests.support.git_client import Git, git_url

pytestmark = pytest.mark.skipif(shutil.which("git-lfs") is None, reason="git-lfs is not installed")

CONTENT = bytes(range(256)) * 400


async def clone(forge: Forge, folder: Path, path: str, person: Person | None) -> Git:
    """A clone whose large files (*.bin) git-lfs manages."""
    git = Git(folder)
    folder.mkdir(parents=True)
    await git("init", "--quiet", "--initial-branch=main")
    await git("lfs", "install", "--local")
    await git("remote", "add", "origin", git_url(forge, path, person))
    return git


async def test_large_files_are_pushed_and_fetched(forge: Forge, tmp_path: Path) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    path = project["path_with_namespace"]
    git = await clone(forge, tmp_path / "work", path, alice)
    await git("lfs", "track", "*.bin")
    await git.commit_files({"a.bin": CONTENT, "sub/b.bin": b"small"})
    await git("push", "--quiet", "origin", "main")
    url = f"/projects/{project['id']}/repository/files/a%2Ebin/raw?ref=main"
    assert (await alice.api.get(url)).body == pointer_to(CONTENT)
    copy = await clone(forge, tmp_path / "copy", path, alice)
    await copy("pull", "--quiet", "origin", "main")
    assert (tmp_path / "copy" / "a.bin").read_bytes() == CONTENT
    assert (tmp_path / "copy" / "sub" / "b.bin").read_bytes() == b"small"
    await copy("lfs", "fsck")


async def test_no_word_about_locks_at_any_push(forge: Forge, tmp_path: Path) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    git = await clone(forge, tmp_path / "work", project["path_with_namespace"], alice)
    await git("lfs", "track", "*.bin")
    for content in (b"1", b"2"):
        await git.commit_files({"a.bin": content})
        assert "lock" not in (await git("push", "origin", "main")).lower()


async def test_public_projects_are_cloned_by_everybody_and_pushed_to_by_developers(
    forge: Forge, tmp_path: Path
) -> None:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    project = await forge.project(alice, visibility="public", members={Role.REPORTER: bob})
    path = project["path_with_namespace"]
    git = await clone(forge, tmp_path / "alice", path, alice)
    await git("lfs", "track", "*.bin")
    await git.commit_files({"a.bin": CONTENT})
    await git("push", "--quiet", "origin", "main")
    anybody = await clone(forge, tmp_path / "anybody", path, None)
    await anybody("pull", "--quiet", "origin", "main")
    assert (tmp_path / "anybody" / "a.bin").read_bytes() == CONTENT
    bobs = await clone(forge, tmp_path / "bob", path, bob)
    await bobs("pull", "--quiet", "origin", "main")
    await bobs.commit_files({"b.bin": b"bob's"})
    refused = await bobs("push", "origin", "HEAD:topic", fails=True)
    assert "You are not allowed to push code to this project." in refused


async def test_pointers_are_taken_without_their_objects_which_may_follow(
    forge: Forge, tmp_path: Path
) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    path = project["path_with_namespace"]
    git = await clone(forge, tmp_path / "work", path, alice)
    await git("lfs", "track", "*.bin")
    await git.commit_files({"a.bin": CONTENT})
    await git("push", "--quiet", "--no-verify", "origin", "main")
    copy = await clone(forge, tmp_path / "copy", path, alice)
    assert "The object does not exist." in await copy("pull", "origin", "main", fails=True)
    await git("lfs", "push", "--all", "origin")
    again = await clone(forge, tmp_path / "again", path, alice)
    await again("pull", "--quiet", "origin", "main")
    assert (tmp_path / "again" / "a.bin").read_bytes() == CONTENT
