"""Byte ranges: what of a representation a request asks for (RFC 9110 section 14)."""

import re
from typing import Final

import attrs

#: A request with more ranges than this is answered with the whole: many ranges only serve to multiply the answer
#: (section 14.2 lets a server ignore them).
MAX_RANGES: Final = 16

#: `first-last`, `first-` or `-suffix`. Numbers are as long as a line may be; int() would refuse longer ones.
_SPEC = re.compile(r"([0-9]{1,4000})-([0-9]{0,4000})|-([0-9]{1,4000})")


@attrs.frozen(order=True)
class Span:
    """Bytes `first` up to and including `last` of a representation."""

    first: int
    last: int

    @property
    def length(self) -> int:
        """Number of bytes."""
        return self.last - self.first + 1


class UnsatisfiableError(ValueError):
    """None of the ranges lies in the representation: 416."""


def wanted(field: str | None, length: int) -> list[Span] | None:
    """What a Range field asks for of `length` bytes; None for all of them: the field is absent, not in bytes,
    malformed, or has too many ranges, and so is ignored (section 14.2).

    Ranges that overlap are joined, so that no byte is sent twice; the others keep their order. Raises
    `UnsatisfiableError`.
    """
    unit, _, text = (field or "").partition("=")
    specs = [spec for member in text.split(",") if (spec := member.strip(" \t"))]
    if unit.strip().lower() != "bytes" or not 0 < len(specs) <= MAX_RANGES:
        return None
    spans = []
    for spec in specs:
        match = _SPEC.fullmatch(spec)
        if match is None:
            return None
        span = _span(match[1], match[2], match[3], length)
        if span is None:
            return None
        spans.append(span)
    satisfiable = [span for span in spans if span.first <= span.last]
    if not satisfiable:
        raise UnsatisfiableError
    joined = _joined(satisfiable)
    return satisfiable if len(joined) == len(satisfiable) else joined


def _span(first: str | None, last: str | None, suffix: str | None, length: int) -> Span | None:
    """One range within `length` bytes, empty where it lies behind them; None when it is written backwards
    (section 14.1.2).
    """
    if first is None:
        return Span(max(0, length - int(suffix or 0)), length - 1)
    if last and int(last) < int(first):
        return None
    return Span(int(first), min(int(last), length - 1) if last else length - 1)


def _joined(spans: list[Span]) -> list[Span]:
    ordered = sorted(spans)
    result = ordered[:1]
    for span in ordered[1:]:
        if span.first <= result[-1].last:
            result[-1] = Span(result[-1].first, max(result[-1].last, span.last))
        else:
            result.append(span)
    return result


def content_range(span: Span | None, length: int) -> str:
    """Content-Range of one part, or of a 416 where there is none (section 14.4)."""
    return f"bytes */{length}" if span is None else f"bytes {span.first}-{span.last}/{length}"
