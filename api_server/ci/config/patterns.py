"""Regular expressions (`/text/flags`, RE2 syntax) and the two languages of path patterns, safe on hostile input; they
raise `TooCostly` where they would take too long."""

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
#: Braces of a pattern, patterns that it may stand for with them, and characters of the expressions that these become.
MAX_BRACES = 100
MAX_ALTERNATIVES = 256
_MAX_TOGETHER = 2000
#: Characters of all expressions that are cached.
_CACHE_CHARACTERS = 4 * 1024 * 1024
#: Bytes of paths that one configuration may have compared with its globs, all in all (seconds of work).
MAX_SCANNED = 500_000_000


def compile_regex(text: str) -> Expression:
    """Return the compiled RE2 expression. Raises ValueError for what RE2 does not support, such as look-around."""
    try:
        return compile_expression(text)
    except ValueError as error:
        raise ValueError(f"invalid regular expression: {error}") from None


def parse_delimited(text: str) -> Expression:
    """Return the compiled expression of `/text/flags`, with the flags `i`, `s`, `m`, `U`; ValueError for anything else.

    Of several lines the first one of that form counts, as in GitLab.
    """
    match = _DELIMITED.search(text)
    if match is None:
        raise ValueError("should be a regular expression between slashes")
    body, flags = match.groups()
    return compile_regex((f"(?{flags})" if flags else "") + body)


def ref_and_project(text: str) -> tuple[str, str | None]:
    """Split an item of `only:refs` - `main` or `/regex/`, either with `@group/app` behind it - into the ref and the one
    project that it is about (None: any)."""
    if (match := _REGEX_OF_PROJECT.fullmatch(text)) is not None:
        return match[1], match[2]
    ref, at, project = text.partition("@")
    return ref, project if at else None


def check_ref(text: str) -> str:
    """Return the item. Raises ValueError if its regular expression is invalid."""
    ref, _ = ref_and_project(text)
    if ref.startswith("/"):
        parse_delimited(ref)
    return ref


def compile_glob(glob: str) -> list[Expression]:
    """Return expressions for whole lines, which match as Ruby's `File.fnmatch` does with FNM_PATHNAME, FNM_DOTMATCH and
    FNM_EXTGLOB.

    A path matches if any of them does: `*`, `?` and `[a-z]` stay between two slashes, `**/` is any number of folders,
    and `{a,b}` is either. Raises ValueError where the pattern is too large.
    """
    return [compile_regex(text) for text in _expressions_of(glob)]


def compile_wildcard(pattern: str) -> list[Expression]:
    """As `compile_glob`, in the language of `include:local`: `**` is any text, `*` any text without a slash, and all
    else stands for itself."""
    _check_length(pattern)
    wild = {"**": ".*", "*": r"[^/\n]*"}
    parts = (wild.get(part) or re2.escape(part) for part in re.split(r"(\*\*?)", pattern))
    return [compile_regex("(?m)^" + "".join(parts) + "$")]


def _check_length(pattern: str) -> None:
    if len(pattern) > MAX_GLOB:
        raise ValueError(f"a path pattern is at most {MAX_GLOB} characters long")


@cached(LRUCache(_CACHE_CHARACTERS, getsizeof=lambda texts: 100 + sum(map(len, texts))), lock=Lock())
def _expressions_of(glob: str) -> list[str]:
    """Return as few expressions as are needed: there may be many alternatives, and an expression has a limit."""
    _check_length(glob)
    groups: list[list[str]] = []
    left = 0
    with paid():
        for text in _without_braces(glob):
            piece = _translated(text)
            if piece is None:
                continue
            if not groups or len(piece) > left:
                groups.append([])
                left = _MAX_TOGETHER
            groups[-1].append(piece)
            left -= len(piece)
    return [f"(?m)^(?:{'|'.join(group)})$" for group in groups]


def _without_braces(glob: str) -> list[str]:
    """Return the patterns that a pattern with braces stands for; none where a brace is left open."""
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
            pending += [before + text[at + 1 : to] + after for at, to in pairwise(borders)]
        if len(alternatives) + len(pending) > MAX_ALTERNATIVES:
            raise ValueError(f"the path pattern {glob} stands for more than {MAX_ALTERNATIVES} others")
    return alternatives


def _borders(glob: str) -> list[int]:
    """Return the positions of the first opening brace, its commas and its closing brace, if it has one; [] without a
    brace."""
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
    out, at = "", 0
    while match := _PIECE.match(glob, at):
        at = match.end()
        if match["char"]:
            out += re2.escape(match["char"])
        elif match["set"]:
            characters, at = _set(glob, at)
            if characters is None:
                return None
            out += characters
        else:
            out += _WILD[match.lastgroup or "nothing"]
    return out


_RANGE = re.compile(r"\\?(.)(?:-(?!\])\\?(.))?", re.DOTALL)


def _set(glob: str, at: int) -> tuple[str | None, int]:
    """Return the class of characters that begins there, and its end; None where nothing can match."""
    negated = glob[at : at + 1] in ("!", "^")
    at += negated
    named = ""
    while glob[at : at + 1] != "]":
        match = _RANGE.match(glob, at)
        if match is None:
            return None, at
        at = match.end()
        named += _range(match[1], match[2] or match[1], without="" if negated else "\n/")
    if negated:
        return rf"[^/\n{named}]", at + 1
    return f"[{named}]" if named else None, at + 1


def _range(first: str, last: str, without: str) -> str:
    """Return a range of characters as it stands in a class."""
    low, high = ord(first), ord(last)
    for hole in map(ord, without):
        if low <= hole <= high:
            return _range(first, chr(hole - 1), without) + _range(chr(hole + 1), last, without)
    return rf"\x{{{low:x}}}-\x{{{high:x}}}" if low <= high else ""


@define
class PathSet:
    """The paths of a commit or a change, searched by patterns; the answer to each pattern is kept."""

    paths: frozenset[str]
    _matches: dict[tuple[str, str], list[str]] = field(factory=dict, init=False)
    _left: int = MAX_SCANNED
    #: All paths, one a line, so that few passes of RE2 compare them all; None until a pattern asks.
    _lines: bytes | None = field(default=None, init=False)

    def matching(self, glob: str) -> list[str]:
        """Return the paths that match, as `compile_glob` says, sorted. Raises ValueError where the pattern is too
        large."""
        if not _MAGIC & set(glob):
            return [glob] if glob in self.paths else []
        return self._scanned(compile_glob, glob)

    def included(self, pattern: str) -> list[str]:
        """As `matching`, by the rules of `compile_wildcard`."""
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
        self._left -= len(self._lines)
        if self._left < 0:
            raise CiConfigError("The configuration compares too many path patterns with too many files")
        return [line.decode(errors="surrogateescape") for line in expression.lines(self._lines) if line]
