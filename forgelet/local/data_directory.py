"""The folder of one local forgelet: where it is, who may use it, its secrets, its parts, and what runs there.

A `forgelet up` writes down that it runs, and with which settings and addresses, so that commands find it.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import attrs

from common.config_errors import ConfigError
from forgelet import SERVERS

#: What a `forgelet up` has written down of itself is remembered under this name.
RUNNING = "running"
#: Whether people have been shown the administrator's token, likewise.
TOKEN_SHOWN = "root-token-shown"
#: Seconds for which a folder is waited for that a short command holds, or that is only looked at.
TIMEOUT = 5.0


class DataDirectory:
    """`path` and its parts; everything but the way through it is closed to other accounts."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Makes the folder if it is missing; one `up` or command at a time holds it, until its block or process ends.
        Raises `ConfigError` where it cannot be had."""
        try:
            self._create()
            lock = (self.path / "lock").open("a")
        except OSError as problem:
            raise ConfigError(
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
        """Whether somebody has it `opened` now; whoever was killed has not. Raises `ConfigError` where that is
        hidden."""
        try:
            with (self.path / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as problem:
            raise ConfigError(
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
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if self.recall(RUNNING) or time.monotonic() > deadline:
                    raise ConfigError(
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


#: The checkout that this is run from, None where it is installed.
CHECKOUT = None if SERVERS.is_dir() else SERVERS.parents[1]


def default_data_dir() -> Path:
    """`.forgelet` in a checkout; else the user's own folder for data (XDG), which is found from whatever folder."""
    return CHECKOUT / ".forgelet" if CHECKOUT else _home("XDG_DATA_HOME", ".local/share") / "forgelet"


@contextlib.contextmanager
def registration(data: DataDirectory) -> Iterator[None]:
    """Lets commands of this user find `data` for as long as the block lasts, if it is not the default folder. Where no
    home can be written they have to name it."""
    entry: Path | None = None
    with contextlib.suppress(OSError, ConfigError):
        entry = _entries() / hashlib.sha256(bytes(data.path)).hexdigest()[:16]
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        entry.write_text(f"{data.path}\n")
    try:
        yield
    finally:
        if entry is not None:
            with contextlib.suppress(OSError):
                entry.unlink()


def registered() -> list[DataDirectory]:
    """Folders in which a `forgelet up` of this user runs; what a killed one left is forgotten."""
    found = []
    with contextlib.suppress(OSError, ConfigError):
        for entry in sorted(_entries().iterdir()):
            data = DataDirectory(Path(entry.read_text().rstrip("\n")))
            if data.is_held():
                found.append(data)
            else:
                entry.unlink()
    return found


def cache_folder(name: str) -> Path:
    """The folder for what can be made again, of this user (XDG). Raises `ConfigError` where there is no home."""
    return _home("XDG_CACHE_HOME", ".cache") / "forgelet" / name


def _entries() -> Path:
    return _home("XDG_STATE_HOME", ".local/state") / "forgelet/instances"


def _home(variable: str, usual: str) -> Path:
    given = Path(os.environ.get(variable, ""))
    if given.is_absolute():
        return given
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - the other one raises where there is none
    if not home.is_absolute():
        raise ConfigError("This account has no home folder: name a folder by --data-dir")
    return home / usual


@attrs.frozen(kw_only=True)
class Running:
    """Written to a file that only its owner can read, since variables may hold secrets."""

    pid: int
    version: str
    api_url: str
    edge_url: str | None
    #: `FORGELET_...`, as both processes have them.
    variables: Mapping[str, str]


@contextlib.contextmanager
def written_down(
    data: DataDirectory, api_url: str, edge_url: str | None, variables: Mapping[str, str]
) -> Iterator[None]:
    """Lets commands that know `data` know for as long as the block lasts; it has to be `opened`."""
    from importlib import metadata  # every command imports this module, and this one takes a while

    own_variables = {name: text for name, text in variables.items() if name.startswith("FORGELET_")}
    running = Running(
        pid=os.getpid(),
        version=metadata.version("forgelet"),
        api_url=api_url,
        edge_url=edge_url,
        variables=own_variables,
    )
    data.remember(RUNNING, json.dumps(attrs.asdict(running)))
    try:
        yield
    finally:
        data.forget(RUNNING)


def found_running(data: DataDirectory) -> Running | None:
    """What the one that runs has written; None where none runs. Raises `ConfigError` where another command uses
    `data` for long.

    What a killed one has written does not count: its hold on the folder has ended with it, and whoever holds the folder
    next forgets it.
    """
    deadline = time.monotonic() + TIMEOUT
    while data.is_held():
        if text := data.recall(RUNNING):
            return Running(**json.loads(text))
        if time.monotonic() > deadline:
            raise ConfigError(
                f"forgelet is just starting in {data.path}, or another command works there: try again"
            )
        time.sleep(0.05)
    return None
