"""The file that tells a program that the service is ready, and all that it has to know of it."""

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

from common.mistakes import writable


class ReadyFile:
    """`path` is there, whole, while the service can be used; only its owner can read it.

    Raises `Mistake` where it cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._scratch = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")

    def clear(self) -> None:
        """Before anything starts, so that a folder that is missing is heard of at once."""
        with writable("The ready file"):
            self._path.unlink(missing_ok=True)
            self._scratch.touch(mode=0o600)
            self._scratch.unlink()

    @contextlib.contextmanager
    def written(self, facts: Mapping[str, object]) -> Iterator[None]:
        """Says for as long as the block lasts that it is ready."""
        with writable("The ready file"):
            self._scratch.touch(mode=0o600)
            self._scratch.write_text(json.dumps({**facts, "pid": os.getpid()}) + "\n")
            ours = self._scratch.open()
            self._scratch.replace(self._path)
        with ours:  # no other file gets its number while it is open
            try:
                yield
            finally:
                if self._is(os.fstat(ours.fileno())):
                    self._path.unlink(missing_ok=True)

    def _is(self, ours: os.stat_result) -> bool:
        """One that was started later with the same file has its own there, perhaps with our process's number."""
        with contextlib.suppress(OSError):
            return os.path.samestat(self._path.stat(), ours)
        return False
