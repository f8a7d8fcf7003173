"""What git's own check of pushed objects (git-fsck(1)) says of files that git reads for itself."""

import re
import tempfile
from pathlib import Path

import pygit2
from pygit2.enums import FileMode

from api_server.git.errors import GitError, InvalidPathError
from api_server.git.failures import storing
from api_server.git.processes import run

_FAULT = re.compile(r"^error in [a-z]+ [0-9a-f]{40}: (.*)$", re.MULTILINE)


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
