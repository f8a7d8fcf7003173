"""Which names refs may have."""

import subprocess

import pygit2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from api_server.git import references
from api_server.git.errors import InvalidNameError
from api_server.git.ref_names import MAX_NAME_BYTES, check_branch_name, is_valid_ref_name
from api_server.git.repositories import Repositories
from tests.api_server.git.conftest import PROJECT, commit, move_branch


@given(st.text(st.sampled_from("ab/.@{-~^: \\*?[lock\x7fé"), max_size=12))
@example("a.lock/b")
@example("@")
def test_valid_names_are_those_of_git_check_ref_format(name: str) -> None:
    checked = subprocess.run(["git", "check-ref-format", f"refs/heads/{name}"])
    assert is_valid_ref_name(f"refs/heads/{name}") == (checked.returncode == 0)


@pytest.mark.parametrize(
    "name",
    [
        *("", "a..b", "a b", "a/", "a\0b", "a\nb", "a\x7fb", "\ud800"),
        *("-x", "@", "HEAD", "HEAD/a", "refs/heads/main", "refs/tags/v1", "refs/x"),
        *("a" * 40, "AB" * 20, f"{'0' * 40}/a"),
        *("x" * 251, "ü" * 126, "x/" * 512, "ü/" * 340),
    ],
)
def test_a_new_branch_or_tag_cannot_have_a_misleading_name(name: str) -> None:
    with pytest.raises(InvalidNameError, match="is not a valid name for a branch or tag"):
        check_branch_name(name)


@pytest.mark.parametrize(
    "name",
    ["a" * 39, "a" * 41, "HEADS", "a/HEAD", "refs", "refs-x/y", "heads/main", "x-", "a/-x", "größe", "a@"],
)
def test_other_names_are_taken(name: str) -> None:
    check_branch_name(name)


@pytest.mark.parametrize("unit", ["x" * 249 + "/", "é/"])
async def test_the_longest_name_can_be_made_found_and_removed(repositories: Repositories, unit: str) -> None:
    room = MAX_NAME_BYTES - len("refs/heads/")
    name = unit * (room // len(unit.encode()))
    name += "x" * (room - len(name.encode())) or ""
    name = name.removesuffix("/") + "x" * name.endswith("/")
    head = await commit(repositories, "main", None, file=b"1")
    repository = repositories.open(PROJECT)
    await move_branch(repository, name, head)
    assert references.branch(repository, name) == references.Branch(name, head)
    await move_branch(repository, name, None, expected=head)
    with pytest.raises(InvalidNameError):
        check_branch_name(name + "x")
    with pytest.raises((ValueError, KeyError, pygit2.GitError)):  # what the bound is for
        repository.lookup_reference(f"refs/heads/{name}x")
