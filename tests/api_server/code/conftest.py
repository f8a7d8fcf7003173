"""A repository to read from."""

from pathlib import Path
from typing import Any

import pytest
from pygit2 import Repository

from tests.support.forge import Forge, Person
from tests.support.git_client import Git, git_url


@pytest.fixture
async def alice(forge: Forge) -> Person:
    return await forge.user("alice")


@pytest.fixture
async def project(forge: Forge, alice: Person, tmp_path: Path) -> dict[str, Any]:
    """A project with three commits on `main`, pushed; the last merges `side` into it."""
    made = await forge.project(alice)
    git = Git(tmp_path / "work")
    await git.init()
    await git.commit_files({"README.md": "one\n", "src/a.py": "a\n", "src/deep/b.py": "b\n"}, "First")
    await git("checkout", "--quiet", "-b", "side")
    await git.commit_files({"src/a.py": "a\nmore\n"}, "On the side")
    await git("checkout", "--quiet", "main")
    await git.commit_files({"README.md": "two\nlines\n"}, "Second")
    await git("merge", "--quiet", "--no-ff", "-m", "Merge side", "side")
    url = git_url(forge, made["path_with_namespace"], alice)
    await git("push", "--quiet", url, "main", "side")
    return made | {"url": f"/projects/{made['id']}/repository", "git": git, "remote": url}


@pytest.fixture
def repository(forge: Forge, project: dict[str, Any]) -> Repository:
    """The project's repository, for direct access without the API."""
    return forge.repository(project["id"])
