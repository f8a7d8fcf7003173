"""Reading JUnit's XML piece by piece, as GitLab reads it. Pure.

Documents come from jobs, so they are taken for hostile: they may declare nothing, neither entities nor attributes that
each element then has, nothing outside is fetched, and depth, number of elements, bytes of a tag and of a case's texts
have their bounds.
"""

import re
from collections.abc import Iterable
from typing import Any
from xml.parsers import expat

import attrs

from api_server.ci.jobs.reports.cases import Case, Status, Suite

MAX_DEPTH = 100
#: Bytes of one tag or comment: expat begins with it anew for each piece that comes, until it is whole.
MAX_TOKEN = 256 * 1024
#: Characters of what is shown of a case: of an attribute, and of a text; more is cut off.
MAX_ATTRIBUTE = 4096
MAX_TEXT = 64 * 1024
CUT = "\n[...]"
#: Failures, say, of one case, of which there is usually one.
MAX_VERDICTS = 100
_NUMBER = re.compile(r"\s*[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")
#: What an element within a case says of it, the first of these that is there; without one it is a success.
_VERDICTS: dict[str, Status] = {"failure": "failed", "error": "error", "skipped": "skipped"}


class BrokenReport(Exception):
    """A report that cannot be read; the text is for people."""


@attrs.define
class Room:
    """How many test cases, and elements of any kind, may still be read."""

    cases: int
    elements: int


class TooManyCases(BrokenReport):
    """More than there is room for."""


@attrs.define
class _Element:
    """An element that has begun. Only those that matter have their texts kept."""

    name: str
    attributes: dict[str, str]
    #: May hold test cases: `testsuites` on top, `testsuite` below it or each other.
    holds_cases: bool = False
    is_case: bool = False
    verdicts: dict[str, list[Any]] | None = None
    texts: list[str] | None = None
    #: Characters that it may still have.
    left: int = MAX_TEXT


def read(pieces: Iterable[bytes], suite: Suite, room: Room) -> None:
    """Adds the cases of one document to the suite, and takes the room for them. Raises `BrokenReport`."""
    _Reader(suite, room).read(pieces)


class _Reader:
    def __init__(self, suite: Suite, room: Room) -> None:
        self._suite = suite
        self._room = room
        self._open: list[_Element] = []
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._begin
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text
        self._parser.StartDoctypeDeclHandler = _refuse_declarations

    def read(self, pieces: Iterable[bytes]) -> None:
        size = 0
        try:
            for piece in pieces:
                size += len(piece)
                self._parser.Parse(piece, False)
                if size - self._parser.CurrentByteIndex > MAX_TOKEN + len(piece):
                    raise BrokenReport(f"JUnit data parsing failed: a tag is longer than {MAX_TOKEN} bytes")
            if size:
                self._parser.Parse(b"", True)
        except expat.ExpatError as problem:
            raise BrokenReport(f"JUnit XML parsing failed: {problem}") from None
        except (ValueError, LookupError) as problem:  # an encoding that nobody knows
            raise BrokenReport(f"JUnit data parsing failed: {problem}") from None

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise BrokenReport(f"JUnit data parsing failed: elements are more than {MAX_DEPTH} deep")
        self._room.elements -= 1
        if self._room.elements < 0:
            raise BrokenReport("JUnit data parsing failed: there are too many elements")
        above = self._open[-1] if self._open else None
        element = _Element(name, attributes)
        if above is None:
            element.holds_cases = name in ("testsuites", "testsuite")
        elif above.holds_cases:
            element.holds_cases = name == "testsuite"
            element.is_case = name == "testcase"
            element.verdicts = {} if element.is_case else None
        elif above.is_case and name in _VERDICTS:
            element.texts = []
        self._open.append(element)

    def _text(self, text: str) -> None:
        if not self._open or (texts := self._open[-1].texts) is None:
            return
        left = self._open[-1].left
        if left >= 0:
            texts.append(text if len(text) <= left else text[:left] + CUT)
        self._open[-1].left -= len(text)

    def _end(self, _name: str) -> None:
        element = self._open.pop()
        if element.is_case:
            self._add(element)
        elif element.texts is not None and (verdicts := self._open[-1].verdicts) is not None:
            said = verdicts.setdefault(element.name, [])
            if len(said) < MAX_VERDICTS:
                said.append(_said("".join(element.texts), element.attributes))

    def _add(self, element: _Element) -> None:
        self._room.cases -= 1
        if self._room.cases < 0:
            raise TooManyCases
        verdicts = element.verdicts or {}
        verdict = next((name for name in _VERDICTS if name in verdicts), None)
        given = _cut(element.attributes)
        said = [] if verdict is None else verdicts[verdict]
        self._suite.add(
            Case(
                status="success" if verdict is None else _VERDICTS[verdict],
                suite=_cut(self._open[-1].attributes).get("name"),
                name=given.get("name"),
                classname=given.get("classname"),
                file=given.get("file"),
                seconds=_seconds(given.get("time", "")),
                output=said[0] if len(said) == 1 else said or None,
            )
        )


def _said(text: str, attributes: dict[str, str]) -> Any:
    """An element's text; without one its attributes; None of one that has neither, or only a `type`."""
    if text.strip():
        return text
    return _cut(attributes) if attributes.keys() - {"type"} else None


def _cut(attributes: dict[str, str]) -> dict[str, str]:
    """The attributes, what is too long cut off."""
    return {
        name[:MAX_ATTRIBUTE]: value if len(value) <= MAX_ATTRIBUTE else value[:MAX_ATTRIBUTE] + CUT
        for name, value in attributes.items()
    }


def _seconds(text: str) -> float:
    """The number that a text begins with."""
    found = _NUMBER.match(text)
    return float(found[0]) if found and abs(float(found[0])) < 1e12 else 0.0


def _refuse_declarations(*_: object) -> None:
    raise BrokenReport("JUnit XML parsing failed: a DOCTYPE is not allowed")
