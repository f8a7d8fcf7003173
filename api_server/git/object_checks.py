"""Checks of objects: paths that a commit may have, sizes of pushed objects, git-fsck(1), and missing commits.

A tree with a path that git-fsck(1) refuses could still be committed here, but nobody could push to that branch any
more. The checks consider what file systems take for `.git`: HFS+ ignores some characters, NTFS ignores dots and spaces
at the end and everything from a colon on, and has short names (`git~1`).
"""

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pygit2
from pygit2.enums import FileMode

from api_server.git.errors import GitError, InvalidPathError, storing
from api_server.git.processes import run, start

_LONGEST_PATH = 4096
#: Characters that HFS+ ignores in names.
_IGNORED = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
#: Characters at which git's decoder of UTF-8 stops.
_STOPS = re.compile("[\ufffe\uffff]")


def _pattern_of(*names: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{'|'.join(names)})[. ]*(?::.*)?", re.IGNORECASE | re.ASCII | re.DOTALL)


def _short_names(start: str) -> list[str]:
    """Return patterns of the short names that NTFS creates if the usual four are in use: the beginning of `start`, a
    tilde and a number, with eight characters in all."""
    return [f"{start[:length]}~[1-9][0-9]{{{6 - length}}}" for length in range(7)]


_NTFS_GIT = _pattern_of(r"\.git", "git~1")
#: Files that git itself interprets, with patterns of the names that NTFS takes for them.
_NTFS_READ = {
    ".gitmodules": _pattern_of(r"\.gitmodules", "gitmod~[1-4]", *_short_names("gi7eba")),
    ".gitattributes": _pattern_of(r"\.gitattributes", "gitatt~[1-4]", *_short_names("gi7d29")),
}
#: Modes that these files may have. A symbolic link called `.gitattributes` is allowed, because git only ignores it.
_MAY_BE = {
    ".gitmodules": {FileMode.BLOB, FileMode.BLOB_EXECUTABLE},
    ".gitattributes": {FileMode.BLOB, FileMode.BLOB_EXECUTABLE, FileMode.LINK},
}


def check_path(path: str, mode: int) -> None:
    """Raise `InvalidPathError` unless a file of this mode (one of git's numbers) may be at `path` ("a/b")."""
    parts = path.split("/")
    if "\0" in path or "\\" in path or any(part in ("", ".", "..") for part in parts):
        raise InvalidPathError(f"{path!r} is not a valid path for a file.")
    if len(path.encode(errors="replace")) > _LONGEST_PATH:
        raise InvalidPathError(f"A path has at most {_LONGEST_PATH} bytes.")
    for part in parts:
        if _is_git(part):
            raise InvalidPathError(
                f"{path!r} is not a valid path for a file: {part!r} may be taken for .git."
            )
    for part, kind in zip(parts, [FileMode.TREE] * (len(parts) - 1) + [mode], strict=True):
        name = read_by_git(part)
        if name and kind not in _MAY_BE[name]:
            raise InvalidPathError(f"{path!r} is not a valid path for a file: {name} must be a regular file.")


def read_by_git(name: str) -> str | None:
    """Return `.gitmodules` or `.gitattributes` if a file called `name` (without folders) may be taken for it,
    otherwise None."""
    hfs = _on_hfs(name)
    for read, ntfs in _NTFS_READ.items():
        if hfs == read or ntfs.fullmatch(name):
            return read
    return None


def _is_git(name: str) -> bool:
    return _on_hfs(name) == ".git" or _NTFS_GIT.fullmatch(name) is not None


def _on_hfs(name: str) -> str:
    visible = _STOPS.split(name, maxsplit=1)[0].translate(_IGNORED)
    return visible.lower() if visible.isascii() else visible


_FAULT = re.compile(r"^error in [a-z]+ [0-9a-f]{40}: (.*)$", re.MULTILINE)


#: Maximum size in bytes of a commit, a tag or a tree: libgit2 reads them whole, while it holds the interpreter's lock.
MAX_OBJECT_BYTES = {b"commit": 10**6, b"tag": 10**6, b"tree": 10**7}
_LARGE = re.compile(rb"^(commit|tag|tree) (\d{7,}) ([0-9a-f]{40})$", re.MULTILINE)
#: Time limit in seconds. Examining a push of millions of objects takes less.
_LOOKING_SECONDS = 600.0


async def refusal_of_objects(quarantine: Path) -> str | None:
    """Return one sentence about why the objects in the `quarantine` directory of a push are refused, or None if they
    are fine."""
    with os.scandir(quarantine / "pack") as entries:  # pushed objects stay in the pack in which they came
        if not any(entry.name.endswith(".pack") for entry in entries):
            return None
    line_format = "%(objecttype) %(objectsize) %(objectname)"
    async with start(
        ["cat-file", f"--batch-check={line_format}", "--batch-all-objects", "--unordered", "--buffer"],
        repository=quarantine.parents[1],
        extra_environment={"GIT_OBJECT_DIRECTORY": str(quarantine)},
        time_limit=_LOOKING_SECONDS,
    ) as child:
        waiting = b""
        async for chunk in child.checked_output():
            lines, newline, waiting = (waiting + chunk).rpartition(b"\n")
            for kind, size, sha in _LARGE.findall(lines + newline):
                if int(size) > (limit := MAX_OBJECT_BYTES[kind]):
                    return f"The {kind.decode()} {sha.decode()} has {int(size)} bytes; {limit} are allowed."
    return None


async def check_content(name: str, content: bytes) -> None:
    """Raise `InvalidPathError` if git would refuse a push with this content of `.gitmodules` or `.gitattributes`."""
    with tempfile.TemporaryDirectory() as folder:
        _write_alone(Path(folder), name, content)
        try:
            await run(["fsck", "--strict", "--no-dangling", "--no-progress"], repository=Path(folder))
        except GitError as problem:
            fault = _FAULT.search(problem.stderr)
            if fault is None:
                raise
            raise InvalidPathError(f"git refuses this {name}: {fault[1]}") from None


def _write_alone(folder: Path, name: str, content: bytes) -> None:
    """Create a repository that contains only this file."""
    repository = pygit2.init_repository(str(folder), bare=True)
    tree = repository.TreeBuilder()
    with storing():
        tree.insert(name, repository.create_blob(content), FileMode.BLOB)
        tree.write()


_LINES = 20
#: Statuses of git-fsck with which it prints each fault: none, missing or broken objects (bit 2), broken refs (bit 8).
_FAULTS = (0, 2, 8, 10)
#: Lines of git-fsck that report no fault.
_HARMLESS = re.compile(r"^(?:notice|Checking|dangling|unreachable|warning)\b")


async def repository_problems(repository: Path, time_limit: float) -> list[str]:
    """Return the first problems that git finds, one sentence each and at most 20, or an empty list for an intact
    repository."""
    if not (repository / "HEAD").is_file():
        return ["there is no repository"]
    try:
        completed = await run(
            ["fsck", "--full", "--no-dangling", "--no-progress"],
            repository=repository,
            time_limit=time_limit,
            accept=_FAULTS,
        )
    except GitError as problem:
        return [f"git cannot check it: {problem}"]
    lines = completed.stdout.decode(errors="replace").splitlines()
    wrong = [line for line in lines if line.strip() and not _HARMLESS.match(line)]
    return wrong[:_LINES] or [f"git fsck ended with status {completed.returncode}"] * bool(
        completed.returncode
    )


async def missing_commits(repository: Path, shas: Sequence[str]) -> set[str]:
    """Return those of the commits that do not exist. Raise `GitError`."""
    if not shas:
        return set()
    stdin = "".join(f"{sha}\n" for sha in shas).encode()
    completed = await run(["cat-file", "--batch-check"], repository=repository, stdin=stdin)
    return {
        line.partition(" ")[0]
        for line in completed.stdout.decode().splitlines()
        if line.endswith((" missing", " ambiguous"))
    }
