"""The commits that changed a folder's entries last, and those that a file's lines come from."""

from collections.abc import AsyncIterator

import pytest

from api_server.git import file_history
from api_server.git.errors import GitError, GitTimeoutError
from api_server.git.file_history import BlamedCommit, BlamedLines, blame, last_commits
from api_server.git.new_commits import FileAction
from api_server.git.repositories import Repositories, Repository
from tests.api_server.git.conftest import ALICE, PROJECT, commit_files, new_commit

#: git writes it in quotation marks where it may, and it looks like a commit to whoever reads lines.
ODD = "odd/\u00fc \u2603\t//" + "1" * 40


@pytest.fixture
def repository(repositories: Repositories) -> Repository:
    return repositories.open(PROJECT)


async def create(repository: Repository, parent: str | None, message: str, **files: str) -> str:
    """A commit with new files; `__` in their names stands for a slash."""
    actions = [FileAction("create", name.replace("__", "/"), text.encode()) for name, text in files.items()]
    return await commit_files(repository, "main", actions, new_commit(message), parent)


async def update(repository: Repository, parent: str, message: str, path: str, text: str) -> str:
    actions = [FileAction("update", path, text.encode())]
    return await commit_files(repository, "main", actions, new_commit(message), parent)


async def test_each_entry_has_the_commit_that_changed_it_last(repository: Repository) -> None:
    first = await create(repository, None, "First", a="1", b="1", src__x="1", src__deep__y="1")
    second = await update(repository, first, "Second", "src/deep/y", "2")
    third = await update(repository, second, "Third", "a", "2")
    assert await last_commits(repository, third, "", ["a", "b", "src"]) == {
        "": third,
        "a": third,
        "b": first,
        "src": second,
    }
    assert await last_commits(repository, third, "src", ["x", "deep"]) == {
        "": second,
        "x": first,
        "deep": second,
    }
    assert await last_commits(repository, second, "", ["a", "b"]) == {"": second, "a": first, "b": first}


async def test_names_of_any_kind_are_found(repository: Repository) -> None:
    name = ODD.replace("//", "/")
    actions = [FileAction("create", name, b"1"), FileAction("create", ":(glob)*", b"1")]
    first = await commit_files(repository, "main", actions, new_commit("//" + "2" * 40), None)
    assert await last_commits(repository, first, "", ["odd", ":(glob)*"]) == {
        "": first,
        "odd": first,
        ":(glob)*": first,
    }
    folder, _, last = name.rpartition("/")
    assert await last_commits(repository, first, folder, [last]) == {"": first, last: first}
    (blamed,) = await blame(repository, first, name, 1, 1)
    assert blamed.commit.title == "//" + "2" * 40


async def test_a_merge_counts_where_it_changed_something_itself(repository: Repository) -> None:
    base = await create(repository, None, "Base", a="1", b="1", c="1")
    left = await update(repository, base, "Left", "a", "left")
    right = _commit_on(repository, [base], {"a": b"right", "b": b"right"})
    merge = _commit_on(repository, [left, right], {"a": b"both", "b": b"right"})
    assert await last_commits(repository, merge, "", ["a", "b", "c"]) == {
        "": merge,
        "a": merge,
        "b": right,
        "c": base,
    }


def _commit_on(repository: Repository, parents: list[str], files: dict[str, bytes]) -> str:
    tree = repository.TreeBuilder(repository[parents[0]].tree)
    for name, content in files.items():
        tree.insert(name, repository.create_blob(content), 0o100644)
    signature = ALICE.signature()
    return str(repository.create_commit(None, signature, signature, "Merge", tree.write(), parents))


async def test_what_is_not_found_in_time_is_left_out(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await create(repository, None, "First", a="1", b="1")
    second = await update(repository, first, "Second", "a", "2")
    monkeypatch.setattr(file_history, "_MOST_PATHS", 1)
    assert await last_commits(repository, second, "", ["a", "b"]) == {"": second, "a": second}

    async def changes(*_: object) -> AsyncIterator[tuple[str, bytes]]:
        yield second, b"a"
        raise GitTimeoutError("log", None, "")

    monkeypatch.setattr(file_history, "_changes", changes)
    assert await last_commits(repository, second, "", ["a", "b"]) == {"": second, "a": second}


async def test_lines_have_the_commits_that_they_come_from(repository: Repository) -> None:
    first = await create(repository, None, "First\n\nwith more", a="one\ntwo\nthree\n\tfour\n")
    second = await update(repository, first, "Second", "a", "one\n2\nthree\n\tfour\n5 \u00e9")
    old = BlamedCommit(first, "Alice", ALICE.time, "First")
    new = BlamedCommit(second, "Alice", ALICE.time, "Second", (first, "a"))
    assert await blame(repository, second, "a", 1, 5) == [
        BlamedLines(old, 1, 1),
        BlamedLines(new, 2, 1),
        BlamedLines(old, 3, 2),
        BlamedLines(new, 5, 1),
    ]
    assert await blame(repository, second, "a", 3, 2) == [BlamedLines(old, 3, 2)]


async def test_no_lines_of_what_is_not_there(repository: Repository) -> None:
    first = await create(repository, None, "First", a="1\n")
    for path, line in (("b", 1), ("a", 2)):
        with pytest.raises(GitError):
            await blame(repository, first, path, line, 1)
