"""The folder that holds everything of one local forgelet: who may use it, its secrets, its parts."""

import contextlib
import fcntl
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from common.mistakes import Mistake

#: What a `forgelet up` has written down of itself is remembered under this name.
RUNNING = "running"
#: Whether people have been shown the administrator's token, likewise.
TOKEN_SHOWN = "root-token-shown"
#: Seconds for which a folder is waited for that a short command holds, or that is only looked at.
PATIENCE = 5.0


class DataDirectory:
    """`path` and its parts; everything but the way through it is closed to other accounts."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Makes the folder if it is missing; one `up` or command at a time holds it, until its block or process ends.
        Raises `Mistake` where it cannot be had."""
        try:
            self._create()
            lock = (self.path / "lock").open("a")
        except OSError as problem:
            raise Mistake(
                f"The data directory {self.path} cannot be used ({problem.strerror}): choose another"
            ) from None
        with lock:
            self._lock(lock)
            self.forget(RUNNING)  # of one that was killed
            yield

    def exists(self) -> bool:
        """Whether it has been `opened` before."""
        return (self.path / "lock").exists()

    def is_held(self) -> bool:
        """Whether somebody has it `opened` now; whoever was killed has not. Raises `Mistake` where that is hidden."""
        try:
            with (self.path / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as problem:
            raise Mistake(
                f"The data directory {self.path} cannot be read ({problem.strerror}): it is another account's"
            ) from None
        return False

    def part(self, name: str) -> Path:
        """The sub-folder `name`, which only we can read."""
        path = self.path / name
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def log(self, name: str) -> Path:
        """The log file of one process; what the previous run wrote is kept once, as `<name>.previous.log`."""
        log = self.part("logs") / f"{name}.log"
        with contextlib.suppress(FileNotFoundError):
            log.replace(log.with_name(f"{name}.previous.log"))
        return log

    def secret_file(self, name: str) -> Path:
        return self.part("secrets") / name

    def read_secret(self, name: str) -> str | None:
        return _read(self.secret_file(name))

    def write_secret(self, name: str, value: str) -> None:
        _write(self.secret_file(name), value)

    def recall(self, what: str) -> str | None:
        """What an earlier run asked to `remember` under this name."""
        return _read(self.part("state") / what)

    def remember(self, what: str, value: str) -> None:
        _write(self.part("state") / what, value)

    def forget(self, what: str) -> None:
        """Takes back what was asked to `remember`."""
        (self.part("state") / what).unlink(missing_ok=True)

    def secret(self, name: str, prefix: str = "") -> str:
        """The secret `name`, drawn from the system's randomness the first time it is asked for."""
        value = self.read_secret(name)
        if value is None:
            value = prefix + secrets.token_urlsafe(24)
            self.write_secret(name, value)
        return value

    def file_with_secret(self, name: str, prefix: str = "") -> str:
        """The path of the file that holds the secret `name`, for programs that read it there."""
        self.secret(name, prefix)
        return str(self.secret_file(name))

    def _lock(self, lock: IO[str]) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if self.recall(RUNNING) or time.monotonic() > deadline:
                    raise Mistake(
                        f"Another forgelet uses {self.path}: stop it or choose another --data-dir"
                    ) from None
                time.sleep(0.05)
            else:
                return

    def _create(self) -> None:
        if not self.path.is_dir():
            self.path.mkdir(parents=True)
            # PostgreSQL may have to run as another account, which passes through here into its own folder.
            self.path.chmod(0o711)
        self.part("secrets")


def _read(file: Path) -> str | None:
    try:
        return file.read_text().strip() or None
    except FileNotFoundError:
        return None


def _write(file: Path, value: str) -> None:
    """Replaces `file` at once or not at all, with mode 600."""
    scratch = file.with_name(f".{file.name}.new")
    scratch.touch(mode=0o600)
    scratch.write_text(f"{value}\n")
    scratch.replace(file)
