"""Regular expressions that users write: in RE2's syntax, with limits on the cost of compiling and matching.

RE2 takes time in proportion to the length of the text, but also to the size of the compiled expression, and ten
characters of an expression may stand for half a million instructions. RE2 compiles while it holds the interpreter's
lock, so that all other threads have to wait; it matches without the lock.
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

#: Maximum number of characters of an expression.
MAX_LENGTH = 16_000
#: Maximum number of classes such as `\pL` and `\p{Greek}` in one expression. Each takes as long to compile as
#: thousands of characters.
MAX_UNICODE_CLASSES = 20
#: Maximum number of bytes of a compiled expression, with all that matching adds to it.
MAX_MEMORY = 128 * 1024
#: Maximum number of bytes of all expressions in the cache.
CACHE_MEMORY = 64 * 1024 * 1024
#: Maximum cost of one search, in bytes of the text times instructions of the expression: about half a second.
MAX_STEPS = 50_000_000


class TooCostly(Exception):
    """Expressions would take, or have taken, more than they may. The message is for their author."""


@define
class Allowance:
    """The cost that all expressions of, for instance, one file may have. `within` is the allowance of many files, of
    which it is a part."""

    #: Seconds of processor time that are left for compiling and matching.
    seconds: float
    #: Maximum number of different expressions.
    number: int = sys.maxsize
    within: "Allowance | None" = None
    _seen: set[str] = field(factory=set, init=False, repr=False)

    def count(self, text: str) -> None:
        """Count an expression, each one only once. Raise `TooCostly`."""
        self._seen.add(text)
        if len(self._seen) > self.number:
            raise TooCostly(
                f"There are more than {self.number} different regular expressions and path patterns"
            )

    def spend(self, seconds: float) -> None:
        """Subtract seconds from what is left. Raise `TooCostly` if less was left."""
        self.seconds -= seconds
        if self.within is not None:
            self.within.spend(seconds)
        if self.seconds < 0:
            raise TooCostly("Regular expressions and path patterns take too long; try simpler ones, or later")


_allowance: ContextVar[Allowance | None] = ContextVar("expression_allowance", default=None)


@contextmanager
def allowed(allowance: Allowance) -> Iterator[None]:
    """Charge expressions to `allowance` for the duration of the block, also in threads that it starts."""
    token = _allowance.set(allowance)
    try:
        yield
    finally:
        _allowance.reset(token)


@contextmanager
def paid() -> Iterator[None]:
    """Charge the time of the block to the present allowance. Raise `TooCostly`."""
    start = time.thread_time()
    try:
        yield
    finally:
        if (allowance := _allowance.get()) is not None:
            allowance.spend(time.thread_time() - start)


@frozen
class Expression:
    """A compiled expression. Its methods raise `TooCostly`."""

    pattern: str
    _compiled: Any = field(repr=False)
    #: Number of instructions.
    size: int

    @property
    def groups(self) -> int:
        """The number of groups in parentheses."""
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
        """Yield all matches, which do not overlap. Each may take as long as a search in all of the remaining text."""
        self._check(len(text))
        matches = self._compiled.finditer(text)
        while True:
            with paid():
                match = next(matches, None)
            if match is None:
                return
            yield match

    def lines(self, text: bytes) -> Iterator[bytes]:
        """Yield the matches in each line of a text of any length, in order. The expression has to match within a line
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
    """Return the compiled expression. Raise `ValueError` with the reason if RE2 does not support it or it is too
    large. Raise `TooCostly`."""
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
            re2.purge()  # its own cache is limited by number only
    return Expression(text, compiled, compiled.programsize + compiled.reverseprogramsize)


def _reason(problem: Exception) -> str:
    """Return the message of RE2's error, which is bytes, or of its wrapper's, which is text."""
    (reason,) = problem.args
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
