"""Names of refs, and the objects to which they resolve."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pygit2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from api_server.git import ref_moves, references
from api_server.git.errors import (
    AmbiguousNameError,
    BranchMovedError,
    GitError,
    InvalidNameError,
    NameTakenError,
    NotFoundError,
    RepositoryMissingError,
)
from api_server.git.processes import run
from api_server.git.received_push import Push, RefUpdate, applied_updates
from api_server.git.ref_names import MAX_NAME_BYTES, NO_COMMIT, check_branch_name, is_valid_ref_name
from api_server.git.repositories import Repositories, Repository
from tests.api_server.git.conftest import ALICE, PROJECT, commit, move_branch


@pytest.fixture
async def head(repositories: Repositories) -> str:
    return await commit(repositories, "main", None, file=b"1")


@pytest.fixture
def repository(repositories: Repositories, head: str) -> Repository:
    return repositories.open(PROJECT)


async def test_a_branch_comes_before_a_tag_of_its_name(repository: Repository, head: str) -> None:
    other = _child(repository, head)
    await move_branch(repository, "v1", other)
    repository.references.create("refs/tags/v1", head)
    resolved = {
        name: references.resolve(repository, name)
        for name in ("v1", "refs/tags/v1", "refs/heads/v1", head[:7], "HEAD", "nothing", "refs/heads/no")
    }
    assert resolved == {
        "v1": references.Resolved("branch", "v1", other),
        "refs/tags/v1": references.Resolved("tag", "v1", head),
        "refs/heads/v1": references.Resolved("branch", "v1", other),
        head[:7]: references.Resolved("commit", head, head),
        "HEAD": references.Resolved("branch", "main", head),
        "nothing": None,
        "refs/heads/no": None,
    }


async def test_where_either_would_do_one_name_for_both_is_refused(repository: Repository, head: str) -> None:
    await move_branch(repository, "v1", _child(repository, head))
    repository.references.create("refs/tags/v1", head)
    with pytest.raises(AmbiguousNameError, match="'v1' is both a branch and a tag"):
        references.resolve_unambiguous(repository, "v1")
    for name in ("refs/tags/v1", "refs/heads/v1", "main", "HEAD"):
        assert references.resolve_unambiguous(repository, name) == references.resolve(repository, name)
    for name in (head, head[:7], "nothing"):
        assert references.resolve_unambiguous(repository, name) is None


def test_a_full_name_means_just_that_whatever_refs_are_called(repository: Repository, head: str) -> None:
    """Such refs cannot be created any more, but a repository may have old ones."""
    other = _child(repository, head)
    misleading = ["HEAD", "refs/heads/main", "refs/tags/v1", "refs/x", head, head.upper()]
    for name in misleading:
        for kind in ("refs/heads/", "refs/tags/"):
            repository.references.create(kind + name, other)
    found = {name: references.resolve(repository, name) for name in misleading}
    main, commit = (
        references.Resolved("branch", "main", head),
        references.Resolved("commit", head, head, is_fixed=True),
    )
    assert found == {
        "HEAD": main,
        "refs/heads/main": main,
        "refs/tags/v1": None,
        "refs/x": None,
        head: commit,
        head.upper(): commit,
    }
    assert references.resolve(repository, "refs/heads/HEAD") == references.Resolved("branch", "HEAD", other)


@pytest.mark.parametrize("kind", ["refs/heads/", "refs/tags/"])
def test_no_ref_takes_over_the_files_of_a_commit_or_of_head(
    repository: Repository, head: str, kind: str
) -> None:
    for start in ("HEAD", head):
        repository.references.create(f"{kind}{start}/a", _child(repository, head))
        found = references.split_ref_and_path(repository, f"{start}/a/b")
        assert found is not None
        assert (found[0].commit, found[1]) == (head, "a/b")
    assert references.split_ref_and_path(repository, f"{'1' * 40}/a") is None


def test_annotated_tags_have_a_message_and_a_commit(repository: Repository, head: str) -> None:
    tag = repository.create_tag("v2", pygit2.Oid(hex=head), 1, ALICE.signature(), "Second\n")
    repository.references.create("refs/tags/light", head)
    repository.references.create("refs/tags/blob", repository.create_blob(b"no commit"))
    assert references.tags(repository) == [
        references.Tag("light", head, head, None),
        references.Tag("v2", head, str(tag), "Second"),
    ]


NAMES = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4).map("/".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.sets(NAMES, max_size=6), st.sets(NAMES, max_size=4), NAMES)
def test_the_longest_existing_ref_wins(
    repository: Repository, branches: set[str], tags: set[str], text: str
) -> None:
    branches = {name for name in branches if not any(name.startswith(f"{other}/") for other in branches)}
    tags = {name for name in tags if not any(name.startswith(f"{other}/") for other in tags)}
    refs = [f"refs/heads/{name}" for name in branches] + [f"refs/tags/{name}" for name in tags]
    head = str(repository.lookup_reference("refs/heads/main").target)
    for ref in refs:
        repository.references.create(ref, head)
    try:
        fitting = [name for name in branches | tags if f"{text}/".startswith(f"{name}/")]
        expected = max(fitting, key=len, default=None)
        found = references.split_ref_and_path(repository, text)
        if expected is None:
            assert found is None
        else:
            kind = "branch" if expected in branches else "tag"
            path = text[len(expected) :].removeprefix("/")
            assert found == (references.Resolved(kind, expected, head), path)
    finally:
        for ref in refs:
            repository.references.delete(ref)


def test_a_sha_can_stand_before_a_path(repository: Repository, head: str) -> None:
    for sha, is_fixed in ((head, True), (head[:8], False)):
        resolved = references.Resolved("commit", head, head, is_fixed)
        assert references.split_ref_and_path(repository, f"{sha}/a/b") == (resolved, "a/b")
    assert references.split_ref_and_path(repository, "nothing/a/b") is None
    assert references.split_ref_and_path(repository, "") is None


def test_splitting_is_cheap_beside_50_000_refs(repositories: Repositories, head: str) -> None:
    lines = [f"{head} refs/heads/many/{n:05d}\n" for n in range(50_000)]
    heading = "# pack-refs with: peeled fully-peeled sorted \n"
    (repositories.path(PROJECT) / "packed-refs").write_text(heading + "".join(lines))
    repository = repositories.open(PROJECT)
    path = "many/01234/some/folder/with/a/file.txt"
    splitting = min(_seconds(lambda: references.split_ref_and_path(repository, path)) for _ in range(5))
    assert splitting < _seconds(lambda: references.branches(repository)) / 10
    found = references.split_ref_and_path(repository, path)
    assert found is not None
    assert found[1] == "some/folder/with/a/file.txt"
    assert len(references.branches(repository)) == 50_001


def _seconds(work: Callable[[], object]) -> float:
    """Return the seconds of the processor."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


@pytest.mark.parametrize("packed", [False, True])
async def test_branches_are_created_moved_and_deleted(
    repositories: Repositories, repository: Repository, head: str, packed: bool
) -> None:
    await move_branch(repository, "topic/a", head)
    if packed:
        await run(["gc", "--quiet"], repository=repositories.path(PROJECT))
    for taken in ("topic/a", "topic", "topic/a/b"):
        with pytest.raises(NameTakenError):
            await move_branch(repository, taken, head)
    with pytest.raises(GitError):
        await move_branch(repository, "new", "1" * 40)
    for new in (head, None):
        with pytest.raises(BranchMovedError):
            await move_branch(repository, "topic/a", new, expected=_child(repository, head))
        with pytest.raises(BranchMovedError):
            await move_branch(repository, "nothing", new, expected=head)
    await move_branch(repository, "topic/a", _child(repository, head), expected=head)
    await move_branch(repository, "topic/a", None, expected=_child(repository, head))
    assert [branch.name for branch in references.branches(repository)] == ["main"]


async def test_of_several_moves_none_is_made_where_one_is_refused(repository: Repository, head: str) -> None:
    create = RefUpdate(NO_COMMIT, head, "refs/heads/new")
    delete = RefUpdate(_child(repository, head), NO_COMMIT, "refs/heads/main")
    push = Push((create, delete))
    with pytest.raises((BranchMovedError, NameTakenError)):
        await ref_moves.apply_push(Path(repository.path), push)
    assert applied_updates(Path(repository.path), push) == []
    assert references.branches(repository) == [references.Branch("main", head)]


async def test_a_move_is_found_again_behind_later_ones(repository: Repository, head: str) -> None:
    first = Push((RefUpdate(head, _child(repository, head), "refs/heads/main"),))
    await ref_moves.apply_push(Path(repository.path), first)
    await move_branch(repository, "main", head, expected=_child(repository, head))
    assert applied_updates(Path(repository.path), first) == [*first.updates]
    assert applied_updates(Path(repository.path), Push(first.updates)) == []


async def test_the_default_branch_can_only_be_one_that_exists(repository: Repository, head: str) -> None:
    await move_branch(repository, "trunk", head)
    await ref_moves.set_default_branch(repository, "trunk")
    assert references.default_branch(repository) == "trunk"
    with pytest.raises(NotFoundError):
        await ref_moves.set_default_branch(repository, "nothing")


async def test_internal_refs_are_set_and_moved(repository: Repository, head: str) -> None:
    ref = "refs/merge-requests/1/head"
    for target in (head, _child(repository, head)):
        await ref_moves.set_internal_ref(repository, ref, target)
        assert str(repository.lookup_reference(ref).target) == target
    with pytest.raises(ValueError, match="refs/heads/main"):
        await ref_moves.set_internal_ref(repository, "refs/heads/main", head)


async def test_a_new_repository_is_empty_and_a_deleted_one_is_gone(repositories: Repositories) -> None:
    repository = repositories.open(PROJECT)
    assert references.is_empty(repository)
    assert references.default_branch(repository) == "main"
    assert references.resolve(repository, "HEAD") is None
    assert await repositories.size(PROJECT) == 0
    await commit(repositories, "main", None, readme=b"content")
    assert await repositories.size(PROJECT) > 0
    await repositories.delete(PROJECT)
    await repositories.delete(PROJECT)
    assert not repositories.exists(PROJECT)
    with pytest.raises(RepositoryMissingError):
        repositories.open(PROJECT)
    assert list((repositories.root / "unfinished").iterdir()) == []


def _child(repository: Repository, parent: str) -> str:
    tree = repository[parent].peel(pygit2.Tree).id
    signature = ALICE.signature()
    return str(repository.create_commit(None, signature, signature, "child", tree, [parent]))


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
    with pytest.raises((ValueError, KeyError, pygit2.GitError)):  # the reason of the limit
        repository.lookup_reference(f"refs/heads/{name}x")
