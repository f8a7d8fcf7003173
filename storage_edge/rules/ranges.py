"""Byte ranges of a stored response (RFC 9110 section 14)."""

import re
from typing import Final

import attrs

#: A request with more ranges than this is answered with the whole object: many ranges only serve to multiply
#: the answer (section 14.2 lets a server ignore them).
MAX_RANGES: Final = 16

_SPEC = re.compile(r"(\d{1,18})-(\d{1,18})?|-(\d{1,18})")


@attrs.frozen
class Asked:
    """One range as the client wrote it: `first` to `last`, `first` to the end, or the last `suffix` bytes."""

    first: int = 0
    last: int | None = None
    suffix: int | None = None


@attrs.frozen(order=True)
class Span:
    """Bytes `first` up to and including `last` of an object."""

    first: int
    last: int

    @property
    def length(self) -> int:
        """Number of bytes."""
        return self.last - self.first + 1


class UnsatisfiableError(ValueError):
    """None of the ranges lies in the object: 416."""


def parse(value: str | None) -> list[Asked] | None:
    """The ranges asked for; None for a field that is absent, not in bytes or malformed, so ignored."""
    unit, _, text = (value or "").partition("=")
    specs = text.split(",")
    if unit.strip().lower() != "bytes" or len(specs) > MAX_RANGES:
        return None
    found = []
    for spec in specs:
        match = _SPEC.fullmatch(spec.strip())
        if match is None:
            return None
        first, last, suffix = (None if group is None else int(group) for group in match.groups())
        if first is not None and last is not None and last < first:
            return None
        found.append(Asked(first or 0, last, suffix))
    return found


def resolve(asked: list[Asked], length: int) -> list[Span]:
    """The satisfiable ones in an object of `length` bytes; raises `UnsatisfiableError` when there are none.

    Ranges that overlap are joined, so that no byte is sent twice (section 14.2).
    """
    spans = []
    for item in asked:
        first = item.first if item.suffix is None else max(0, length - item.suffix)
        last = length - 1 if item.last is None else min(item.last, length - 1)
        if first <= last:
            spans.append(Span(first, last))
    if not spans:
        raise UnsatisfiableError
    joined = _joined(spans)
    return spans if len(joined) == len(spans) else joined


def _joined(spans: list[Span]) -> list[Span]:
    ordered = sorted(spans)
    result = ordered[:1]
    for span in ordered[1:]:
        if span.first <= result[-1].last:
            result[-1] = Span(result[-1].first, max(result[-1].last, span.last))
        else:
            result.append(span)
    return result


def content_range(span: Span, length: int) -> str:
    """The Content-Range of one part (section 14.4)."""
    return f"bytes {span.first}-{span.last}/{length}"
