"""Source with syntax colours, by Pygments.

Some of its lexers take quadratic time, so their time is limited.
"""

import functools
import html
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import groupby
from types import FrameType
from typing import Any

from pygments import lexers, token
from pygments.lexer import Lexer
from pygments.lexers.special import TextLexer

#: Classes of text.css by kinds of tokens. A kind that is not listed has the class of its parent.
_CLASSES = {
    **dict.fromkeys([token.Keyword, token.Operator.Word, token.Name.Tag], "keyword"),
    **dict.fromkeys(
        [
            token.Keyword.Type,
            token.Name.Class,
            token.Name.Function,
            token.Name.Exception,
            token.Name.Decorator,
        ],
        "name",
    ),
    **dict.fromkeys([token.Literal.String, token.Literal.Date], "string"),
    **dict.fromkeys([token.Literal.Number, token.Keyword.Constant, token.Name.Constant], "number"),
    **dict.fromkeys(
        [
            token.Name.Builtin,
            token.Name.Attribute,
            token.Name.Variable,
            token.String.Escape,
            token.String.Interpol,
        ],
        "other",
    ),
    **dict.fromkeys([token.Comment, token.Generic.Prompt, token.Generic.Output], "comment"),
    **dict.fromkeys([token.Generic.Heading, token.Generic.Subheading, token.Generic.Strong], "strong"),
    token.Generic.Inserted: "inserted",
    token.Generic.Deleted: "deleted",
    token.Token: "",
}
_OPTIONS = {"stripnl": False, "ensurenl": False}
#: The program of `#!/usr/bin/env python3.11` is `python`.
_INTERPRETER = re.compile(r"#![ \t]*(?:\S*/)?(?:env[ \t]+)?(?:\S*/)?([a-zA-Z]+)")
#: Number of characters by which one of several languages with the same file names is chosen.
_ANALYSED = 1000
#: The interval, in seconds, at which the signal is repeated in case a lexer has caught the first one.
_AGAIN_SECONDS = 0.05


class OutOfTime(Exception):
    """The processor time of a `Budget` is used up."""


class Budget:
    """A limit for all colours of a process together: seconds of processor time, and characters."""

    def __init__(self, seconds: float, characters: int) -> None:
        self._seconds = seconds
        self._characters = characters

    def coloured(self, source: str, lexer: Lexer | None) -> str | None:
        """Return the source as HTML, with the same lines, or None if its language is not known or the budget does not
        suffice."""
        if lexer is None or len(source) > self._characters or self._seconds <= 0:
            return None
        self._characters -= len(source)
        try:
            with self._timed():
                tokens = groupby(lexer.get_tokens(source), lambda token: _class(token[0]))
                coloured = "".join(_span(name, "".join(text for _, text in same)) for name, same in tokens)
        except Exception:  # any lexer may fail on some source: then there are no colours
            return None
        return coloured if coloured.count("\n") == source.count("\n") else None

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Raise `OutOfTime` in the block when the time is used up, even within one regular expression."""
        signal.signal(signal.SIGPROF, _stop)
        signal.setitimer(signal.ITIMER_PROF, self._seconds, _AGAIN_SECONDS)
        try:
            yield
        finally:
            remaining, _ = signal.setitimer(signal.ITIMER_PROF, 0)
            self._seconds = min(remaining, self._seconds) if remaining > _AGAIN_SECONDS else 0


@functools.cache
def _class(kind: Any) -> str:
    return _CLASSES[kind] if kind in _CLASSES else _class(kind.parent)


def _span(name: str, text: str) -> str:
    """Return the text with its class. Each line has an element of its own, so that lines can be separated."""
    escaped = html.escape(text, quote=False)
    if not name:
        return escaped
    return "\n".join(f'<span class="s-{name}">{line}</span>' if line else "" for line in escaped.split("\n"))


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise OutOfTime


@functools.cache
def _aliases() -> dict[str, str]:
    """Return the names of lexers by all names that a fence or a shebang may use."""
    names: dict[str, str] = {}
    for _, aliases, _, _ in lexers.get_all_lexers(plugins=False):
        names |= {alias.lower(): aliases[0] for alias in aliases if alias.lower() not in names}
    return names


def lexer_named(language: str) -> Lexer | None:
    """Return the lexer for the first word after a fence, such as `python` or `yaml:.gitlab-ci.yml`, or None."""
    name = re.split(r"[\s:,;{]", language.strip().lower(), maxsplit=1)[0]
    alias = _aliases().get(name)
    return None if alias is None or alias == "text" else lexers.get_lexer_by_name(alias, **_OPTIONS)


def lexer_of_file(name: str, source: str) -> Lexer | None:
    """Return the lexer whose pattern fits the file's name best; of several, the one that fits the source best. If no
    pattern fits, return the one for the shebang, or None."""
    matching = [
        (len(pattern), aliases[0])
        for _, aliases, patterns, _ in lexers.get_all_lexers(plugins=False)
        for pattern in patterns
        if aliases and _matches(name, pattern)
    ]
    if not matching:
        shebang = _INTERPRETER.match(source)
        return lexer_named(shebang[1]) if shebang else None
    longest, _ = max(matching)
    fitting = [lexers.get_lexer_by_name(alias, **_OPTIONS) for length, alias in matching if length == longest]
    best = max(fitting, key=lambda lexer: (lexer.analyse_text(source[:_ANALYSED]), lexer.priority))
    return None if isinstance(best, TextLexer) else best


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("*") and not re.search(r"[*?\[]", pattern[1:]):
        return name.endswith(pattern[1:])
    return fnmatchcase(name, pattern)
