"""The texts in commits of all tools, and valid paths of files, compared with git's own checks."""

import hashlib
import re
import subprocess
import tempfile
import time
import zlib
from pathlib import Path

import pygit2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pygit2.enums import FileMode, ObjectType

from api_server.git import commits, new_commits, trees
from api_server.git.commits import Person
from api_server.git.errors import InvalidPathError
from api_server.git.new_commits import FileAction, NewCommit
from api_server.git.object_checks import check_path
from api_server.git.processes import run
from api_server.git.repositories import Repositories, Repository
from tests.api_server.git.conftest import ALICE, PROJECT, commit, new_commit
from tests.support.deviations import Deviations

#: (content of the header `author`, name, address, ISO date). git refuses headers in pushes that libgit2 cannot read.
PEOPLE = [
    (b"A <a@example.org> 1700000000 +0100", "A", "a@example.org", "2023-11-14T23:13:20.000+01:00"),
    (b"A <a@example.org>1700000000 +0000", "A", "a@example.org", "2023-11-14T22:13:20.000+00:00"),
    (b"A <a@example.org>  1700000000   -0230", "A", "a@example.org", "2023-11-14T19:43:20.000-02:30"),
    (b"A <a@example.org>\t1700000000\t+0200", "A", "a@example.org", "2023-11-15T00:13:20.000+02:00"),
    (b"A <a@example.org> 1700000000+0100", "A", "a@example.org", "2023-11-14T23:13:20.000+01:00"),
    (b"A <a@example.org> 1700000000 +1", "A", "a@example.org", "2023-11-14T22:14:20.000+00:01"),
    (b"A <a@example.org> 1700000000 +0170", "A", "a@example.org", "2023-11-15T00:23:20.000+02:10"),
    (b"A <a@example.org> 1700000000 -0000", "A", "a@example.org", "2023-11-14T22:13:20.000+00:00"),
    # The moment counts if JSON does not have such a zone, or git finds none.
    (b"A <a@example.org> 1700000000 +051800", "A", "a@example.org", "2023-11-14T22:13:20.000+00:00"),
    (b"A <a@example.org> 1700000000 -7300", "A", "a@example.org", "2023-11-14T22:13:20.000+00:00"),
    (b"A <a@example.org> 1700000000 +9999", "A", "a@example.org", "2023-11-14T22:13:20.000+00:00"),
    (
        b"A <a@example.org> 1700000000 +99999999999999999999",
        "A",
        "a@example.org",
        "2023-11-14T22:13:20.000+00:00",
    ),
    (b"A <a@example.org> 1700000000", "A", "a@example.org", "2023-11-14T22:13:20.000+00:00"),
    (b"A <a@example.org> 1700000000 UTC", "A", "a@example.org", "2023-11-14T22:13:20.000+00:00"),
    (b"A <a@example.org> 1700000000 0100", "A", "a@example.org", "2023-11-14T22:13:20.000+00:00"),
    (b"A <a@example.org> 1700000000.5 +0100", "A", "a@example.org", "2023-11-14T22:13:20.000+00:00"),
    (b"A <a@example.org> 0 +0000", "A", "a@example.org", "1970-01-01T00:00:00.000+00:00"),
    (b"A <a@example.org> 007 +0000", "A", "a@example.org", "1970-01-01T00:00:07.000+00:00"),
    (b"A <a@example.org> -1 +0000", "A", "a@example.org", "1970-01-01T00:00:00.000+00:00"),
    (b"A <a@example.org>", "A", "a@example.org", "1970-01-01T00:00:00.000+00:00"),
    (b"A <a@example.org> 4294967296 +0000", "A", "a@example.org", "2106-02-07T06:28:16.000+00:00"),
    (b"A <a@example.org> 253402300799 +0000", "A", "a@example.org", "9999-12-31T23:59:59.000+00:00"),
    (b"A <a@example.org> 253402300800 +0000", "A", "a@example.org", "9999-12-31T23:59:59.000+00:00"),
    (b"A <a@example.org> 99999999999999 +9999", "A", "a@example.org", "9999-12-31T23:59:59.000+00:00"),
    (b"A <a@example.org> 9223372036854775807 +0000", "A", "a@example.org", "1970-01-01T00:00:00.000+00:00"),
    (b"A <a@example.org> >1700000000 +0000", "A", "a@example.org", "2023-11-14T22:13:20.000+00:00"),
    (b"A <a@ex>ample.org> 1700000000 +0000", "A", "a@ex", "2023-11-14T22:13:20.000+00:00"),
    (b"A <<a@example.org>> 1700000000 +0000", "A", "<a@example.org", "2023-11-14T22:13:20.000+00:00"),
    (b"  A  B  <a@example.org> 1700000000 +0000", "A  B", "a@example.org", "2023-11-14T22:13:20.000+00:00"),
    (b"<a@example.org> 1700000000 +0000", "", "a@example.org", "2023-11-14T22:13:20.000+00:00"),
    (b"A<a@example.org> 1700000000 +0000", "A", "a@example.org", "2023-11-14T22:13:20.000+00:00"),
    (b"A Jr. <> 1700000000 +0000", "A Jr.", "", "2023-11-14T22:13:20.000+00:00"),
    (b"A < a@example.org > 1700000000 +0000", "A", " a@example.org ", "2023-11-14T22:13:20.000+00:00"),
]

#: (the header `encoding`, bytes, the decoded text).
TEXTS = [
    (None, "Jürgen 漢字".encode(), "Jürgen 漢字"),
    (None, b"J\xfcrgen", "Jürgen"),
    (None, "Jürgen".encode() + b" J\xfcrgen \xe2\x82", "Jürgen Jürgen â\x82"),
    (None, b"a\xed\xa0\x80z", "aí\xa0\x80z"),
    (None, b"a\0b", "a\ufffdb"),
    ("UTF-8", "Jürgen".encode(), "Jürgen"),
    ("utf8", b"J\xfcrgen", "Jürgen"),
    ("ISO-8859-1", b"J\xfcrgen", "Jürgen"),
    ("iso 8859-1", b"J\xfcrgen", "Jürgen"),
    ("ISO_8859-1:1987", b"J\xfcrgen", "Jürgen"),
    ("latin1", b"J\xfcrgen", "Jürgen"),
    ("ISO-8859-15", b"5 \xa4", "5 €"),
    ("windows-1252", b"5 \x80 \x81", "5 € \ufffd"),
    ("CP1251", b"\xde\xf0\xe8\xe9", "Юрий"),
    ("KOI8-R", b"\xe0\xd2\xc9\xca", "Юрий"),
    ("KOI8-U", b"\xa4", "є"),
    ("cp850", b"J\x81rgen", "Jürgen"),
    ("macintosh", b"J\x9frgen", "Jürgen"),
    ("Shift_JIS", b"\x8a\xbf\x8e\x9a \x82", "漢字 \ufffd"),
    ("EUC-JP", b"\xb4\xc1\xbb\xfa", "漢字"),
    ("ISO-2022-JP", b"\x1b$B4A;z\x1b(B", "漢字"),
    ("GBK", b"\xba\xba\xd7\xd6", "汉字"),
    ("Big5", b"\xba\xa1", "滿"),
    ("EUC-KR", b"\xc7\xd1", "한"),
    # Names that git's iconv does not know are not encodings, nor are those of Python's codecs that are not charsets.
    ("nobody-knows", b"J\xfcrgen", "Jürgen"),
    ("nobody-knows", "Jürgen".encode(), "Jürgen"),
    ("idna", b"xn--jrgen-kva", "xn--jrgen-kva"),
    ("punycode", b"Jrgen-kva", "Jrgen-kva"),
    ("undefined", b"a", "a"),
    ("unicode_escape", b"a\\ud800z", "a\\ud800z"),
    ("utf-7", b"+2AA-", "+2AA-"),
    ("base64", b"YQ==", "YQ=="),
    ("rot13", b"a", "a"),
]


async def _repository(repositories: Repositories) -> Repository:
    await commit(repositories, "main", None, a=b"a")
    return repositories.open(PROJECT)


def _written(
    repository: Repository, author: bytes, encoding: str | None, message: bytes, parent: str = ""
) -> str:
    """Return the SHA of a commit with a text that git would not write, with the files of `main`."""
    head = b"tree %s\n" % str(repository.revparse_single(f"{parent or 'main'}^{{tree}}").id).encode()
    head += b"parent %s\n" % parent.encode() if parent else b""
    head += b"author %s\ncommitter %s\n" % (author, author)
    head += b"encoding %s\n" % encoding.encode() if encoding else b""
    return str(repository.odb.write(ObjectType.COMMIT, head + b"\n" + message))


async def test_people_and_dates_are_read_as_git_reads_them(repositories: Repositories) -> None:
    repository = await _repository(repositories)
    deviations = Deviations()
    for line, name, email, date in PEOPLE:
        shown = commits.commit_data(repository, _written(repository, line, None, b"m"))
        if (shown["author_name"], shown["author_email"], shown["authored_date"]) != (name, email, date):
            deviations.append(f"{line[:80]!r}: {shown}")
        if (shown["committer_name"], shown["committed_date"], shown["created_at"]) != (name, date, date):
            deviations.append(f"{line[:80]!r} as committer: {shown}")
    assert not deviations, deviations.report


async def test_names_and_messages_are_decoded_alike(repositories: Repositories) -> None:
    repository = await _repository(repositories)
    deviations = Deviations()
    for encoding, raw, text in TEXTS:
        person = raw + b" <" + raw + b"> 1700000000 +0000"
        shown = commits.commit_data(repository, _written(repository, person, encoding, raw))
        told = [shown[key] for key in ("message", "title", "author_name", "committer_name", "author_email")]
        if told != [text] * 5:
            deviations.append(f"{encoding} {raw!r}: {shown}")
        "".join(told).encode()
    assert not deviations, deviations.report


async def test_a_replay_writes_what_was_read_as_utf_8(repositories: Repositories) -> None:
    """This applies to rebased and cherry-picked commits, whatever the encoding of the original is."""
    repository = await _repository(repositories)
    base = str(repository.revparse_single("main").id)
    onto = await commit(repositories, "main", base, b=b"b")
    deviations = Deviations()
    for encoding, raw, text in TEXTS:
        if b"\0" in raw:
            continue
        sha = _written(repository, raw + b" <a@example.org>1700000000 +0100", encoding, raw, base)
        picked = await new_commits.commit_tree(
            repository,
            str(repository[sha].peel(pygit2.Tree).id),
            NewCommit(
                commits.commit_data(repository, sha)["message"], new_commits.author_of(repository, sha), ALICE
            ),
            onto,
        )
        for made in (picked, await new_commits.rebase(repository, sha, onto, ALICE)):
            head, _, message = repository[made].read_raw().partition(b"\n\n")
            author = f"\nauthor {text} <a@example.org> 1700000000 +0100\n".encode()
            if author not in head or b"\nencoding" in head or message != text.encode():
                deviations.append(f"{encoding} {raw!r}: {head!r} {message!r}")
    assert not deviations, deviations.report


def test_every_known_encoding_is_decoded_in_linear_time() -> None:
    """The text is a tenth of the largest message that a push may contain (`git/object_checks.py`)."""
    deviations = Deviations()
    for name in sorted(commits._CODECS):
        commits.decode(b"\xff", name)  # imports the codec
        for unit in (b"\xff", b"\x81a", b"\x1b$B"):
            begun = time.thread_time()
            commits.decode((unit * 100_000)[:100_000], name).encode()
            if (took := time.thread_time() - begun) > 0.05:
                deviations.append(f"{name} {unit!r}: {took * 1000:.0f} ms")
    assert not deviations, deviations.report


@pytest.mark.parametrize(
    ("person", "signature"),
    [(Person("", "a", 1), "unknown <a>"), (Person(" <a>\n", "\0", 1), "a <unknown>")],
)
def test_people_are_written_as_git_takes_them(person: Person, signature: str) -> None:
    made = person.signature()
    assert f"{made.name} <{made.email}>" == signature


async def test_commits_and_tags_are_ordered_by_the_dates_that_are_shown(repositories: Repositories) -> None:
    repository = await _repository(repositories)
    sha = _written(repository, b"A <a@example.org>1700000000 +0000", None, b"m")
    head = b"object %s\ntype commit\ntag v1\n" % sha.encode()
    tags = {b"tagger A <a@example.org>1600000000 +0100\n\nm": 1_600_000_000, b"\nm": 1_700_000_000}
    assert commits.time_of(repository, sha) == 1_700_000_000
    for rest, moment in tags.items():
        tag = str(repository.odb.write(ObjectType.TAG, head + rest))
        assert commits.time_of(repository, tag) == moment
    assert commits.time_of(repository, str(repository[sha].peel(pygit2.Tree).id)) == 0


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
#: Names of the table with inserted characters.
NEARLY = st.builds(
    lambda name, place, more: name[: place % (len(name) + 1)] + more + name[place % (len(name) + 1) :],
    st.sampled_from(NAMES),
    st.integers(0, 20),
    st.text("\u200c\u206a\ufeff\uffff. :~149gGıK\t", max_size=2),
)


def refused_by_git(entries: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the entries of which `git fsck --strict`, which checks pushes, complains, each in a tree of its own."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "--quiet", "--bare", folder], check=True)
        made = {}
        for name, kind in entries:
            target = _target(Path(folder), kind, len(made))
            tree = b"%o %s\0%s" % (MODES[kind], name.encode(), bytes.fromhex(target))
            # if .gitmodules is not a file, git complains about the object in its place
            made[name, kind] = {_write(Path(folder), "tree", tree)} | ({target} - {_EMPTY})
        ran = subprocess.run(
            ["git", "-C", folder, "fsck", "--strict"], capture_output=True, text=True, check=False
        )
    blamed = set(re.findall(r"error in \w+ ([0-9a-f]{40})", ran.stderr))
    assert blamed <= set().union(*made.values()), ran.stderr
    return {entry for entry, objects in made.items() if objects & blamed}


_EMPTY = hashlib.sha1(b"blob 0\0").hexdigest()


def _target(repository: Path, kind: str, number: int) -> str:
    """Return the SHA of an object of its own for each folder and submodule, and of an empty file for all others."""
    assert _write(repository, "blob", b"") == _EMPTY
    if kind not in ("folder", "submodule"):
        return _EMPTY
    folder = _write(repository, "tree", b"100644 file%d\0%s" % (number, bytes.fromhex(_EMPTY)))
    who = "A <a@example.org> 1 +0000"
    commit = f"tree {folder}\nauthor {who}\ncommitter {who}\n\nmessage\n"
    return folder if kind == "folder" else _write(repository, "commit", commit.encode())


def _write(repository: Path, kind: str, content: bytes) -> str:
    """Write an object that git's own commands might refuse, without waiting for the disk; return its id."""
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
