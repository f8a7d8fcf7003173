"""Processes of this machine as /proc shows them."""

from pathlib import Path


def runs(pid: int) -> bool:
    """Whether the process is there, and more than an entry in the table that nobody has collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
