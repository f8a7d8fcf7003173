"""The coverage of a job: the last figure in its log, found within a bounded time."""

import time
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from api_server.ci.jobs import logs
from api_server.ci.jobs.logs import Logs, coverage_of, last_figure
from api_server.expressions import compile_expression


class OneLog:
    """A log that is read as `Logs` does, in pieces."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.read_bytes = 0

    async def read(self, _job_id: int, start: int, end: int) -> AsyncIterator[bytes]:
        self.read_bytes += end - start
        middle = (start + end) // 2
        yield self.text[start:middle]
        yield self.text[middle:end]


async def coverage(text: bytes, expression: str) -> float | None:
    return await coverage_of(cast("Logs", OneLog(text)), 1, len(text), expression)


@pytest.mark.parametrize(
    ("text", "expression", "expected"),
    [
        ("TOTAL 10%\nTOTAL 97.5%\nbye\n", r"TOTAL.*? (\d+(?:\.\d+)?)%", 97.5),
        ("TOTAL 10%\nTOTAL 97.5%", r"TOTAL.*? (\d+(?:\.\d+)?)%", 97.5),
        ("a 1 of 2\n", r"\d", 2.0),
        ("Covered 97.5 %, 3 files", r"Covered.*%", 97.5),
        ("a 1\na -\n", r"a (\d)?", 1.0),
        ("12\n", r"\d*", 12.0),
        ("é 5\n", r"^.. ?(\d)", 5.0),
        ("no figure\n", r"figure", None),
        ("1\n", r"TOTAL", None),
        ("", r"\d", None),
        ("5\n" + "9" * 400 + "\n", r"\d+", 5.0),
        ("9" * 400, r"\d+", None),
        ("5%", "(", None),
        ("5%", r"\pL{400}", None),
        ("x" * 5_000 + " 5%\n", r"x (\d)%$", 5.0),
        ("5% " + "x" * 5_000 + "\n", r"\d%", None),
    ],
)
async def test_the_last_figure_is_taken(text: str, expression: str, expected: float | None) -> None:
    assert await coverage(text.encode(), expression) == expected


async def test_bytes_that_are_no_text_are_any_character() -> None:
    assert await coverage(b"TOTAL \xff\xfe 5%\n", r"TOTAL .* (\d)%") == 5.0


@pytest.mark.parametrize("before", [0, 1, 2**18 - 9, 2**18 - 1, 2**18, 600_000])
async def test_lines_are_whole_wherever_the_log_is_cut(before: int) -> None:
    text = b"." * 300_000 + b"\nTOTAL 97.5%\n" + b"." * before
    assert await coverage(text, r"^TOTAL (\S+)%$") == 97.5
    assert await coverage(b"x" + b"1" * before + b"\n2", r"^1+$") is None


async def test_no_more_than_the_end_of_a_log_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_COVERAGE_BYTES", 2**20)
    log = OneLog(b"5%" + b"\n" * 1_100_000)
    assert await coverage_of(cast("Logs", log), 1, len(log.text), r"\d%") is None
    assert log.read_bytes == 2**20
    log = OneLog(b"\n" * 1_100_000 + b"5%")
    assert await coverage_of(cast("Logs", log), 1, len(log.text), r"\d%") == 5.0
    assert log.read_bytes == 2**18


@pytest.mark.parametrize(
    ("line", "expression"),
    [
        (b"1" * 128 * 1024, r"\d"),
        (b"1" * 4_000, r"\d|.*x"),
        (b"9" * 400, r"\d+"),
        (b"1", r"x\d"),
        (b"1" + b"a" * 4_000, "|".join(f"a{{{number}}}x" for number in range(1, 60))),
    ],
)
async def test_the_hardest_logs_take_a_bounded_time(
    line: bytes, expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_COVERAGE_SECONDS", 0.1)
    text = (line + b"\n") * (300_000 // len(line))
    began = time.process_time()
    found: Any = await coverage(text, expression)
    assert time.process_time() - began < 1  # by the processor's clock, on the slowest machines
    assert found in (None, 1.0)


def test_a_figure_is_of_the_first_group() -> None:
    assert last_figure(b"1 2 3", compile_expression(r"(\d) (\d) (\d)")) == 1.0
