"""Which names refs may have: git-check-ref-format, and what is the server's own."""

import re

from api_server.git.errors import InvalidNameError

BRANCHES = "refs/heads/"
TAGS = "refs/tags/"
#: Namespaces that only the server writes. Heads of merge requests can be fetched, the others are hidden.
MERGE_REQUESTS = "refs/merge-requests/"
KEEP_AROUND = "refs/keep-around/"
INTERNAL = (MERGE_REQUESTS, KEEP_AROUND)

FULL_SHA = re.compile(r"[0-9a-f]{40}")
NO_COMMIT = "0" * 40

#: Longer names exist on no known server; the bound keeps the search for refs in a URL cheap.
MAX_NAME_BYTES = 1024
_MAX_COMPONENT_BYTES = 255  # a component is a file name
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//")


def is_valid_ref_name(name: str) -> bool:
    """Whether `name`, below refs/heads/ or refs/tags/, passes the nine rules of git-check-ref-format(1)."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return False
    if not 0 < length <= MAX_NAME_BYTES or name == "@" or name.endswith(".") or _FORBIDDEN.search(name):
        return False
    return all(
        part
        and not part.startswith(".")
        and not part.endswith(".lock")
        and len(part.encode()) <= _MAX_COMPONENT_BYTES
        for part in name.split("/")
    )


def check_branch_name(name: str) -> None:
    """Raises `InvalidNameError` unless a user may give a new branch or tag this name.

    Stricter than `is_valid_ref_name`, as `git branch` is: no leading "-", not HEAD; and not 40 hexadecimal
    digits, because a full SHA in a URL always means the commit.
    """
    if not is_valid_ref_name(name) or name.startswith("-") or name == "HEAD" or FULL_SHA.fullmatch(name):
        raise InvalidNameError(f"{name!r} is not a valid name for a branch or tag.")
