"""Where `forgelet up` keeps things by default, and where it writes down that it runs, so that commands find it."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from common.mistakes import Mistake
from forgelet import SERVERS
from forgelet.local.data_directory import DataDirectory

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
    with contextlib.suppress(OSError, Mistake):
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
    with contextlib.suppress(OSError, Mistake):
        for entry in sorted(_entries().iterdir()):
            data = DataDirectory(Path(entry.read_text().rstrip("\n")))
            if data.is_held():
                found.append(data)
            else:
                entry.unlink()
    return found


def cache(name: str) -> Path:
    """The folder for what can be made again, of this user (XDG). Raises `Mistake` where there is no home."""
    return _home("XDG_CACHE_HOME", ".cache") / "forgelet" / name


def _entries() -> Path:
    return _home("XDG_STATE_HOME", ".local/state") / "forgelet/instances"


def _home(variable: str, usual: str) -> Path:
    given = Path(os.environ.get(variable, ""))
    if given.is_absolute():
        return given
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - the other one raises where there is none
    if not home.is_absolute():
        raise Mistake("This account has no home folder: name a folder by --data-dir")
    return home / usual
