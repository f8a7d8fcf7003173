"""Regular expressions (`/text/flags`, RE2 syntax) and the two languages of path patterns, safe for hostile
input; they raise `TooCostly` instead of running too long."""

import re
from collections.abc import Callable
from itertools import pairwise
from threading import Lock

import re2
from attrs import define, field
from cachetools import LRUCache, cached

from api_server.ci.config.errors import CiConfigError
from api_server.expressions import Expression, compile_expression, paid

_DELIMITED = re.compile(r"^/(.*)/([ismU]*)$", re.MULTILINE)
_REGEX_OF_PROJECT = re.compile(r"(/.*?/[ismU]*)(?:@(.+))?", re.DOTALL)
_MAGIC = set("*?[{\\")
MAX_GLOB = 1000
#: Maximum braces of a pattern, maximum patterns that it may stand for with them, and maximum characters of
#: the combined expressions.
MAX_BRACES = 100
MAX_ALTERNATIVES = 256
_MAX_TOGETHER = 2000
#: Characters of all expressions that are cached.
_CACHE_CHARACTERS = 4 * 1024 * 1024
#: Maximum bytes of paths that one configuration may compare with its globs in total (seconds of work).
MAX_SCANNED = 500_000_000


def compile_regex(text: str) -> Expression:
    """Return the compiled RE2 expression. Raise ValueError for unsupported syntax, such as look-around."""
    try:
        return compile_expression(text)
    except ValueError as error:
        raise ValueError(f"invalid regular expression: {error}") from None


def parse_delimited(text: str) -> Expression:
    """Return the compiled expression of `/text/flags`, with the flags `i`, `s`, `m`, `U`. Raise ValueError
    for anything else.

    If there are several lines, the first one of that form counts, as in GitLab.
    """
    match = _DELIMITED.search(text)
    if match is None:
        raise ValueError("should be a regular expression between slashes")
    body, flags = match.groups()
    return compile_regex((f"(?{flags})" if flags else "") + body)


def ref_and_project(text: str) -> tuple[str, str | None]:
    """Split an item of `only:refs` - `main` or `/regex/`, optionally followed by `@group/app` - into the ref
    and the one project that it applies to (None: any)."""
    if (match := _REGEX_OF_PROJECT.fullmatch(text)) is not None:
        return match[1], match[2]
    ref, separator, project = text.partition("@")
    return ref, project if separator else None


def check_ref(text: str) -> str:
    """Return the item. Raise ValueError if its regular expression is invalid."""
    ref, _ = ref_and_project(text)
    if ref.startswith("/"):
        parse_delimited(ref)
    return ref


def compile_glob(glob: str) -> list[Expression]:
    """Return expressions for whole lines, which match like Ruby's `File.fnmatch` with FNM_PATHNAME,
    FNM_DOTMATCH and FNM_EXTGLOB.

    A path matches if any of them does: `*`, `?` and `[a-z]` match no slash, `**/` matches any number of
    folders, and `{a,b}` either alternative. Raise ValueError if the pattern is too large.
    """
    return [compile_regex(text) for text in _expressions_of(glob)]


def compile_wildcard(pattern: str) -> list[Expression]:
    """Return expressions like `compile_glob`, in the language of `include:local`: `**` is any text, `*` any
    text without a slash, and every other character stands for itself."""
    _check_length(pattern)
    wild = {"**": ".*", "*": r"[^/\n]*"}
    parts = (wild.get(part) or re2.escape(part) for part in re.split(r"(\*\*?)", pattern))
    return [compile_regex("(?m)^" + "".join(parts) + "$")]


def _check_length(pattern: str) -> None:
    if len(pattern) > MAX_GLOB:
        raise ValueError(f"a path pattern is at most {MAX_GLOB} characters long")


@cached(LRUCache(_CACHE_CHARACTERS, getsizeof=lambda texts: 100 + sum(map(len, texts))), lock=Lock())
def _expressions_of(glob: str) -> list[str]:
    """Return as few expressions as are needed: there may be many alternatives, and an expression has a
    limited size."""
    _check_length(glob)
    groups: list[list[str]] = []
    space = 0
    with paid():
        for text in _without_braces(glob):
            piece = _translated(text)
            if piece is None:
                continue
            if not groups or len(piece) > space:
                groups.append([])
                space = _MAX_TOGETHER
            groups[-1].append(piece)
            space -= len(piece)
    return [f"(?m)^(?:{'|'.join(group)})$" for group in groups]


def _without_braces(glob: str) -> list[str]:
    """Return the patterns that a pattern with braces stands for; none if a brace is not closed."""
    if glob.count("{") > MAX_BRACES:
        raise ValueError(f"a path pattern has at most {MAX_BRACES} braces")
    alternatives, pending = [], [glob]
    while pending:
        text = pending.pop()
        borders = _borders(text)
        if not borders:
            alternatives.append(text)
        elif text[borders[-1]] == "}":
            before, after = text[: borders[0]], text[borders[-1] + 1 :]
            pending += [before + text[start + 1 : end] + after for start, end in pairwise(borders)]
        if len(alternatives) + len(pending) > MAX_ALTERNATIVES:
            raise ValueError(f"the path pattern {glob} stands for more than {MAX_ALTERNATIVES} others")
    return alternatives


def _borders(glob: str) -> list[int]:
    """Return the positions of the first opening brace, its commas and its closing brace, if it has one; []
    without a brace."""
    borders: list[int] = []
    depth = 0
    for match in re.finditer(r"\\.|[{},]", glob, re.DOTALL):
        char = match[0]
        if char in "{},":
            outside = depth
            depth += {"{": 1, ",": 0, "}": -(depth > 0)}[char]
            if max(outside, depth) == 1:
                borders.append(match.start())
            if outside > depth == 0:
                break
    return borders


_PIECE = re.compile(
    r"(?P<folders>(?<![^/])(?:\*\*/)+)|(?P<any>\*+)|(?P<one>\?)|(?P<set>\[)|(?P<nothing>\\\Z)|\\?(?P<char>.)",
    re.DOTALL,
)
_WILD = {"folders": r"(?:[^/\n]*/)*", "any": r"[^/\n]*", "one": r"[^/\n]", "nothing": ""}


def _translated(glob: str) -> str | None:
    """Return the expression for a pattern without braces; None if nothing can match it."""
    out, position = "", 0
    while match := _PIECE.match(glob, position):
        position = match.end()
        if match["char"]:
            out += re2.escape(match["char"])
        elif match["set"]:
            characters, position = _set(glob, position)
            if characters is None:
                return None
            out += characters
        else:
            out += _WILD[match.lastgroup or "nothing"]
    return out


_RANGE = re.compile(r"\\?(.)(?:-(?!\])\\?(.))?", re.DOTALL)


def _set(glob: str, position: int) -> tuple[str | None, int]:
    """Return the character class that begins there, and its end; None if nothing can match."""
    negated = glob[position : position + 1] in ("!", "^")
    position += negated
    members = ""
    while glob[position : position + 1] != "]":
        match = _RANGE.match(glob, position)
        if match is None:
            return None, position
        position = match.end()
        members += _range(match[1], match[2] or match[1], without="" if negated else "\n/")
    if negated:
        return rf"[^/\n{members}]", position + 1
    return f"[{members}]" if members else None, position + 1


def _range(first: str, last: str, without: str) -> str:
    """Return a range of characters in the notation of a class."""
    low, high = ord(first), ord(last)
    for hole in map(ord, without):
        if low <= hole <= high:
            return _range(first, chr(hole - 1), without) + _range(chr(hole + 1), last, without)
    return rf"\x{{{low:x}}}-\x{{{high:x}}}" if low <= high else ""


@define
class PathSet:
    """The paths of a commit or a change, searched by patterns; the result of each pattern is cached."""

    paths: frozenset[str]
    _matches: dict[tuple[str, str], list[str]] = field(factory=dict, init=False)
    _budget: int = MAX_SCANNED
    #: All paths, one a line, so that few passes of RE2 search them all; None until a pattern is searched.
    _lines: bytes | None = field(default=None, init=False)

    def matching(self, glob: str) -> list[str]:
        """Return the paths that match by the rules of `compile_glob`, sorted. Raise ValueError if the pattern
        is too large."""
        if not _MAGIC & set(glob):
            return [glob] if glob in self.paths else []
        return self._scanned(compile_glob, glob)

    def included(self, pattern: str) -> list[str]:
        """Return the matching paths like `matching`, by the rules of `compile_wildcard`."""
        return self._scanned(compile_wildcard, pattern)

    def _scanned(self, compiling: Callable[[str], list[Expression]], pattern: str) -> list[str]:
        key = (compiling.__name__, pattern)
        if key not in self._matches:
            paths = {path for expression in compiling(pattern) for path in self._scan(expression)}
            self._matches[key] = sorted(paths)
        return self._matches[key]

    def _scan(self, expression: Expression) -> list[str]:
        if self._lines is None:
            self._lines = "\n".join(sorted(path for path in self.paths if "\n" not in path)).encode(
                errors="surrogateescape"
            )
        self._budget -= len(self._lines)
        if self._budget < 0:
            raise CiConfigError("The configuration compares too many path patterns with too many files")
        return [line.decode(errors="surrogateescape") for line in expression.lines(self._lines) if line]
