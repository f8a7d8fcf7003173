"""Reading JUnit's XML piece by piece, as GitLab reads it. Pure.

Documents come from jobs, so they are taken for hostile: nothing in them may declare an entity, so that none grows when
it is read, nothing outside is fetched, and neither depth nor the number of elements is without a bound.
"""

import re
from collections.abc import Iterable
from typing import Any
from xml.parsers import expat

import attrs

from api_server.ci.jobs.reports.cases import Case, Status, Suite

MAX_DEPTH = 100
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
        self._parser.EntityDeclHandler = _refuse_entities

    def read(self, pieces: Iterable[bytes]) -> None:
        is_empty = True
        try:
            for piece in pieces:
                is_empty = is_empty and not piece
                self._parser.Parse(piece, False)
            if not is_empty:
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
        if self._open and (texts := self._open[-1].texts) is not None:
            texts.append(text)

    def _end(self, _name: str) -> None:
        element = self._open.pop()
        if element.is_case:
            self._add(element)
        elif element.texts is not None and (verdicts := self._open[-1].verdicts) is not None:
            verdicts.setdefault(element.name, []).append(_said("".join(element.texts), element.attributes))

    def _add(self, element: _Element) -> None:
        self._room.cases -= 1
        if self._room.cases < 0:
            raise TooManyCases
        verdicts = element.verdicts or {}
        verdict = next((name for name in _VERDICTS if name in verdicts), None)
        given = element.attributes
        said = [] if verdict is None else verdicts[verdict]
        self._suite.add(
            Case(
                status="success" if verdict is None else _VERDICTS[verdict],
                suite=self._open[-1].attributes.get("name"),
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
    return dict(attributes) if attributes.keys() - {"type"} else None


def _seconds(text: str) -> float:
    """The number that a text begins with."""
    found = _NUMBER.match(text)
    return float(found[0]) if found and abs(float(found[0])) < 1e12 else 0.0


def _refuse_entities(*_: object) -> None:
    raise BrokenReport("JUnit XML parsing failed: entities are not allowed")
