"""The line of a request: the same as structlog would write, whatever is in it."""

import asyncio
import io
import json
import logging
import re
import select
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from common import logs
from common.logs import AccessLines

SECRET = "flpat-0123456789abcdefghij"
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@contextmanager
def _configured(
    format_: logs.LogFormat,
    level: logs.LogLevel = "INFO",
    *,
    colors: bool = False,
    into: io.BytesIO | None = None,
) -> Iterator[Any]:
    """What is logged; the configuration before it comes back."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level_before = root.handlers[:], root.level
    written = into or io.BytesIO()
    stream = (_Terminal if colors else io.TextIOWrapper)(written, encoding="utf-8", write_through=True)
    logs.configure(format_, level, stream=stream)
    structlog.configure(cache_logger_on_first_use=False)
    try:
        yield written
    finally:
        structlog.configure(**before)
        root.handlers[:] = handlers
        root.setLevel(level_before)
        stream.detach()


_PIECES = st.sampled_from(
    [SECRET, "?private_token=abc", "&value=x", "://a:b@c", "Bearer abc", "bAsIc YQ==", "/api/v4/user", " ", '"',
     "'", "\\", "=", "\n", "\r", "\x1b[1m", "\x00", "\u2028", "\x85", "é", "\U0001f600", "\udcff", "%20"]
)  # fmt: skip
_TEXTS = st.lists(_PIECES | st.text(max_size=4), max_size=5).map("".join)
_VALUES = st.none() | _TEXTS | st.integers() | st.floats()
_FIELDS = st.dictionaries(
    st.sampled_from(["method", "path", "status", "ms", "client", "user", "sudo", "cache", "agent"]), _VALUES
)


def _both(fields: dict[str, Any], written: io.BytesIO) -> tuple[str, str]:
    """The short way's line and structlog's, without the end of the line and the moment."""
    AccessLines("access")(fields)
    structlog.get_logger("access").info("request", **fields)
    lines = written.getvalue().decode()
    assert lines.count("\n") == 2
    assert lines.endswith("\n")
    short, long, _rest = lines.split("\n")
    return MOMENT.sub("", short, count=1), MOMENT.sub("", long, count=1)


def _canonical(line: str) -> str:
    """Whichever program has set the blanks."""
    return json.dumps(json.loads(line))


@given(_FIELDS)
def test_a_line_for_programs_is_what_structlog_writes(fields: dict[str, Any]) -> None:
    with _configured("json") as written:
        short, long = _both(fields, written)
    assert _canonical(short) == _canonical(long)
    assert list(json.loads(short)) == ["timestamp", "level", "logger", "event", *fields]


@pytest.mark.parametrize("colors", [False, True])
@given(fields=_FIELDS)
def test_a_line_for_people_is_what_structlog_writes(fields: dict[str, Any], colors: bool) -> None:
    with _configured("console", colors=colors) as written:
        short, long = _both(fields, written)
    assert short == long
    assert colors or short.isprintable()


def test_the_line_of_a_request_says_when_whose_and_what() -> None:
    with _configured("json") as written:
        AccessLines("access")({"path": f"/user?private_token={SECRET}", "status": 200})
    line = json.loads(written.getvalue())
    assert MOMENT.fullmatch(line.pop("timestamp"))
    assert line == {
        "level": "info",
        "logger": "access",
        "event": "request",
        "path": "/user?private_token=[REDACTED]",
        "status": 200,
    }


def test_requests_are_not_told_of_below_their_level() -> None:
    with _configured("json", "WARNING") as written:
        AccessLines("access")({"status": 200})
    assert written.getvalue() == b""


def test_the_seconds_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    write = AccessLines("access")
    with _configured("json") as written:
        for moment in (1_700_000_000_999_999_999, 1_700_000_001_000_000_000, 1_700_000_001_000_001_000):
            monkeypatch.setattr("common.logs._now", lambda moment=moment: moment)
            write({})
    assert [json.loads(line)["timestamp"][-10:] for line in written.getvalue().splitlines()] == [
        "20.999999Z",
        "21.000000Z",
        "21.000001Z",
    ]


class _Writes(io.BytesIO):
    """Remembers what came in one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []

    def write(self, data: Any) -> int:
        self.pieces.append(bytes(data))
        return super().write(data)


async def test_what_one_turn_of_the_event_loop_has_answered_is_written_behind_it_in_one_piece() -> None:
    write = AccessLines("access")
    with _configured("json", into=_Writes()) as written:
        for number in range(3):
            write({"number": number})
        assert written.getvalue() == b""
        await asyncio.sleep(0)
        assert len(written.pieces) == 1
        write({"number": 3})
        await asyncio.sleep(0)
        lines = [json.loads(line) for line in written.getvalue().splitlines()]
    lines = [line for line in lines if "number" in line]  # others log as well
    assert [line["number"] for line in lines] == [0, 1, 2, 3]
    assert [line["timestamp"] for line in lines] == sorted(line["timestamp"] for line in lines)


async def test_no_piece_is_larger_than_what_a_pipe_takes_whole_but_a_line_that_is_so_itself() -> None:
    write = AccessLines("access")
    with _configured("json", into=_Writes()) as written:
        for number in range(60):
            write({"number": number, "path": "x" * (6000 if number == 30 else 300)})
        await asyncio.sleep(0)
    large = [piece for piece in written.pieces if len(piece) > select.PIPE_BUF]
    assert [len(piece.splitlines()) for piece in large] == [1]
    assert len(written.pieces) < 12
    lines = b"".join(written.pieces).splitlines()
    assert [json.loads(line)["number"] for line in lines] == list(range(60))


def test_lines_of_an_event_loop_that_has_ended_are_written_by_the_next() -> None:
    write = AccessLines("access")

    async def tell_and_end() -> None:
        write({"number": 0})
        asyncio.get_running_loop().stop()

    async def tell() -> None:
        write({"number": 1})
        await asyncio.sleep(0)

    with _configured("json") as written:
        ends = asyncio.new_event_loop()
        task = ends.create_task(tell_and_end())
        ends.run_forever()
        ends.close()
        assert task.done()
        assert written.getvalue() == b""
        asyncio.run(tell())
        lines = [json.loads(line)["number"] for line in written.getvalue().splitlines()]
    assert lines == [0, 1]
