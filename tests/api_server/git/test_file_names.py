"""Paths of new files, held against git's own check."""

import hashlib
import re
import subprocess
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pygit2.enums import FileMode

from api_server.git import new_commits, trees
from api_server.git.errors import InvalidPathError
from api_server.git.new_commits import FileAction
from api_server.git.object_checks import check_path
from api_server.git.processes import run
from api_server.git.repositories import Repositories
from tests.api_server.git.conftest import PROJECT, new_commit

MODES = {
    "file": FileMode.BLOB,
    "program": FileMode.BLOB_EXECUTABLE,
    "link": FileMode.LINK,
    "folder": FileMode.TREE,
    "submodule": FileMode.COMMIT,
}
NAMES = [
    *(".git", ".GIT", "git~1", "GIT~1", "git~2", ".git ", ".git.", ".git. .", ".git::$INDEX_ALLOCATION", ".git:x"),
    *("git~1 ", "git~1:x", ".git\u200c", "\u200c.g\u202ei\u206ft", "\ufeff.git"),
    *(".git\uffff", ".git\ufffex", ".gi\uffff"),
    *(".gitx", "x.git", "git", "git~10", ". git", ".git~1", ".gıt", ".\u212ait", "..git", ".git-x"),
    *(".gitmodules", ".GITMODULES", ".gitmodules ", ".gitmodules:x", ".git\u200dmodules", "gitmod~1", "GITMOD~4"),
    *("gitmod~5", "gi7eba~1", "GI7EBA~9", "gi7eb~10", "gi7~1000", "~1000000", "~9999999.", "gi7eba~0", "~0000001"),
    *(".gitattributes", "gitatt~1", "gi7d29~1", "gi7d~123", ".gitattributes\u200e", ".gitattributes . .:"),
    *(".gitignore", "gitign~1", ".mailmap", "mailma~1", "con", "aux.txt", "a:b", "a\nb", "\x01", "x" * 300, "é"),
]  # fmt: skip


KINDS = st.sampled_from(sorted(MODES))
#: Names of the table with something put into them.
NEARLY = st.builds(
    lambda name, place, more: name[: place % (len(name) + 1)] + more + name[place % (len(name) + 1) :],
    st.sampled_from(NAMES),
    st.integers(0, 20),
    st.text("\u200c\u206a\ufeff\uffff. :~149gGıK\t", max_size=2),
)


def refused_by_git(entries: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Those that `git fsck --strict`, which is what pushes go through, complains of in a tree of their own."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "--quiet", "--bare", folder], check=True)
        made = {}
        for name, kind in entries:
            target = _target(Path(folder), kind, len(made))
            tree = b"%o %s\0%s" % (MODES[kind], name.encode(), bytes.fromhex(target))
            # where .gitmodules is no file, what it is instead is blamed
            made[name, kind] = {_write(Path(folder), "tree", tree)} | ({target} - {_EMPTY})
        ran = subprocess.run(
            ["git", "-C", folder, "fsck", "--strict"], capture_output=True, text=True, check=False
        )
    blamed = set(re.findall(r"error in \w+ ([0-9a-f]{40})", ran.stderr))
    assert blamed <= set().union(*made.values()), ran.stderr
    return {entry for entry, objects in made.items() if objects & blamed}


_EMPTY = hashlib.sha1(b"blob 0\0").hexdigest()


def _target(repository: Path, kind: str, number: int) -> str:
    """An object of its own for each folder and submodule, an empty file for all others."""
    assert _write(repository, "blob", b"") == _EMPTY
    if kind not in ("folder", "submodule"):
        return _EMPTY
    folder = _write(repository, "tree", b"100644 file%d\0%s" % (number, bytes.fromhex(_EMPTY)))
    who = "A <a@example.org> 1 +0000"
    commit = f"tree {folder}\nauthor {who}\ncommitter {who}\n\nmessage\n"
    return folder if kind == "folder" else _write(repository, "commit", commit.encode())


def _write(repository: Path, kind: str, content: bytes) -> str:
    """An object as it is, which git's own commands would not all make, and without waiting for the disk; its id."""
    whole = b"%s %d\0%s" % (kind.encode(), len(content), content)
    sha = hashlib.sha1(whole).hexdigest()
    file = repository / "objects" / sha[:2] / sha[2:]
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(zlib.compress(whole))
    return sha


def is_refused(name: str, kind: str) -> bool:
    path, mode = (f"{name}/file", FileMode.BLOB) if kind == "folder" else (name, MODES[kind])
    try:
        check_path(path, mode)
    except InvalidPathError:
        return True
    return False


@settings(max_examples=settings().max_examples // 10)
@example({(name, kind) for name in NAMES for kind in MODES})
@given(st.sets(st.tuples(NEARLY, KINDS), min_size=20, max_size=60))
def test_a_path_is_refused_where_git_would_refuse_it_in_a_push(entries: set[tuple[str, str]]) -> None:
    assert {entry for entry in entries if is_refused(*entry)} == refused_by_git(entries)


@pytest.mark.parametrize(
    "path", ["", "/a", "a/", "a//b", ".", "a/../b", "a\\b", "a\0b", "a/.git/b", "x/" * 2048 + "x"]
)
def test_other_paths_that_no_file_can_have(path: str) -> None:
    with pytest.raises(InvalidPathError):
        check_path(path, FileMode.BLOB)


async def test_whatever_is_not_refused_can_be_committed_and_passes_git(repositories: Repositories) -> None:
    fitting = [name for name in NAMES if not is_refused(name, "file")]
    actions = [FileAction("create", f"folder/{name}", b"") for name in fitting]
    sha = await new_commits.commit_files(repositories.open(PROJECT), actions, new_commit(), None)
    assert set(await trees.paths(repositories.open(PROJECT), sha, len(NAMES))) == {
        f"folder/{name}" for name in fitting
    }
    await run(["fsck", "--strict", "--no-dangling"], repository=repositories.path(PROJECT))


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        (".gitmodules", '[submodule "a"]\n\tpath = a\n\turl = https://example.org/a.git\n', None),
        (".gitmodules", "no configuration at all [", None),
        (".gitmodules", '[submodule "a"]\n\turl = -u./payload\n', "gitmodulesUrl"),
        ("deep/GITMOD~1", '[submodule "../../x"]\n\turl = a\n', "gitmodulesName"),
        (".gitmodules", '[submodule "a"]\n\tpath = --upload-pack=x\n', "gitmodulesPath"),
        (".gitmodules", '[submodule "a"]\n\tupdate = !rm\n', "gitmodulesUpdate"),
        (".gitattributes", "*.txt text\n", None),
        (".gitattributes", "*.txt " + "x" * 3000, "gitattributesLineLength"),
        ("README", '[submodule "a"]\n\turl = -u./payload\n', None),
    ],
)
async def test_what_git_reads_for_itself_is_held_against_its_own_check(
    repositories: Repositories, name: str, content: str, fault: str | None
) -> None:
    repository = repositories.open(PROJECT)
    first = await new_commits.commit_files(
        repository, [FileAction("create", "README", content.encode())], new_commit(), None
    )
    put, moved = FileAction("create", name, content.encode()), FileAction("move", name, None, "README")
    for action, parent in ((put, None), (moved, first)):
        if fault is None:
            assert await new_commits.commit_files(repository, [action], new_commit(), parent)
        else:
            with pytest.raises(InvalidPathError, match=f"git refuses this .git[a-z]+: {fault}: "):
                await new_commits.commit_files(repository, [action], new_commit(), parent)
