"""Git over HTTP against real git: who may clone and push, and what a push entails."""

import asyncio
from pathlib import Path

from api_server.web.routes import Role
from tests.support.forge import Forge
from tests.support.git_client import Git, git_url, push_files


async def test_what_is_pushed_can_be_cloned(forge: Forge, tmp_path: Path) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    sha = await push_files(forge, tmp_path / "work", project, alice, {"README.md": "hello\n"})
    url = git_url(forge, project["path_with_namespace"], alice)
    await Git(tmp_path)("clone", "--quiet", url, "clone")
    assert await Git(tmp_path / "clone")("rev-parse", "HEAD") == sha
    shown = (await alice.api.get(f"/projects/{project['id']}")).body
    assert (shown["empty_repo"], shown["default_branch"]) == (False, "main")


async def test_the_default_branch_is_protected_when_it_first_appears(forge: Forge, tmp_path: Path) -> None:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    project = await forge.project(alice, members={Role.DEVELOPER: bob})
    await push_files(forge, tmp_path / "alice", project, alice, {"a": "1"})
    git = Git(tmp_path / "bob")
    await Git(tmp_path)("clone", "--quiet", git_url(forge, project["path_with_namespace"], bob), "bob")
    await git.commit(b="2")
    refused = await git("push", "origin", "HEAD:main", fails=True)
    assert "remote: You are not allowed to push code to protected branches on this project." in refused
    await git("push", "--quiet", "origin", "HEAD:topic/b")
    branch = (await bob.api.get(f"/projects/{project['id']}/repository/branches/topic%2Fb")).body
    assert (branch["name"], branch["protected"], branch["can_push"]) == ("topic/b", False, True)


async def test_strangers_and_tokens_that_only_read_are_refused_in_words(forge: Forge, tmp_path: Path) -> None:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    project = await forge.project(alice, members={Role.REPORTER: bob})
    path = project["path_with_namespace"]
    await push_files(forge, tmp_path / "alice", project, alice, {"a": "1"})
    git = Git(tmp_path / "alice")
    assert "could not read Username" in await git("ls-remote", git_url(forge, path), fails=True)
    stranger = await forge.user("carol")
    assert "not found" in await git("ls-remote", git_url(forge, path, stranger), fails=True)
    assert "Authentication failed" in await git(
        "ls-remote", git_url(forge, path, token="flpat-no"), fails=True
    )
    assert "You are not allowed to push code" in await git(
        "push", git_url(forge, path, bob), "main:x", fails=True
    )
    reading = git_url(forge, path, token=await forge.token(alice.id, ("read_repository",)))
    await git("ls-remote", reading)
    assert "needs the scope write_repository" in await git("push", reading, "main:x", fails=True)
    neither = git_url(forge, path, token=await forge.token(alice.id, ("read_user",)))
    assert "needs the scope read_repository" in await git("ls-remote", neither, fails=True)


async def test_guests_do_not_read_the_code_of_private_projects(forge: Forge, tmp_path: Path) -> None:
    """Neither by git nor as files nor through the API; those of public projects like everybody."""
    alice, bob = await forge.user("alice"), await forge.user("bob")
    project = await forge.project(alice, members={Role.GUEST: bob})
    path = project["path_with_namespace"]
    await push_files(forge, tmp_path / "alice", project, alice, {"a": "1"})
    listed = await Git(tmp_path).run("ls-remote", git_url(forge, path, bob))
    assert "403" in listed.output
    raw, tree = f"{forge.base}/{path}/-/raw/main/a", f"/projects/{project['id']}/repository/tree"
    assert [(await bob.api.get(url)).status for url in (raw, tree)] == [404, 403]
    await alice.api.put(f"/projects/{project['id']}", {"visibility": "public"})
    assert await Git(tmp_path)("ls-remote", "--heads", git_url(forge, path, bob))
    assert [(await bob.api.get(url)).status for url in (raw, tree)] == [200, 200]


async def test_everybody_clones_public_projects(forge: Forge, tmp_path: Path) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice, visibility="public")
    await push_files(forge, tmp_path / "alice", project, alice, {"a": "1"})
    await Git(tmp_path)("clone", "--quiet", git_url(forge, project["path_with_namespace"]), "copy")
    assert (tmp_path / "copy" / "a").read_text() == "1"


async def test_a_revoked_token_stops_working_at_once(forge: Forge, tmp_path: Path) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    await push_files(forge, tmp_path / "alice", project, alice, {"a": "1"})
    git, url = Git(tmp_path / "alice"), git_url(forge, project["path_with_namespace"], alice)
    await git("ls-remote", url)
    assert (await alice.api.delete("/personal_access_tokens/self")).status == 204
    assert "Authentication failed" in await git("ls-remote", url, fails=True)


async def test_a_name_that_is_no_text_is_refused_in_words(forge: Forge, tmp_path: Path) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    await push_files(forge, tmp_path / "alice", project, alice, {"a": "1"})
    url = git_url(forge, project["path_with_namespace"], alice)
    for ref in ("refs/heads/a\udcff", "refs/tags/a\udcff"):
        answer = await Git(tmp_path / "alice")("push", url, f"main:{ref}", fails=True)
        assert f"'{ref[:-1]}\\udcff' is not a valid name for a branch or tag." in answer


async def test_nothing_is_pushed_to_an_archived_project(forge: Forge, tmp_path: Path) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    await push_files(forge, tmp_path / "alice", project, alice, {"a": "1"})
    assert (await alice.api.post(f"/projects/{project['id']}/archive")).status == 201
    git = Git(tmp_path / "alice")
    answer = await git("push", git_url(forge, project["path_with_namespace"], alice), "main:x", fails=True)
    assert "The repository is archived" in answer


async def test_clients_that_come_first_at_once_find_one_empty_repository(
    forge: Forge, tmp_path: Path
) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    remote = git_url(forge, project["path_with_namespace"], alice)
    told = await asyncio.gather(*(Git(tmp_path)("ls-remote", remote) for _ in range(4)))
    assert told == [""] * 4


async def test_projects_are_known_by_their_paths_alone(forge: Forge, tmp_path: Path) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    for reference in (project["id"], "9" * 25):
        url = git_url(forge, reference, alice)
        assert "not found" in await Git(tmp_path)("ls-remote", url, fails=True)
