"""Regular expressions (`/text/flags`, RE2 syntax) and path globs, both safe on hostile input; they raise `TooCostly`
where they would take too long."""

import re

import re2
from attrs import define, field

from api_server.ci.config.errors import ConfigError
from api_server.expressions import Expression, compile_expression

_DELIMITED = re.compile(r"^/(.*)/([ismU]*)$", re.MULTILINE)
_REGEX_OF_PROJECT = re.compile(r"(/.*?/[ismU]*)(?:@(.+))?", re.DOTALL)
_MAGIC = set("*?[{\\")
MAX_GLOB = 1000
#: Bytes of paths that one configuration may have compared with its globs, all in all (seconds of work).
MAX_SCANNED = 500_000_000


def compile_regex(text: str) -> Expression:
    """The compiled RE2 expression of `text`; ValueError when RE2 does not take it (look-around, for one)."""
    try:
        return compile_expression(text)
    except ValueError as error:
        raise ValueError(f"invalid regular expression: {error}") from None


def parse_delimited(text: str) -> Expression:
    """The compiled expression of `/text/flags`, flags of `i`, `s`, `m`, `U`; ValueError for anything else.

    Of several lines the first one that is so counts, as in GitLab.
    """
    match = _DELIMITED.search(text)
    if match is None:
        raise ValueError("should be a regular expression between slashes")
    body, flags = match.groups()
    return compile_regex((f"(?{flags})" if flags else "") + body)


def ref_and_project(text: str) -> tuple[str, str | None]:
    """An item of `only:refs`, `main`, `/regex/` or either with `@group/app` behind it: the ref, and the one project
    that it is about (None: any)."""
    if (match := _REGEX_OF_PROJECT.fullmatch(text)) is not None:
        return match[1], match[2]
    ref, at, project = text.partition("@")
    return ref, project if at else None


def check_ref(text: str) -> str:
    """The item; ValueError for one whose regular expression is none."""
    ref, _ = ref_and_project(text)
    if ref.startswith("/"):
        parse_delimited(ref)
    return ref


def compile_glob(glob: str) -> Expression:
    """The whole-line expression of a glob: `*` and `?` stay in a folder, `**` does not; `{a,b}`, `[a-z]`."""
    if len(glob) > MAX_GLOB:
        raise ValueError(f"a path pattern is at most {MAX_GLOB} characters long")
    out, at, braces = [], 0, 0
    while at < len(glob):
        piece, at, braces = _translate(glob, at, braces)
        out.append(piece)
    if braces:
        raise ValueError(f"the path pattern {glob} leaves a brace open")
    return compile_regex("(?m)^" + "".join(out) + "$")


def _translate(glob: str, at: int, braces: int) -> tuple[str, int, int]:
    """One piece of the glob: its expression, where the next one starts, how many braces are open then."""
    if glob.startswith("**/", at) and (at == 0 or glob[at - 1] == "/"):
        return r"(?:[^/\n]+/)*", at + 3, braces
    if glob.startswith("**", at):
        return ".*", at + 2, braces
    match glob[at]:
        case "*":
            return r"[^/\n]*", at + 1, braces
        case "?":
            return r"[^/\n]", at + 1, braces
        case "{":
            return "(?:", at + 1, braces + 1
        case "}" if braces:
            return ")", at + 1, braces - 1
        case "," if braces:
            return "|", at + 1, braces
        case "\\" if at + 1 < len(glob):
            return re2.escape(glob[at + 1]), at + 2, braces
        case "[" if (end := glob.find("]", at + 2)) > 0:
            negated = glob[at + 1] in "!^"
            inside = glob[at + 1 + negated : end].replace("\\", "\\\\").replace("[", "\\[")
            return f"[^/\\n{inside}]" if negated else f"[{inside}]", end + 1, braces
        case other:
            return re2.escape(other), at + 1, braces


@define
class PathSet:
    """Paths of a commit or a change, asked by globs; a glob asked again costs nothing."""

    paths: frozenset[str]
    _found: dict[str, list[str]] = field(factory=dict, init=False)
    _left: int = MAX_SCANNED
    #: All paths, one a line, so that few passes of RE2 compare them all; None until a glob asks.
    _lines: bytes | None = field(default=None, init=False)

    def matching(self, glob: str) -> list[str]:
        """The paths that match, sorted (a leading slash is the repository's root); ValueError: no glob."""
        glob = glob.lstrip("/")
        if not _MAGIC & set(glob):
            return [glob] if glob in self.paths else []
        if glob not in self._found:
            self._found[glob] = self._scan(compile_glob(glob))
        return self._found[glob]

    def _scan(self, expression: Expression) -> list[str]:
        if self._lines is None:
            self._lines = "\n".join(sorted(path for path in self.paths if "\n" not in path)).encode(
                errors="surrogateescape"
            )
        self._left -= len(self._lines)
        if self._left < 0:
            raise ConfigError("The configuration compares too many path patterns with too many files")
        return [line.decode(errors="surrogateescape") for line in expression.lines(self._lines) if line]
