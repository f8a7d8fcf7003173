"""Rules that decide whether a job, an include or the pipeline is included: `rules`, `only` and `except`.

The condition language of `if`, as in `$A == "x" && ($B =~ /^v\\d/i || $C != null)`:

or         = and ("||" and)*
and        = comparison ("&&" comparison)*
comparison = operand (("==" | "!=" | "=~" | "!~") (operand | regex))*
operand    = "(" or ")" | $NAME | "text" | 'text' | null

The rules of inputs refer to other inputs, `$[[ inputs.name ]] == "x"`, instead of variables. They also accept
`true` and `false`.

As in Ruby, operators return values: `&&` and `||` return one of their operands, and an empty text counts as
true there. The whole expression holds unless its value is null, false or a blank text.
"""

import re
from collections.abc import Callable, Collection, Mapping
from threading import Lock
from typing import Any

from attrs import define, frozen
from cachetools import LRUCache, cached

from api_server.ci.config import patterns
from api_server.ci.config.context import Context
from api_server.ci.config.errors import CiConfigError
from api_server.ci.config.patterns import PathSet, parse_delimited
from api_server.ci.config.variables import expand_known

MAX_LENGTH = 10_000
MAX_PARENTHESES = 50
#: Bytes of all cached expressions, and bytes that a parsed one takes for each of its characters.
CACHE_MEMORY = 32 * 1024 * 1024
MEMORY_OF_A_CHARACTER = 200


@frozen
class _Pattern:
    """A `/regex/` as it is written. The cache must not hold the compiled one, which is larger."""

    text: str


#: The value of an operand or an operator.
Value = str | bool | _Pattern | None
#: The values of variables, or of inputs.
Values = Mapping[str, Any]
Operand = Callable[[Values], Value]
Condition = Callable[[Values], bool]

_TOKEN = re.compile(
    r"""\s*(?:(?P<variable>\$\w+) | (?P<text>"[^"]*"|'[^']*') | (?P<null>null\b)
        | (?P<input>\$\[\[\s*inputs\.[^\s|.\]]+\s*\]\]) | (?P<boolean>(?:true|false)\b)
        | (?P<regex>/(?:\\.|[^/\\])+/[ismU]*) | (?P<op>==|!=|=~|!~|&&|\|\||\(|\)))\s*""",
    re.VERBOSE | re.DOTALL,
)


def parse_condition(text: str) -> Condition:
    """Return a function that evaluates the expression for given variables. Raise ValueError if `text` is not
    an expression."""
    return _parse_cached(text, ("variable",)).holds


def parse_input_condition(text: str) -> "ParsedCondition":
    """Parse a condition of the rules of an input, like `parse_condition`."""
    return _parse_cached(text, ("input", "boolean"))


@frozen
class ParsedCondition:
    holds: Condition
    memory: int
    #: The names of the inputs that it refers to.
    inputs: list[str]


@cached(LRUCache(CACHE_MEMORY, getsizeof=lambda parsed: parsed.memory), lock=Lock())
def _parse_cached(text: str, operands: tuple[str, ...]) -> ParsedCondition:
    if len(text) > MAX_LENGTH:
        raise ValueError("invalid expression syntax: too long")
    tokens = _tokens(text, operands)
    inputs = [_input_name(token) for kind, token in tokens if kind == "input"]
    parser = _Parser(tokens)
    condition = parser.either()
    if parser.tokens:
        raise ValueError("invalid expression syntax")

    def holds(values: Values) -> bool:
        value = condition(values)
        return bool(value.strip() if isinstance(value, str) else value)

    return ParsedCondition(holds, 1000 + len(text) * MEMORY_OF_A_CHARACTER, inputs)


def _input_name(text: str) -> str:
    return text[3:-2].strip().removeprefix("inputs.")


def _tokens(text: str, operands: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the kind and the text of each token, the last one first. `operands` are the accepted kinds in
    addition to text, regular expressions and null."""
    kinds = {"text", "null", "regex", "op", *operands}
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup not in kinds:
            raise ValueError("invalid expression syntax")
        tokens.append((match.lastgroup, match[match.lastgroup]))
        position = match.end()
    return tokens[::-1]


@define
class _Parser:
    tokens: list[tuple[str, str]]
    depth: int = 0

    def _accept(self, *operators: str) -> str | None:
        if self.tokens and self.tokens[-1][0] == "op" and self.tokens[-1][1] in operators:
            return self.tokens.pop()[1]
        return None

    def either(self) -> Operand:
        terms = [self._both()]
        while self._accept("||"):
            terms.append(self._both())
        return _first(terms, is_last=lambda value: not _is_false(value))

    def _both(self) -> Operand:
        terms = [self._comparison()]
        while self._accept("&&"):
            terms.append(self._comparison())
        return _first(terms, is_last=_is_false)

    def _comparison(self) -> Operand:
        left, others = self._operand(), []
        while operator := self._accept(*_COMPARISONS):
            others.append((operator, self._right()))
        return _compared(left, others) if others else left

    def _parenthesised(self) -> Operand:
        self.depth += 1
        if self.depth > MAX_PARENTHESES:
            raise ValueError("invalid expression syntax: too many parentheses")
        condition = self.either()
        if not self._accept(")"):
            raise ValueError("invalid expression syntax")
        self.depth -= 1
        return condition

    def _operand(self) -> Operand:
        if self._accept("("):
            return self._parenthesised()
        kind, text = self.tokens.pop() if self.tokens else ("end", "")
        match kind:
            case "variable":
                return lambda values: values.get(text[1:])
            case "input":
                return lambda values: values.get(_input_name(text))
            case "boolean":
                return lambda _: text == "true"
            case "text":
                return lambda _: text[1:-1]
            case "null":
                return lambda _: None
        raise ValueError("invalid expression syntax")

    def _right(self) -> Operand:
        if not self.tokens or self.tokens[-1][0] != "regex":
            return self._operand()
        pattern = _Pattern(self.tokens.pop()[1])
        parse_delimited(pattern.text)
        return lambda _: pattern


def _is_false(value: Value) -> bool:
    return value is None or value is False


def _first(terms: list[Operand], is_last: Callable[[Value], bool]) -> Operand:
    """Return the value of the first term that decides, or else that of the last one."""
    if len(terms) == 1:
        return terms[0]

    def evaluate(values: Values) -> Value:
        value = None
        for term in terms:
            value = term(values)
            if is_last(value):
                break
        return value

    return evaluate


def _compared(left: Operand, others: list[tuple[str, Operand]]) -> Operand:
    def evaluate(values: Values) -> Value:
        value = left(values)
        for operator, right in others:
            value = _COMPARISONS[operator](value, right(values))
        return value

    return evaluate


def _matches_pattern(left: Value, right: Value) -> bool:
    """Return whether the left text matches the `/regex/`. If the right text is not a regex, return whether it
    contains the left text."""
    if _is_false(right):
        return False
    text, pattern = _spelled(left), _spelled(right)
    try:
        expression = parse_delimited(pattern)
    except ValueError:
        return text in pattern
    return expression.search(text) is not None


def _spelled(value: Value) -> str:
    """Return the value as text; null, which the left side of a match often is, becomes an empty text."""
    if isinstance(value, bool):
        return str(value).lower()
    return value.text if isinstance(value, _Pattern) else value or ""


_COMPARISONS: Mapping[str, Callable[[Value, Value], bool]] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "=~": _matches_pattern,
    "!~": lambda left, right: not _matches_pattern(left, right),
}


Rule = Mapping[str, Any]


def first_match(rules: Collection[Rule], values: Mapping[str, str], context: Context) -> Rule | None:
    """Return the first rule whose conditions all hold, or None."""
    return next((rule for rule in rules if _holds(rule, values, context)), None)


def _holds(rule: Rule, values: Mapping[str, str], context: Context) -> bool:
    if rule.get("if") is not None and not parse_condition(rule["if"])(values):
        return False
    if rule.get("changes") is not None and not _changed(rule["changes"], values, context):
        return False
    exists = rule.get("exists")
    return exists is None or _any_glob_matches(_globs(exists), values, _paths_for(exists, values, context))


def _paths_for(exists: Any, values: Mapping[str, str], context: Context) -> PathSet:
    """Return the paths among which `exists` looks. Raise CiConfigError, which names what the file says,
    because values may be secret."""
    name = exists.get("project") if isinstance(exists, dict) else None
    if name is None:
        return context.paths
    project = context.project(expand_known(name, values), False)
    if project is None:
        raise CiConfigError(f"rules:exists:project `{name}` is not a valid project path")
    ref = exists.get("ref")
    repository = project.at(None if ref is None else expand_known(ref, values))
    if repository is None:
        raise CiConfigError(f"rules:exists:ref `{ref}` is not a valid ref in project `{name}`")
    return context.paths_of(repository)


def _globs(value: Any) -> list[str]:
    globs = value["paths"] if isinstance(value, dict) else value
    return [globs] if isinstance(globs, str) else list(globs)


def _changed(changes: Any, values: Mapping[str, str], context: Context) -> bool:
    base = changes.get("compare_to") if isinstance(changes, dict) else None
    paths = context.changed if base is None else context.changed_since(expand_known(base, values))
    return paths is None or _any_glob_matches(_globs(changes), values, paths)


def _any_glob_matches(globs: list[str], values: Mapping[str, str], paths: PathSet) -> bool:
    return any(_glob_matches(expand_known(glob, values), paths) for glob in globs)


def _glob_matches(glob: str, paths: PathSet) -> bool:
    try:
        return bool(paths.matching(glob))
    except ValueError:  # the variables made the pattern too large, so nothing can match
        return False


def allowed_by_refs(job: Mapping[str, Any], values: Mapping[str, str], context: Context) -> bool:
    """Return whether `only` and `except` admit a job without `rules`; `only:refs` are branches and tags by
    default."""
    only = job.get("only", {})
    if isinstance(only, dict):
        only = {"refs": ["branches", "tags"], **{key: part for key, part in only.items() if part is not None}}
    if not all(_policy(only, values, context)):
        return False
    return not any(_policy(job.get("except", []), values, context))


def _policy(policy: Any, values: Mapping[str, str], context: Context) -> list[bool]:
    """Return for each part of an `only` or `except` whether it holds."""
    if isinstance(policy, str):
        policy = [policy]
    parts = {"refs": policy} if isinstance(policy, list) else policy
    results = []
    for kind, conditions in parts.items():
        if conditions is None:
            continue
        if kind == "refs":
            results.append(any(_ref_of_project_matches(ref, values) for ref in conditions))
        elif kind == "kubernetes":  # a project has no clusters
            results.append(False)
        elif kind == "variables":
            results.append(any(parse_condition(condition)(values) for condition in conditions))
        else:
            results.append(_changed(conditions, values, context))
    return results


def _ref_of_project_matches(pattern: str, values: Mapping[str, str]) -> bool:
    ref, project = patterns.ref_and_project(pattern)
    return project in (None, values.get("CI_PROJECT_PATH")) and _ref_matches(ref, values)


def _words_for(source: str) -> tuple[str, str]:
    """Return the words of `only:refs` for a `CI_PIPELINE_SOURCE`: `push` and `pushes`, `merge_request` and
    `merge_requests`."""
    source = source.removesuffix("_event")
    return source, source + ("es" if source.endswith("sh") else "s")


def _ref_matches(pattern: str, values: Mapping[str, str]) -> bool:
    source, ref = values.get("CI_PIPELINE_SOURCE", ""), values.get("CI_COMMIT_REF_NAME", "")
    on_merge_request = source == "merge_request_event"
    if pattern in {"branches", "tags"}:
        return not on_merge_request and ("CI_COMMIT_TAG" in values) == (pattern == "tags")
    if pattern in _words_for(source):
        return True
    if on_merge_request:
        return False
    if pattern.startswith("/"):
        return bool(patterns.parse_delimited(pattern).search(ref))
    return pattern == ref
