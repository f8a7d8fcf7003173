"""The condition language of `rules:if`: `$A == "x" && ($B =~ /^v\\d/i || $C != null)`.

or      = and ("||" and)*
and     = term ("&&" term)*
term    = "(" or ")" | operand [("==" | "!=") operand | ("=~" | "!~") (regex | operand)]
operand = $NAME | "text" | 'text' | null
"""

import re
from collections.abc import Callable, Mapping
from threading import Lock

from attrs import define, frozen
from cachetools import LRUCache, cached

from api_server.ci.config.patterns import parse_delimited

MAX_LENGTH = 10_000
MAX_PARENTHESES = 50
#: Bytes that all expressions take that are kept, and that a parsed one takes for each of its characters.
CACHE_MEMORY = 32 * 1024 * 1024
MEMORY_OF_A_CHARACTER = 200

Values = Mapping[str, str]
Operand = Callable[[Values], str | None]
Condition = Callable[[Values], bool]

_TOKEN = re.compile(
    r"""\s*(?:(?P<variable>\$\w+) | (?P<text>"[^"]*"|'[^']*') | (?P<null>null\b)
        | (?P<regex>/(?:\\.|[^/\\])+/[ismU]*) | (?P<op>==|!=|=~|!~|&&|\|\||\(|\)))\s*""",
    re.VERBOSE | re.DOTALL,
)


class _NotARegexError(Exception):
    """A variable on the right of `=~` holds no `/regex/`: the whole expression is false, as in GitLab."""


def parse(text: str) -> Condition:
    """A function from variables to whether the expression holds; ValueError when `text` is none."""
    return _parse(text).holds


@frozen
class _Parsed:
    holds: Condition
    memory: int


@cached(LRUCache(CACHE_MEMORY, getsizeof=lambda parsed: parsed.memory), key=lambda text: text, lock=Lock())
def _parse(text: str) -> _Parsed:
    if len(text) > MAX_LENGTH:
        raise ValueError("invalid expression syntax: too long")
    parser = _Parser(_tokens(text))
    condition = parser.either()
    if parser.left:
        raise ValueError("invalid expression syntax")

    def holds(known: Values) -> bool:
        try:
            return condition(known)
        except _NotARegexError:
            return False

    return _Parsed(holds, 1000 + len(text) * MEMORY_OF_A_CHARACTER)


def _tokens(text: str) -> list[tuple[str, str]]:
    """Kind and text of each token, last one first."""
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise ValueError("invalid expression syntax")
        found.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return found[::-1]


@define
class _Parser:
    left: list[tuple[str, str]]
    depth: int = 0

    def _accept(self, *operators: str) -> str | None:
        if self.left and self.left[-1][0] == "op" and self.left[-1][1] in operators:
            return self.left.pop()[1]
        return None

    def either(self) -> Condition:
        terms = [self._both()]
        while self._accept("||"):
            terms.append(self._both())
        return terms[0] if len(terms) == 1 else lambda known: any(term(known) for term in terms)

    def _both(self) -> Condition:
        terms = [self._term()]
        while self._accept("&&"):
            terms.append(self._term())
        return terms[0] if len(terms) == 1 else lambda known: all(term(known) for term in terms)

    def _term(self) -> Condition:
        if self._accept("("):
            return self._parenthesised()
        left = self._operand()
        operator = self._accept("==", "!=", "=~", "!~")
        if operator is None:
            return lambda known: bool(left(known))
        if operator in {"=~", "!~"}:
            return _match(left, self._pattern(), wanted=operator == "=~")
        right, wanted = self._operand(), operator == "=="
        return lambda known: (left(known) == right(known)) is wanted

    def _parenthesised(self) -> Condition:
        self.depth += 1
        if self.depth > MAX_PARENTHESES:
            raise ValueError("invalid expression syntax: too many parentheses")
        condition = self.either()
        if not self._accept(")"):
            raise ValueError("invalid expression syntax")
        self.depth -= 1
        return condition

    def _operand(self) -> Operand:
        kind, text = self.left.pop() if self.left else ("end", "")
        match kind:
            case "variable":
                return lambda known: known.get(text[1:])
            case "text":
                return lambda _: text[1:-1]
            case "null":
                return lambda _: None
        raise ValueError("invalid expression syntax")

    def _pattern(self) -> Operand:
        if not self.left or self.left[-1][0] != "regex":
            return self._operand()
        text = self.left.pop()[1]
        parse_delimited(text)
        return lambda _: text


def _match(left: Operand, pattern: Operand, *, wanted: bool) -> Condition:
    def condition(known: Values) -> bool:
        text = pattern(known)
        if text is None:
            return not wanted
        try:
            expression = parse_delimited(text)
        except ValueError:
            raise _NotARegexError from None
        return (expression.search(left(known) or "") is not None) is wanted

    return condition
