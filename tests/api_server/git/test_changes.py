"""Commits that the server creates, commits as it shows them, and the commit from which an entry or a line comes."""

import asyncio
from collections.abc import AsyncIterator

import pygit2
import pytest

from api_server.git import commits, file_history, new_commits, references, trees
from api_server.git.commits import Person
from api_server.git.errors import (
    BranchMovedError,
    GitError,
    GitTimeoutError,
    InvalidActionError,
    InvalidNameError,
    MergeConflictError,
    NotFoundError,
    NothingToMergeError,
    RepositoryExistsError,
)
from api_server.git.file_history import BlamedCommit, BlamedLines, blame, last_commits
from api_server.git.new_commits import FileAction, NewCommit
from api_server.git.processes import run
from api_server.git.repositories import Repositories, Repository
from tests.api_server.git.conftest import (
    ALICE,
    PROJECT,
    commit,
    commit_files,
    move_branch,
    new_commit,
)


async def act(repositories: Repositories, expected: str | None, *actions: FileAction) -> str:
    return await commit_files(repositories.open(PROJECT), "main", actions, new_commit(), expected)


async def contents(repositories: Repositories, sha: str) -> dict[str, bytes]:
    repository = repositories.open(PROJECT)
    nodes, _, _ = await trees.open_folder(repository, sha, recursive=True).page(0, 100, 100)
    return {node.path: repository[node.id].peel(pygit2.Blob).data for node in nodes if node.kind == "blob"}


async def test_file_actions_make_one_commit(repositories: Repositories) -> None:
    first = await commit(repositories, "main", None, a=b"a", b=b"b", c=b"c")
    second = await act(
        repositories,
        first,
        FileAction("update", "a", b"A"),
        FileAction("delete", "b"),
        FileAction("move", "folder/c", previous_path="c"),
        FileAction("create", "b/now/a/folder", b"new", executable=True),
    )
    assert await contents(repositories, second) == {"a": b"A", "folder/c": b"c", "b/now/a/folder": b"new"}
    repository = repositories.open(PROJECT)
    assert references.branch(repository, "main") == references.Branch("main", second)
    entry = trees.find_entry(repository, second, "b/now/a/folder")
    assert entry is not None
    assert (entry.kind, entry.size) == ("executable", 3)


async def test_a_folder_ends_with_its_last_file(repositories: Repositories) -> None:
    first = await commit_files(
        repositories.open(PROJECT),
        "main",
        [FileAction("create", path, b"") for path in ("a-b", "a/b", "a/c/d", "a0")],
        new_commit(),
        None,
    )
    for path in ("a", "a/c"):
        with pytest.raises(InvalidActionError, match=f"A file or folder named '{path}' already exists"):
            await act(repositories, first, FileAction("create", path, b""))
    with pytest.raises(InvalidActionError, match="'a/b' is a file, so 'a/b/c' cannot be in it"):
        await act(repositories, first, FileAction("create", "a/b/c", b""))
    gone = [FileAction("delete", path) for path in ("a/b", "a/c/d")]
    second = await act(repositories, first, *gone, FileAction("create", "a", b"file"))
    assert set(await contents(repositories, second)) == {"a-b", "a", "a0"}


async def test_a_commit_has_a_most_of_folders(repositories: Repositories) -> None:
    """Each folder may become an object, which is a file: a thousand paths of a thousand folders would be a million."""
    deep = [FileAction("create", f"{number}/{'a/' * 999}a", b"") for number in range(21)]
    with pytest.raises(InvalidActionError, match="20000 are allowed"):
        await act(repositories, None, *deep)
    await act(repositories, None, *deep[:2])


@pytest.mark.parametrize(
    "action",
    [
        FileAction("create", "a", b""),
        FileAction("create", "folder", b""),
        FileAction("create", "a/below-a-file", b""),
        FileAction("update", "nothing", b""),
        FileAction("update", "a"),
        FileAction("delete", "nothing"),
        FileAction("delete", "folder"),
        FileAction("move", "new", previous_path="nothing"),
        FileAction("move", "folder/b", previous_path="a"),
        *(
            FileAction("create", path, b"")
            for path in ("", "/x", "x/", "../x", "x/./y", ".git/config", "x/.GIT/y", "a\0b", "x\\y")
        ),
    ],
    ids=lambda action: f"{action.action}-{action.path!a}",
)
async def test_an_action_that_does_not_fit_changes_nothing(
    repositories: Repositories, action: FileAction
) -> None:
    first = await commit(repositories, "main", None, **{"a": b"a", "folder/b": b"b"})
    with pytest.raises(InvalidActionError):
        await act(repositories, first, FileAction("create", "other", b""), action)
    assert references.branch(repositories.open(PROJECT), "main") == references.Branch("main", first)


@pytest.mark.parametrize("text", ["", " ", ",", "'", "\\", "\x01", "<>", "\n", " .;: "])
async def test_who_has_no_name_that_git_would_keep_is_unknown(repositories: Repositories, text: str) -> None:
    nobody = Person(text, text, 1)
    repository, made = repositories.open(PROJECT), NewCommit("m", nobody, nobody)
    sha = await new_commits.commit_files(repository, [FileAction("create", "a", b"")], made, None)
    shown = commits.commit_data(repository, sha)
    assert (shown["author_name"], shown["author_email"]) == ("unknown", "unknown")
    await run(["fsck", "--strict", "--no-dangling"], repository=repositories.path(PROJECT))


async def test_of_concurrent_writers_one_wins_and_the_others_are_told(repositories: Repositories) -> None:
    first = await commit(repositories, "main", None, a=b"a")
    writers = [act(repositories, first, FileAction("create", f"file{n}", b"")) for n in range(8)]
    outcomes = await asyncio.gather(*writers, return_exceptions=True)
    won = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert len(won) == 1
    assert all(isinstance(outcome, BranchMovedError) for outcome in outcomes if outcome not in won)
    branch = references.branch(repositories.open(PROJECT), "main")
    assert branch is not None
    assert branch.commit == won[0]


async def test_a_new_branch_needs_a_proper_name(repositories: Repositories) -> None:
    with pytest.raises(InvalidNameError):
        await commit(repositories, "-x", None, a=b"a")
    with pytest.raises(RepositoryExistsError):
        await repositories.create(PROJECT)


async def test_a_merge_has_two_parents_and_both_sides(repositories: Repositories) -> None:
    base = await commit(repositories, "main", None, a=b"a")
    repository = repositories.open(PROJECT)
    await move_branch(repository, "topic", base)
    topic = await commit(repositories, "topic", base, b=b"b")
    main = await commit(repositories, "main", base, c=b"c")
    assert await new_commits.merge_conflicts(repository, topic, main) == []
    merged = await new_commits.merge(repository, topic, main, new_commit("Merge topic"))
    assert commits.commit_data(repository, merged)["parent_ids"] == [main, topic]
    assert set(await contents(repositories, merged)) == {"a", "b", "c"}
    with pytest.raises(NothingToMergeError):
        await new_commits.merge(repository, topic, merged, new_commit())


async def test_a_merge_conflict_names_the_files(repositories: Repositories) -> None:
    base = await commit(repositories, "main", None, a=b"a", b=b"b")
    repository = repositories.open(PROJECT)
    await move_branch(repository, "topic", base)
    update = [FileAction("update", "a", b"topic"), FileAction("delete", "b")]
    topic = await commit_files(repository, "topic", update, new_commit(), base)
    main = await act(
        repositories, base, FileAction("update", "a", b"main"), FileAction("update", "b", b"main")
    )
    assert await new_commits.merge_conflicts(repository, topic, main) == ["a", "b"]
    with pytest.raises(MergeConflictError) as raised:
        await new_commits.merge(repository, topic, main, new_commit())
    assert raised.value.paths == ["a", "b"]
    assert references.branch(repository, "main") == references.Branch("main", main)


async def test_ancestry(repositories: Repositories) -> None:
    first = await commit(repositories, "main", None, a=b"a")
    second = await commit(repositories, "main", first, b=b"b")
    third = await commit(repositories, "main", second, c=b"c")
    alone = await commit(repositories, "alone", None, x=b"x")
    repository = repositories.open(PROJECT)
    assert await commits.commits_between(repository, first, third, 10) == [third, second]
    assert await commits.commits_between(repository, None, third, 2) == [third, second]
    assert await commits.merge_base(repository, second, third) == second
    assert await commits.merge_base(repository, alone, third) is None
    assert await commits.is_ancestor(repository, first, third)
    assert not await commits.is_ancestor(repository, third, first)
    with pytest.raises(NotFoundError):
        await commits.is_ancestor(repository, "--help", first)


async def test_a_commit_is_shown_in_gitlabs_shape(repositories: Repositories) -> None:
    first = await commit(repositories, "main", None, a=b"a")
    repository = repositories.open(PROJECT)
    made = new_commits.NewCommit("Title é\n\nBody\n", ALICE, Person("Bob <b>", "bob@example.org", 0))
    second = await commit_files(repository, "main", [FileAction("delete", "a")], made, first)
    assert commits.commit_data(repository, second) == {
        "id": second,
        "short_id": second[:8],
        "created_at": "1970-01-01T00:00:00.000+00:00",
        "parent_ids": [first],
        "title": "Title é",
        "message": "Title é\n\nBody\n",
        "author_name": "Alice",
        "author_email": "alice@example.org",
        "authored_date": "2023-11-15T00:13:20.000+02:00",
        "committer_name": "Bob b",
        "committer_email": "bob@example.org",
        "committed_date": "1970-01-01T00:00:00.000+00:00",
    }
    with pytest.raises(NotFoundError):
        commits.commit_data(repository, "1" * 40)


async def test_a_long_title_is_cut_at_a_word(repositories: Repositories) -> None:
    repository = repositories.open(PROJECT)
    made = new_commits.NewCommit("word " * 30, ALICE, ALICE)
    sha = await commit_files(repository, "main", [FileAction("create", "a", b"")], made, None)
    title = commits.commit_data(repository, sha)["title"]
    assert title == " ".join(["word"] * 15) + "..."


@pytest.mark.parametrize("size", [0, 10, 3 * 1024 * 1024])
async def test_blobs_of_all_sizes_are_streamed(repositories: Repositories, size: int) -> None:
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    sha = await commit(repositories, "main", None, **{"folder/-name": content})
    repository = repositories.open(PROJECT)
    entry = trees.find_entry(repository, sha, "folder/-name")
    assert entry is not None
    assert (entry.kind, entry.size, entry.is_blob) == ("file", size, True)
    async with trees.stream_blob(repository, entry) as chunks:
        assert b"".join([chunk async for chunk in chunks]) == content


async def test_only_what_exists_is_found(repositories: Repositories) -> None:
    sha = await commit(repositories, "main", None, **{"folder/file": b"1"})
    repository = repositories.open(PROJECT)
    folder = trees.find_entry(repository, sha, "folder")
    assert folder is not None
    assert (folder.kind, folder.size, folder.is_blob) == ("folder", None, False)
    for path in (
        "",
        "/",
        "nothing",
        "folder/",
        "/folder",
        "folder/file/x",
        "folder/file\0x",
        "folder\udcff",
        "..",
    ):
        assert trees.find_entry(repository, sha, path) is None
    with pytest.raises(NotFoundError):
        trees.find_entry(repository, "1" * 40, "folder")
    with pytest.raises(NotFoundError):
        trees.open_folder(repository, sha, "folder/file")


#: A name that git writes in quotation marks if it may, and that looks like a commit to readers of lines.
ODD = "odd/\u00fc \u2603\t//" + "1" * 40


@pytest.fixture
def repository(repositories: Repositories) -> Repository:
    return repositories.open(PROJECT)


async def create(repository: Repository, parent: str | None, message: str, **files: str) -> str:
    """Create a commit with new files (with `__` for `/` in names)."""
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
    monkeypatch.setattr(file_history, "_MAX_PATHS", 1)
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
