"""Regular expressions that strangers write: in RE2's syntax, bounded in what they cost to compile and to match.

RE2 takes time in proportion to the text, but also to the size of the compiled expression, ten letters of which may
stand for half a million instructions. It compiles with the interpreter's lock held, so that nothing else goes on
meanwhile, in whichever thread; it matches without.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import re2
from attrs import define, field, frozen
from cachetools import LRUCache, cached

#: Characters of an expression.
MAX_LENGTH = 16_000
#: Classes such as `\pL` and `\p{Greek}` in one expression; each takes as long to read as thousands of characters.
MAX_UNICODE_CLASSES = 20
#: Bytes that a compiled expression takes, with all that matching adds to it.
MAX_MEMORY = 128 * 1024
#: Bytes that all expressions take that are kept.
CACHE_MEMORY = 64 * 1024 * 1024
#: Bytes of a text times instructions of an expression: what one search may take, at most about half a second.
MAX_STEPS = 50_000_000


class TooCostly(Exception):
    """Expressions would take, or have taken, more than they may; the text says so to their author."""


@define
class Allowance:
    """What all expressions of one file, say, may cost, itself part of what those of many files may."""

    #: Of the processor's time that is left, for compiling and matching.
    seconds: float
    #: How many different expressions there may be.
    number: int = sys.maxsize
    within: "Allowance | None" = None
    _seen: set[str] = field(factory=set, init=False, repr=False)

    def count(self, text: str) -> None:
        """Count an expression, once. Raise `TooCostly`."""
        self._seen.add(text)
        if len(self._seen) > self.number:
            raise TooCostly(
                f"There are more than {self.number} different regular expressions and path patterns"
            )

    def spend(self, seconds: float) -> None:
        """Take from what is left. Raise `TooCostly` where that was less."""
        self.seconds -= seconds
        if self.within is not None:
            self.within.spend(seconds)
        if self.seconds < 0:
            raise TooCostly("Regular expressions and path patterns take too long; try simpler ones, or later")


_allowance: ContextVar[Allowance | None] = ContextVar("expression_allowance", default=None)


@contextmanager
def allowed(allowance: Allowance) -> Iterator[None]:
    """Let expressions pay from `allowance` for the length of the block, also in threads that it starts."""
    token = _allowance.set(allowance)
    try:
        yield
    finally:
        _allowance.reset(token)


@contextmanager
def paid() -> Iterator[None]:
    """Have the block pay for its time. Raise `TooCostly`."""
    began = time.thread_time()
    try:
        yield
    finally:
        if (allowance := _allowance.get()) is not None:
            allowance.spend(time.thread_time() - began)


@frozen
class Expression:
    """A compiled expression. Its methods raise `TooCostly`."""

    pattern: str
    _compiled: Any = field(repr=False)
    #: Instructions.
    size: int

    @property
    def groups(self) -> int:
        """How many there are in parentheses."""
        return int(self._compiled.groups)

    def search(self, text: str | bytes) -> Any:
        """Return the first match, or None."""
        self._check(len(text))
        with paid():
            return self._compiled.search(text)

    def fullmatch(self, text: str | bytes) -> Any:
        """Return the match of the whole text, or None."""
        self._check(len(text))
        with paid():
            return self._compiled.fullmatch(text)

    def matches(self, text: bytes) -> Iterator[Any]:
        """Yield all of them, which do not overlap. Each may take as long as a search of all that follows."""
        self._check(len(text))
        matches = self._compiled.finditer(text)
        while True:
            with paid():
                match = next(matches, None)
            if match is None:
                return
            yield match

    def lines(self, text: bytes) -> Iterator[bytes]:
        """Yield what matches of each line of a text of any length, in order; the expression stays within a line
        (`(?m)`)."""
        step = MAX_STEPS // self.size
        start = 0
        while start < len(text):
            end = text.find(b"\n", start + step) if start + step < len(text) else -1
            end = end if end >= 0 else len(text)
            with paid():
                matched = [match[0] for match in self._compiled.finditer(text[start:end])]
            yield from matched
            start = end + 1

    def _check(self, length: int) -> None:
        if length * self.size > MAX_STEPS:
            raise TooCostly("A text is too long to be compared with so large a regular expression")


def compile_expression(text: str) -> Expression:
    """Return the compiled expression. Raise ValueError, whose text says why, for what RE2 does not know or is too
    large, and `TooCostly`."""
    if (allowance := _allowance.get()) is not None:
        allowance.count(text)
    compiled = _compile(text)
    if isinstance(compiled, Expression):
        return compiled
    raise ValueError(compiled)


def _memory(compiled: Expression | str) -> int:
    return MAX_MEMORY if isinstance(compiled, Expression) else len(compiled)


@cached(LRUCache(CACHE_MEMORY, getsizeof=_memory), key=lambda text: text, lock=threading.Lock())
def _compile(text: str) -> Expression | str:
    """Return the compiled expression, or the reason why it is refused."""
    if len(text) > MAX_LENGTH:
        return f"it is longer than {MAX_LENGTH} characters"
    if text.count("\\p") + text.count("\\P") > MAX_UNICODE_CLASSES:
        return f"it has more than {MAX_UNICODE_CLASSES} classes of Unicode"
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_MEMORY
    with paid():
        try:
            compiled = re2.compile(text, options)
        except re2.error as problem:
            return _reason(problem)
        except UnicodeError:
            return "it is not valid UTF-8"
        finally:
            re2.purge()  # what it keeps besides is bounded by number only
    return Expression(text, compiled, compiled.programsize + compiled.reverseprogramsize)


def _reason(problem: Exception) -> str:
    """RE2 tells of its errors in bytes, its wrapper in text."""
    (reason,) = problem.args
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
