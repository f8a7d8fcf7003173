"""Patterns of paths as requests send them: `*` and `?` stay between two slashes, `**` goes beyond."""

import re
from functools import lru_cache

from api_server.testing.steering import refused
from common.static_paths import origin_form

#: Characters of a pattern.
LONGEST = 1_000

_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")


def sent_path(raw_path: str) -> str:
    """The path of a request's target without its query, percent-encoded as it was sent, `%2f` as `%2F`."""
    path = origin_form(raw_path).partition("?")[0]
    return _ENCODED.sub(lambda code: code[0].upper(), path) if "%" in path else path


def fits(pattern: str, path: str) -> bool:
    """Whether the whole of `path`, a `sent_path`, is as `pattern` says."""
    return _compiled(pattern).fullmatch(path) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    first, *after = _ENCODED.sub(lambda code: code[0].upper(), pattern).split("**")
    if not after:
        return re.compile(_step(first, is_last=True), re.DOTALL)
    *between, last = after
    whole = [
        _step(first),
        *(_once(f".*?{_step(part)}") for part in between),
        f".*?{_step(last, is_last=True)}",
    ]
    return re.compile("".join(whole), re.DOTALL)


def _step(part: str, *, is_last: bool = False) -> str:
    """What stands between two `**`."""
    first, *after = (re.escape(fixed).replace(r"\?", "[^/]") for fixed in part.split("*"))
    if not after or not is_last:
        return "".join([first, *(_once(f"[^/]*?{fixed}") for fixed in after)])
    *between, last = after
    return "".join([first, *(_once(f"[^/]*?{fixed}") for fixed in between), f"[^/]*{last}"])


def _once(expression: str) -> str:
    """What fits first is never given up again: nothing later could fit better, and looking for that would take for
    ever."""
    return f"(?>{expression})"


def check_pattern(name: str, pattern: str) -> str:
    """The pattern; `*` alone is every path. Raises 400 for one that no path can be like, as `name` of what is sent."""
    if pattern == "*":
        return "**"
    if not pattern.startswith(("/", "*")):
        raise refused(f"{name} has to begin with / or **, since it stands for a whole path: /api/v4/version.")
    if "?" in pattern and "=" in pattern:
        raise refused(f"{name} stands for a path without its query.")
    if len(pattern) > LONGEST:
        raise refused(f"{name} has more than {LONGEST} characters.")
    return pattern
