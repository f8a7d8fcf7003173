"""Whether a repository is whole: git-fsck(1), and which commits of a list it has not."""

import re
from collections.abc import Sequence
from pathlib import Path

from api_server.git.errors import GitError
from api_server.git.processes import run

_LINES = 20
#: Bits of git-fsck's status: what is missing or broken, of which it prints each.
_FAULTS = (0, 2, 8, 10)
#: What is no fault: git tells it by the way.
_HARMLESS = re.compile(r"^(?:notice|Checking|dangling|unreachable|warning)\b")


async def problems(repository: Path, time_limit: float) -> list[str]:
    """What git says is wrong with it, one sentence each, the first few; none of a repository that is whole."""
    if not (repository / "HEAD").is_file():
        return ["there is no repository"]
    try:
        told = await run(
            ["fsck", "--full", "--no-dangling", "--no-progress"],
            repository=repository,
            time_limit=time_limit,
            accept=_FAULTS,
        )
    except GitError as problem:
        return [f"git cannot check it: {problem}"]
    lines = told.stdout.decode(errors="replace").splitlines()
    wrong = [line for line in lines if line.strip() and not _HARMLESS.match(line)]
    return wrong[:_LINES] or [f"git fsck ended with status {told.returncode}"] * bool(told.returncode)


async def missing(repository: Path, shas: Sequence[str]) -> set[str]:
    """Those of the commits that are not there. Raises `GitError`."""
    if not shas:
        return set()
    asked = "".join(f"{sha}\n" for sha in shas).encode()
    told = await run(["cat-file", "--batch-check"], repository=repository, stdin=asked)
    return {
        line.partition(" ")[0]
        for line in told.stdout.decode().splitlines()
        if line.endswith((" missing", " ambiguous"))
    }
