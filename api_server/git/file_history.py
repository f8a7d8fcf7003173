"""The history of files: the last commits of a folder's entries, and the commit of each line of a file."""

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing, suppress
from pathlib import Path

import attrs

from api_server.git.errors import GitError
from api_server.git.processes import run, start
from api_server.git.repositories import Repository
from api_server.git.trees import MarkedOutput

#: Maximum number of seconds that a folder's page waits for the commits of its entries.
LOOKING_SECONDS = 2.0
#: Time limit of git-blame, in seconds.
BLAME_SECONDS = 10.0
#: Maximum number of changed paths that are examined for one folder.
_MAX_PATHS = 200_000
#: What precedes the SHA of a commit in git's output. No path contains two slashes in a row.
_MARK = b"//"


async def last_commits(
    repository: Repository,
    commit: str,
    folder: str,
    names: Collection[str],
    time_limit: float = LOOKING_SECONDS,
) -> dict[str, str]:
    """Return the full SHA of the newest commit, up to `commit`, that changed each entry of the folder ("" is the
    root). The name "" stands for the newest commit that changed anything in the folder.

    A single walk through the history looks for all of them. Entries that it does not reach within `time_limit` seconds
    are missing from the result.
    """
    prefix = f"{folder}/" if folder else ""
    remaining = {name.encode(): name for name in names}
    shas: dict[str, str] = {}
    looked_at = 0
    async with aclosing(_changes(repository, commit, folder, time_limit)) as changes:
        with suppress(GitError):
            async for sha, path in changes:
                shas.setdefault("", sha)
                entry = path.removeprefix(prefix.encode()).partition(b"/")[0]
                if (name := remaining.pop(entry, None)) is not None:
                    shas[name] = sha
                looked_at += 1
                if not remaining or looked_at == _MAX_PATHS:
                    break
    return shas


async def _changes(
    repository: Repository, commit: str, folder: str, time_limit: float
) -> AsyncGenerator[tuple[str, bytes], None]:
    """Yield the SHA of a commit and a path that it changed, newest commits first. A merge changes only those paths
    that differ from all of its parents."""
    arguments = [
        "log",
        "-c",
        f"--format={_MARK.decode()}%H",
        "--name-only",
        "--no-renames",
        "-z",
        commit,
        "--",
    ]
    async with start(
        [*arguments, *([folder] if folder else [])], repository=Path(repository.path), time_limit=time_limit
    ) as child:
        records, sha = MarkedOutput(child.checked_output()), ""
        while (record := await records.until(b"\0")) is not None:
            record = record.removeprefix(b"\n")
            if record.startswith(_MARK):
                sha = record.removeprefix(_MARK).decode()
            elif record:
                yield sha, record


@attrs.define
class BlamedCommit:
    """A commit that lines come from. `previous` is the SHA of the commit before it, with the path of the file in that
    commit, or None if the file was not in it. `time` is in seconds since 1970."""

    sha: str
    author: str = ""
    time: int = 0
    title: str = ""
    previous: tuple[str, str] | None = None


@attrs.frozen
class BlamedLines:
    """Consecutive lines of a file that come from one commit. `first` counts from 1."""

    commit: BlamedCommit
    first: int
    count: int


async def blame(repository: Repository, commit: str, path: str, first: int, count: int) -> list[BlamedLines]:
    """Return `count` lines of the file at `path`, beginning with line `first`, grouped by the commits that they come
    from.

    Raise `GitTimeoutError` after `BLAME_SECONDS`, and `GitError` if there is no such file or no such line.
    """
    arguments = ["blame", "--porcelain", f"-L{first},+{count}", commit, "--", path]
    output = await run(
        arguments,
        repository=Path(repository.path),
        configuration=[("core.quotePath", "false")],
        time_limit=BLAME_SECONDS,
    )
    return await asyncio.to_thread(_blamed, output.stdout)


def _blamed(porcelain: bytes) -> list[BlamedLines]:
    """Parse the porcelain format of git-blame(1), which describes each commit only once."""
    commits: dict[str, BlamedCommit] = {}
    blamed: list[BlamedLines] = []
    commit = BlamedCommit("")
    for line in porcelain.split(b"\n"):
        key, _, value = line.partition(b" ")
        if line.startswith(b"\t") or not line:
            continue
        if len(key) == 40:
            commit = commits.setdefault(key.decode(), BlamedCommit(key.decode()))
            numbers = value.split()
            if len(numbers) == 3:
                blamed.append(BlamedLines(commit, int(numbers[1]), int(numbers[2])))
        else:
            _set_header(commit, key, value.decode(errors="replace"))
    return blamed


def _set_header(commit: BlamedCommit, key: bytes, value: str) -> None:
    match key:
        case b"author":
            commit.author = value
        case b"author-time":
            commit.time = int(value)
        case b"summary":
            commit.title = value
        case b"previous":
            sha, _, path = value.partition(" ")
            if not path.startswith('"'):  # git quotes only unusual paths; they are left out
                commit.previous = sha, path
