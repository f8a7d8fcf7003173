"""The folder of one local forgelet: its lock, its secrets, its parts, and the record of the running processes.

A running `forgelet up` records its settings and addresses there, so that commands find it.
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

#: The name under which a `forgelet up` records its settings and addresses.
RUNNING = "running"
#: The name under which it records that the administrator's token has been shown.
TOKEN_SHOWN = "root-token-shown"
#: Seconds to wait for a folder that a short command holds or examines.
TIMEOUT = 5.0


class DataDirectory:
    """The folder `path` and its parts. Other accounts can enter it, but read nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Hold the folder, and create it if it is missing. One `up` or command at a time can hold it, until its block
        or process ends. Raise `ConfigError` if it cannot be used, or contains something else."""
        try:
            self._create()
            lock = (self.path / "lock").open("a")
        except OSError as problem:
            raise ConfigError(
                f"The data directory {self.path} cannot be used ({problem.strerror}): choose another"
            ) from None
        with lock:
            self._lock(lock)
            self.forget(RUNNING)  # the record of a killed `up`
            yield

    def exists(self) -> bool:
        """Return whether the folder was ever `opened`."""
        return (self.path / "lock").exists()

    def is_held(self) -> bool:
        """Return whether a living process has `opened` the folder. Raise `ConfigError` if it cannot be read."""
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
        """Return the sub-folder `name`, which only this account can read."""
        path = self.path / name
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def log(self, name: str) -> Path:
        """Return the log file of one process. The log of the previous run is kept as `<name>.previous.log`."""
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

    def recall(self, name: str) -> str | None:
        """Return the value that an earlier run gave to `remember`, or None."""
        return _read(self.part("state") / name)

    def remember(self, name: str, value: str) -> None:
        _write(self.part("state") / name, value)

    def forget(self, name: str) -> None:
        """Remove the value that was given to `remember`."""
        (self.part("state") / name).unlink(missing_ok=True)

    def secret(self, name: str, prefix: str = "") -> str:
        """Return the secret `name`. It is generated at the first call."""
        value = self.read_secret(name)
        if value is None:
            value = prefix + secrets.token_urlsafe(24)
            self.write_secret(name, value)
        return value

    def file_with_secret(self, name: str, prefix: str = "") -> str:
        """Return the path of the file that holds the secret `name`."""
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
            # PostgreSQL may run as another account, which must be able to reach its own folder below this one.
            self.path.chmod(0o711)
        elif not self.exists() and any(map(_is_something_else, self.path.iterdir())):
            raise ConfigError(
                f"The data directory {self.path} contains something else: choose an empty one, or one that does not"
                " exist"
            )
        self.part("secrets")


def _is_something_else(entry: Path) -> bool:
    """Return whether an entry of a new data directory is no left-over of a first start, no folder of a disk, and no
    hidden one: in a container the directory is also the account's home."""
    return entry.name not in {"secrets", "lost+found"} and not entry.name.startswith(".")


def _read(file: Path) -> str | None:
    try:
        return file.read_text().strip() or None
    except FileNotFoundError:
        return None


def _write(file: Path, value: str) -> None:
    """Replace `file` atomically, with mode 600."""
    scratch = file.with_name(f".{file.name}.new")
    scratch.touch(mode=0o600)
    scratch.write_text(f"{value}\n")
    scratch.replace(file)


#: The checkout that this program runs from, or None if it is installed.
CHECKOUT = None if SERVERS.is_dir() else SERVERS.parents[1]


def default_data_dir() -> Path:
    """Return `.forgelet` in a checkout, otherwise the user's data folder (XDG), which is the same from any folder."""
    return CHECKOUT / ".forgelet" if CHECKOUT else _home("XDG_DATA_HOME", ".local/share") / "forgelet"


@contextlib.contextmanager
def registration(data: DataDirectory) -> Iterator[None]:
    """Let commands of this user find `data` for the duration of the block, if it is not the default folder. Without a
    writable home, commands have to name it."""
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
    """Return the folders in which a `forgelet up` of this user runs. Remove the entries of killed processes."""
    running = []
    with contextlib.suppress(OSError, ConfigError):
        for entry in sorted(_entries().iterdir()):
            data = DataDirectory(Path(entry.read_text().rstrip("\n")))
            if data.is_held():
                running.append(data)
            else:
                entry.unlink()
    return running


def cache_folder(name: str) -> Path:
    """Return this user's folder (XDG) for data that can be created again. Raise `ConfigError` if there is no home."""
    return _home("XDG_CACHE_HOME", ".cache") / "forgelet" / name


def _entries() -> Path:
    return _home("XDG_STATE_HOME", ".local/state") / "forgelet/instances"


def _home(variable: str, usual: str) -> Path:
    folder = Path(os.environ.get(variable, ""))
    if folder.is_absolute():
        return folder
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises if there is none
    if not home.is_absolute():
        raise ConfigError("This account has no home folder: name a folder with --data-dir")
    return home / usual


@attrs.frozen(kw_only=True)
class Running:
    """The record of a running `forgelet up`. Only its owner can read the file, as variables may contain secrets."""

    pid: int
    version: str
    api_url: str
    edge_url: str | None
    #: The `FORGELET_...` variables of both processes.
    variables: Mapping[str, str]


@contextlib.contextmanager
def written_down(
    data: DataDirectory, api_url: str, edge_url: str | None, variables: Mapping[str, str]
) -> Iterator[None]:
    """Record for commands, for the duration of the block, that `data` is in use. It must be `opened`."""
    from importlib import metadata  # imported here, because every command imports this module

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
    """Return the record of the running `forgelet up`, or None if none runs. Raise `ConfigError` if another command uses
    `data` for long.

    The record of a killed process is ignored: its lock has ended with it, and the next process that holds the folder
    removes the record.
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
