"""Names that refs may have: the rules of git-check-ref-format(1), and the names that belong to the server."""

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

#: Maximum number of bytes of a full name, including `refs/heads/`: libgit2 looks up no longer ones.
MAX_NAME_BYTES = 1023
_MAX_COMPONENT_BYTES = 250  # a component is a file name, and so is its lock `<name>.lock`
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]")
_FORBIDDEN_WITHIN = ("..", "@{", "//", "/.", ".lock/")
#: Beginnings of names that git, or a URL with a path after the name, would interpret as something else.
_MISLEADING = re.compile(r"-|@\Z|refs/|(?:HEAD|[0-9a-fA-F]{40})(?:/|\Z)")


def is_valid_ref_name(name: str) -> bool:
    """Return whether the full name `name` (`refs/heads/main`) passes git-check-ref-format(1) and can be stored."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return False
    if not 0 < length <= MAX_NAME_BYTES or "/" not in name or _FORBIDDEN.search(name):
        return False
    # This does not check part by part, to be fast: a URL may contain hundreds of names that are tried one after the
    # other.
    if name.startswith(("/", ".")) or name.endswith(("/", ".", ".lock")):
        return False
    if any(sequence in name for sequence in _FORBIDDEN_WITHIN):
        return False
    return length <= _MAX_COMPONENT_BYTES or _longest_component(name) <= _MAX_COMPONENT_BYTES


def _longest_component(name: str) -> int:
    return max(map(len, name.encode().split(b"/")))


def is_branch_name(name: str) -> bool:
    """Return whether a new branch or tag may have this name, however it is created (decision D11).

    This is stricter than `is_valid_ref_name`: a name that has another meaning for git (`HEAD`, `refs/...`, 40
    hexadecimal digits, an option) would replace that meaning wherever a ref is expected.
    """
    return is_valid_ref_name(BRANCHES + name) and not _MISLEADING.match(name)


def is_hidden(ref: str) -> bool:
    """Return whether git itself refuses to move the ref, because it is in a namespace of the server."""
    return f"{ref}/".startswith(INTERNAL)


def check_branch_name(name: str) -> None:
    """Raise `InvalidNameError` unless `is_branch_name` accepts the name."""
    if not is_branch_name(name):
        raise InvalidNameError(f"{name!r} is not a valid name for a branch or tag.")


def short_name(ref: str) -> str | None:
    """Return `main` for `refs/heads/main` and for `refs/tags/main`, or None for other refs."""
    return next((ref.removeprefix(kind) for kind in (BRANCHES, TAGS) if ref.startswith(kind)), None)
