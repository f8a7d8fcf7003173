"""What is checked of objects: the files that git reads for itself (git-fsck(1)), and the size of what is read whole."""

import os
import re
import tempfile
from pathlib import Path

import pygit2
from pygit2.enums import FileMode

from api_server.git.errors import GitError, InvalidPathError
from api_server.git.failures import storing
from api_server.git.processes import run, start

_FAULT = re.compile(r"^error in [a-z]+ [0-9a-f]{40}: (.*)$", re.MULTILINE)


#: Bytes that a commit, a tag, or a folder may have: libgit2 reads them whole, while it holds the interpreter's lock.
MOST_BYTES = {b"commit": 10**6, b"tag": 10**6, b"tree": 10**7}
_LARGE = re.compile(rb"^(commit|tag|tree) (\d{7,}) ([0-9a-f]{40})$", re.MULTILINE)
#: A push of millions of objects is looked through in less.
_LOOKING_SECONDS = 600.0


async def refusal_of_objects(arrived: Path) -> str | None:
    """Why the objects of a push, whose folder is `arrived`, are not taken; None if nothing is wrong with them."""
    with os.scandir(arrived / "pack") as entries:  # a push stays the pack that it came as
        if not any(entry.name.endswith(".pack") for entry in entries):
            return None
    what = "%(objecttype) %(objectsize) %(objectname)"
    async with start(
        ["cat-file", f"--batch-check={what}", "--batch-all-objects", "--unordered", "--buffer"],
        repository=arrived.parents[1],
        extra_environment={"GIT_OBJECT_DIRECTORY": str(arrived)},
        time_limit=_LOOKING_SECONDS,
    ) as child:
        waiting = b""
        async for chunk in child.checked_output():
            lines, newline, waiting = (waiting + chunk).rpartition(b"\n")
            for kind, size, sha in _LARGE.findall(lines + newline):
                if int(size) > MOST_BYTES[kind]:
                    return f"The {kind.decode()} {sha.decode()} has {int(size)} bytes; {MOST_BYTES[kind]} are allowed."
    return None


async def check_content(name: str, content: bytes) -> None:
    """Raises `InvalidPathError` for a `.gitmodules` or `.gitattributes` of which a push would be refused."""
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
    """A repository in which there is nothing else."""
    repository = pygit2.init_repository(str(folder), bare=True)
    tree = repository.TreeBuilder()
    with storing():
        tree.insert(name, repository.create_blob(content), FileMode.BLOB)
        tree.write()
