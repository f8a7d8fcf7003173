"""Test reports of jobs: JUnit's XML, parsed incrementally and interpreted as GitLab does, and GitLab's
answers about them. Pure.

Documents come from jobs and may be hostile. They may declare neither entities nor default attributes, nothing
external is fetched, and depth, number of elements, bytes of a tag and of a case's texts are limited. Runners
send each file as a member of one gzip stream, other programs the file itself; the first bytes distinguish the
two.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal
from xml.parsers import expat

import attrs

Status = Literal["error", "failed", "success", "skipped"]
#: In the order in which cases are shown.
STATUSES: tuple[Status, ...] = ("error", "failed", "success", "skipped")


@attrs.frozen(kw_only=True)
class Case:
    """A test case. `seconds` is its duration; `output` describes the failure: a text, or the attributes of an
    element without one."""

    status: Status
    suite: str | None
    name: str | None
    classname: str | None
    file: str | None
    seconds: float
    output: Any


@attrs.define
class Suite:
    """The cases of the jobs of one name. A suite that could not be read has an `error`, and its cases do not
    count."""

    name: str
    seconds: float = 0.0
    error: str | None = None
    #: By status and key of the case, the last case with this key.
    cases: dict[Status, dict[tuple[str | None, ...], Case]] = attrs.field(factory=dict)

    def add(self, case: Case) -> None:
        self.cases.setdefault(case.status, {})[case.suite, case.classname, case.name] = case
        self.seconds += case.seconds

    def take_in(self, other: "Suite") -> None:
        """Add the cases of another job."""
        for status, cases in other.cases.items():
            self.cases.setdefault(status, {}).update(cases)
        self.seconds += other.seconds
        self.error = other.error or self.error

    def count(self, status: Status) -> int:
        return 0 if self.error is not None else len(self.cases.get(status, ()))


@attrs.frozen
class JobSuite:
    """The report of one job."""

    job_id: int
    suite: Suite


def report(jobs: Sequence[JobSuite]) -> dict[str, Any]:
    """Return the report with all cases, as `GET .../test_report` answers it."""
    suites: dict[str, Suite] = {}
    for job in jobs:
        suites.setdefault(job.suite.name, Suite(job.suite.name)).take_in(job.suite)
    entities = [
        _total_counts([suite]) | {"suite_error": suite.error, "test_cases": _cases(suite)}
        for suite in suites.values()
    ]
    total = _total_counts(list(suites.values()))
    del total["name"]
    return total | {"test_suites": entities}


def summary(jobs: Sequence[JobSuite]) -> dict[str, Any]:
    """Return the counts alone, as `GET .../test_report_summary` answers them."""
    by_name: dict[str, list[JobSuite]] = {}
    for job in jobs:
        by_name.setdefault(job.suite.name, []).append(job)
    total = _total_counts([job.suite for job in jobs])
    names = ("total_time", "total_count", "success_count", "failed_count", "skipped_count", "error_count")
    return {
        "total": {name.removeprefix("total_").removesuffix("_count"): total[name] for name in names}
        | {"suite_error": _first_error(jobs)},
        "test_suites": [
            _total_counts([job.suite for job in of_name])
            | {"build_ids": [job.job_id for job in of_name], "suite_error": _first_error(of_name)}
            for of_name in by_name.values()
        ],
    }


def _first_error(jobs: Sequence[JobSuite]) -> str | None:
    return next((job.suite.error for job in jobs if job.suite.error is not None), None)


def _total_counts(suites: Sequence[Suite]) -> dict[str, Any]:
    """Return the total counts of several suites under the name of the first one."""
    counts: Mapping[Status, int] = {
        status: sum(suite.count(status) for suite in suites) for status in STATUSES
    }
    return {
        "name": suites[0].name if suites else None,
        "total_time": sum(suite.seconds for suite in suites),
        "total_count": sum(counts.values()),
        "success_count": counts["success"],
        "failed_count": counts["failed"],
        "skipped_count": counts["skipped"],
        "error_count": counts["error"],
    }


def _cases(suite: Suite) -> list[dict[str, Any]]:
    """Return the cases, the worst first, and within a status the slowest first."""
    if suite.error is not None:
        return []
    return [
        _case(case)
        for status in STATUSES
        for case in sorted(suite.cases.get(status, {}).values(), key=lambda case: -case.seconds)
    ]


def _case(case: Case) -> dict[str, Any]:
    return {
        "status": case.status,
        "name": case.name or "(No name)",
        "classname": case.classname,
        "file": case.file,
        "execution_time": case.seconds,
        "system_output": case.output,
        "stack_trace": None,
        "recent_failures": None,
    }


MAX_DEPTH = 100
#: Maximum bytes of one tag or comment: expat parses it from the beginning with each piece, until it is
#: complete.
MAX_TOKEN = 256 * 1024
#: Maximum characters shown of an attribute, and of a text of a case; the rest is cut off.
MAX_ATTRIBUTE = 4096
MAX_TEXT = 64 * 1024
CUT = "\n[...]"
#: Maximum number of outcomes (such as failures) kept for one case, which usually has one.
MAX_VERDICTS = 100
_NUMBER = re.compile(r"\s*[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")
#: The status given by elements within a case; the first kind present counts, and without any the case is a
#: success.
_OUTCOMES: dict[str, Status] = {"failure": "failed", "error": "error", "skipped": "skipped"}


class BrokenReport(Exception):
    """A report that cannot be read; the text is for people."""


@attrs.define
class Budget:
    """The numbers of test cases, and of elements of any kind, that may still be read."""

    cases: int
    elements: int


class TooManyCases(BrokenReport):
    """The document has more cases or elements than may still be read."""


@attrs.define
class _Element:
    """An open element. Only the texts of relevant elements are kept."""

    name: str
    attributes: dict[str, str]
    #: Whether it may hold test cases: `testsuites` at the top, `testsuite` below it or another one.
    holds_cases: bool = False
    is_case: bool = False
    outcomes: dict[str, list[Any]] | None = None
    texts: list[str] | None = None
    #: The number of characters that it may still have.
    remaining: int = MAX_TEXT


def read_junit(chunks: Iterable[bytes], suite: Suite, budget: Budget) -> None:
    """Add the cases of one document to the suite, and subtract them from the room. Raise `BrokenReport`."""
    _Reader(suite, budget).read(chunks)


class _Reader:
    def __init__(self, suite: Suite, budget: Budget) -> None:
        self._suite = suite
        self._budget = budget
        self._open: list[_Element] = []
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._begin
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text
        self._parser.StartDoctypeDeclHandler = _refuse_declarations

    def read(self, chunks: Iterable[bytes]) -> None:
        size = 0
        try:
            for chunk in chunks:
                size += len(chunk)
                self._parser.Parse(chunk, False)
                if size - self._parser.CurrentByteIndex > MAX_TOKEN + len(chunk):
                    raise BrokenReport(f"JUnit data parsing failed: a tag is longer than {MAX_TOKEN} bytes")
            if size:
                self._parser.Parse(b"", True)
        except expat.ExpatError as problem:
            raise BrokenReport(f"JUnit XML parsing failed: {problem}") from None
        except (ValueError, LookupError) as problem:  # an unknown encoding
            raise BrokenReport(f"JUnit data parsing failed: {problem}") from None

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise BrokenReport(f"JUnit data parsing failed: elements are more than {MAX_DEPTH} deep")
        self._budget.elements -= 1
        if self._budget.elements < 0:
            raise BrokenReport("JUnit data parsing failed: there are too many elements")
        above = self._open[-1] if self._open else None
        element = _Element(name, attributes)
        if above is None:
            element.holds_cases = name in ("testsuites", "testsuite")
        elif above.holds_cases:
            element.holds_cases = name == "testsuite"
            element.is_case = name == "testcase"
            element.outcomes = {} if element.is_case else None
        elif above.is_case and name in _OUTCOMES:
            element.texts = []
        self._open.append(element)

    def _text(self, text: str) -> None:
        if not self._open or (texts := self._open[-1].texts) is None:
            return
        remaining = self._open[-1].remaining
        if remaining >= 0:
            texts.append(text if len(text) <= remaining else text[:remaining] + CUT)
        self._open[-1].remaining -= len(text)

    def _end(self, _name: str) -> None:
        element = self._open.pop()
        if element.is_case:
            self._add(element)
        elif element.texts is not None and (outcomes := self._open[-1].outcomes) is not None:
            texts = outcomes.setdefault(element.name, [])
            if len(texts) < MAX_VERDICTS:
                texts.append(_outcome_text("".join(element.texts), element.attributes))

    def _add(self, element: _Element) -> None:
        self._budget.cases -= 1
        if self._budget.cases < 0:
            raise TooManyCases
        outcomes = element.outcomes or {}
        outcome = next((name for name in _OUTCOMES if name in outcomes), None)
        attributes = _shortened(element.attributes)
        texts = [] if outcome is None else outcomes[outcome]
        self._suite.add(
            Case(
                status="success" if outcome is None else _OUTCOMES[outcome],
                suite=_shortened(self._open[-1].attributes).get("name"),
                name=attributes.get("name"),
                classname=attributes.get("classname"),
                file=attributes.get("file"),
                seconds=_seconds(attributes.get("time", "")),
                output=texts[0] if len(texts) == 1 else texts or None,
            )
        )


def _outcome_text(text: str, attributes: dict[str, str]) -> Any:
    """Return an element's text, or else its attributes, or None if it has neither or only a `type`."""
    if text.strip():
        return text
    return _shortened(attributes) if attributes.keys() - {"type"} else None


def _shortened(attributes: dict[str, str]) -> dict[str, str]:
    """Return the attributes, with long values cut off."""
    return {
        name[:MAX_ATTRIBUTE]: value if len(value) <= MAX_ATTRIBUTE else value[:MAX_ATTRIBUTE] + CUT
        for name, value in attributes.items()
    }


def _seconds(text: str) -> float:
    """Return the number at the beginning of a text."""
    match = _NUMBER.match(text)
    return float(match[0]) if match and abs(float(match[0])) < 1e12 else 0.0


def _refuse_declarations(*_: object) -> None:
    raise BrokenReport("JUnit XML parsing failed: a DOCTYPE is not allowed")


_PIECE = 64 * 1024
_GZIP = b"\x1f\x8b"
_WITH_GZIP_HEADER = 16 + zlib.MAX_WBITS

#: The errors that gzip raises.
UNPACKING_ERRORS = (zlib.error, EOFError)


def report_files(data: bytes, take: Callable[[int], None]) -> Iterator[Iterator[bytes]]:
    """Yield each file as its chunks, which have to be read before the next one.

    `take` is called with each chunk's size and may raise an error. Raise one of `UNPACKING_ERRORS`.
    """
    files = _gzip(data) if data.startswith(_GZIP) else iter([_raw(data)])
    for chunks in files:
        yield _metered(chunks, take)


def _metered(chunks: Iterator[bytes], take: Callable[[int], None]) -> Iterator[bytes]:
    for chunk in chunks:
        take(len(chunk))
        yield chunk


def _raw(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _PIECE):
        yield data[start : start + _PIECE]


def _gzip(data: bytes) -> Iterator[Iterator[bytes]]:
    position = 0

    def member() -> Iterator[bytes]:
        nonlocal position
        unpacker = zlib.decompressobj(_WITH_GZIP_HEADER)
        while not unpacker.eof:
            packed = data[position : position + _PIECE]
            if not packed:
                raise EOFError("the stream ends in the middle of a file")
            position += len(packed)
            while packed and not unpacker.eof:
                yield unpacker.decompress(packed, _PIECE)
                packed = unpacker.unconsumed_tail
        position -= len(unpacker.unused_data)

    while position < len(data) and data[position] != 0:  # zeros are padding
        yield member()
