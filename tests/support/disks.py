"""A small disk that a test can fill."""

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest


@attrs.frozen
class Disk:
    """A file system at `path` that contains nothing else."""

    path: Path

    def fill(self) -> None:
        """Fill the free space to the last byte."""
        with (self.path / "filler").open("ab", buffering=0) as file:
            for size in (1 << 16, 1):
                try:
                    while True:
                        file.write(b"f" * size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def empty(self) -> None:
        """Free the space again."""
        (self.path / "filler").unlink()


@contextlib.contextmanager
def small_disk(path: Path, megabytes: int = 16) -> Iterator[Disk]:
    """Mount a small disk at `path` for the duration of the block; skip the test if mounting is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a separate file system, which the test fills")
    path.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", str(path)]
    mounted = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system could be mounted: {mounted.stderr.strip()}")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
