"""What git and libgit2 do not take from this machine, nor from what somebody has pushed."""

from pathlib import Path

import pytest

from api_server.git.commits import History, history
from api_server.git.processes import run
from api_server.git.repositories import Repositories
from tests.api_server.git.conftest import PROJECT, commit


async def test_hooks_that_lie_in_a_repository_do_not_run(repositories: Repositories) -> None:
    hook = repositories.path(PROJECT) / "hooks" / "reference-transaction"
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    sha = await commit(repositories, "main", None, readme=b"moved all the same")
    assert str(repositories.open(PROJECT).lookup_reference("refs/heads/main").target) == sha


async def test_a_commit_that_was_replaced_shows_what_it_was(repositories: Repositories) -> None:
    first = await commit(repositories, "main", None, file=b"first")
    second = await commit(repositories, "main", first, other=b"second")
    repositories.open(PROJECT).references.create(f"refs/replace/{first}", second)
    files = await run(["ls-tree", "--name-only", first], repository=repositories.path(PROJECT))
    assert files.stdout == b"file\n"


async def test_a_path_is_no_pattern(repositories: Repositories) -> None:
    sha = await commit(repositories, "main", None, file=b"content")
    repository = repositories.open(PROJECT)
    assert await history(repository, History(start=sha, path="file"), skip=0, limit=9) == [sha]
    for pattern in ("f*", ":(glob)f*", ":/file"):
        assert await history(repository, History(start=sha, path=pattern), skip=0, limit=9) == []


@pytest.mark.parametrize("place", ["HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"])
async def test_configuration_of_the_machine_is_not_read(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[forgelet]\n\tseen = yes\n"
    (tmp_path / "git").mkdir()
    for file in (".gitconfig", "git/config", "config"):
        (tmp_path / file).write_text(text)
    monkeypatch.setenv(place, str(tmp_path / "config" if place.startswith("GIT") else tmp_path))
    assert (await run(["config", "--get", "forgelet.seen"], accept=(0, 1))).stdout == b""
