"""The files of the disk tier's bodies, which are named by their digests."""

import hashlib
import os
from pathlib import Path

import structlog

from common.logs import ThrottledLog
from storage_edge.tiers.arrivals import Arrived
from storage_edge.tiers.bodies import FileBody, identity

log = structlog.get_logger(__name__)


class BodyFiles:
    """Files below `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        #: What was read and found to be right, by digest.
        self._checked: dict[str, FileBody] = {}
        #: Files that were not.
        self.damaged = 0
        self._said = ThrottledLog(log)

    def parts(self) -> list[str]:
        """How the first two letters of digests may be; each has a directory."""
        return [f"{number:02x}" for number in range(256)]

    def of_part(self, part: str) -> dict[str, Path]:
        """The files that are there, by digest. Raises OSError."""
        directory = self.directory / part
        return {part + path.name: path for path in directory.iterdir()} if directory.is_dir() else {}

    def path(self, digest: str) -> Path:
        """Where the bytes with a digest are."""
        return self.directory / digest[:2] / digest[2:]

    def find(self, digest: str, size: int) -> FileBody | None:
        """The bytes with a digest, if they are there. They are read when their file has changed since they were."""
        path = self.path(digest)
        try:
            with path.open("rb") as file:
                now = identity(os.fstat(file.fileno()))
                known = self._checked.pop(digest, None)
                if known is None or known.identity != now:
                    if now[1] != size or hashlib.file_digest(file, "sha256").hexdigest() != digest:
                        self.found_damaged(digest)
                        return None
                    known = FileBody(path, now)
        except OSError:
            return None
        self._checked[digest] = known
        return known

    def place(self, arrived: Arrived, directory: Path) -> FileBody:
        """Keeps a body that has arrived; see `Arrived.move_to`. Raises OSError."""
        digest = arrived.digest
        path = self.path(digest)
        try:
            arrived.move_to(path, directory)
        except FileNotFoundError:  # the first of its part
            path.parent.mkdir(parents=True, exist_ok=True)
            arrived.move_to(path, directory)
        body = self._checked[digest] = FileBody(path, identity(path.stat()))
        return body

    def found_damaged(self, digest: str) -> None:
        """The file has other bytes than it should have."""
        self._checked.pop(digest, None)
        self.damaged += 1
        self._said.warning("a file of the disk tier is damaged and counts as not stored", digest=digest)

    def remove(self, digest: str) -> None:
        """Deletes a file, if it is there. Raises OSError."""
        self._checked.pop(digest, None)
        self.path(digest).unlink(missing_ok=True)
