"""Folders for clusters of our own PostgreSQL, where the account that runs it can reach them."""

import os
import tempfile
from pathlib import Path

from forgelet.local.processes import Account, make_passable

#: Where root keeps clusters whose owner cannot enter the data directory; a symbolic link there leads here.
ROOTS_CLUSTERS = Path("/var/lib/forgelet")


def made(wanted: Path) -> Path:
    """Makes sure that there is a folder for a cluster at `wanted` and returns where it really is.

    As root it is given to an unprivileged account; where that account cannot reach `wanted`, the folder lies
    below /var/lib/forgelet and `wanted` is a symbolic link to it. Existing folders keep their permissions.
    """
    if wanted.exists():
        return wanted.resolve()
    if os.geteuid() != 0:
        wanted.mkdir(mode=0o700)
        return wanted
    account = Account.named("postgres", "nobody")
    if account.may_enter(wanted.parent):
        wanted.mkdir(mode=0o700)
        give(wanted, account)
        return wanted
    make_passable(ROOTS_CLUSTERS)
    place = Path(tempfile.mkdtemp(prefix="postgres-", dir=ROOTS_CLUSTERS))
    give(place, account)
    wanted.unlink(missing_ok=True)
    wanted.symlink_to(place)
    return place


def temporary_root() -> str:
    """The machine's temporary folder, or /tmp where an unprivileged account cannot enter that one."""
    usual = tempfile.gettempdir()
    if os.geteuid() != 0 or Account.named("postgres", "nobody").may_enter(Path(usual)):
        return usual
    return "/tmp"


def give(path: Path, account: Account) -> None:
    """Makes it the account's, where that is not who we are."""
    if not account.is_ours:
        os.chown(path, account.uid, account.gid)
