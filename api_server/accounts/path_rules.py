"""The rules for paths: user names, and the names of groups and projects in URLs."""

import re
from collections.abc import Set as AbstractSet

MAX_LENGTH = 255
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
_BAD_ENDINGS = (".git", ".atom", ".", "-")
#: In patterns of routes: the full path of a project, which does not extend into the project's pages and
#: files.
PROJECT_PATH = r"(?:(?!/-/|/raw/).)+"
_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9_.\-]*"
#: In patterns of routes: full paths of projects, groups and users; none has a segment `-`.
FULL_PATH = rf"{_SEGMENT}(?:/{_SEGMENT})*"
#: Names with another meaning at the top level.
RESERVED_ROOTS = frozenset(
    [
        "-",
        "admin",
        "api",
        "assets",
        "dashboard",
        "explore",
        "favicon.ico",
        "groups",
        "health_check",
        "help",
        "new",
        "oauth",
        "profile",
        "projects",
        "public",
        "raw",
        "robots.txt",
        "search",
        "users",
    ]
)


def problem_with(path: str, reserved: AbstractSet[str] = RESERVED_ROOTS) -> str | None:
    """Return the reason why `path` is not allowed where the names in `reserved` have another meaning, or
    None."""
    if not _PATH.fullmatch(path) or path.lower().endswith(_BAD_ENDINGS):
        return (
            "can contain only letters, digits, '_', '-' and '.'. "
            "Cannot start with '-', end in '.git' or end in '.atom'"
        )
    if len(path) > MAX_LENGTH:
        return f"is too long (maximum is {MAX_LENGTH} characters)"
    if path.lower() in reserved:
        return f"{path} is a reserved name"
    return None
