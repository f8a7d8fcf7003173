"""Repositories of a size, made by `git fast-import`."""

import os
import random
import subprocess
from pathlib import Path

_BLOB = 100_000


def git(repository: Path, *arguments: str, given: bytes | None = None) -> str:
    """What git says; raises `RuntimeError` where it fails."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(repository.parent),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }
    command = ["git", f"--git-dir={repository}", *arguments]
    done = subprocess.run(command, input=given, capture_output=True, env=environment, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"git {arguments[0]} failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode(errors="replace")


def grow(repository: Path, branch: str, size: int) -> None:
    """A commit on top of `branch`, or its first one, with files of so many bytes in all that cannot be compressed."""
    if not repository.exists():
        git(repository, "init", "--quiet", "--bare", "--initial-branch=main")
    exists = bool(git(repository, "for-each-ref", f"refs/heads/{branch}"))
    stream = [
        f"commit refs/heads/{branch}\ncommitter A <a@example.org> 1700000000 +0000\ndata 6\nfiles\n\n".encode(),
        f"from refs/heads/{branch}^0\n".encode() if exists else b"",
    ]
    for start in range(0, size, _BLOB):
        content = random.randbytes(min(_BLOB, size - start))
        name = content[:8].hex()
        stream.append(f"M 100644 inline {name[:2]}/{name}\ndata {len(content)}\n".encode() + content + b"\n")
    git(repository, "fast-import", "--quiet", given=b"".join(stream))
