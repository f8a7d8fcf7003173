"""The line of a request: the same as structlog would write, whatever is in it."""

import io
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from common import logs
from common.access_lines import AccessLines

SECRET = "flpat-0123456789abcdefghij"
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@contextmanager
def _configured(
    format_: logs.LogFormat, level: logs.LogLevel = "INFO", *, colors: bool = False
) -> Iterator[io.BytesIO]:
    """What is logged; the configuration before it comes back."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level_before = root.handlers[:], root.level
    written = io.BytesIO()
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
            monkeypatch.setattr("common.access_lines._now", lambda moment=moment: moment)
            write({})
    assert [json.loads(line)["timestamp"][-10:] for line in written.getvalue().splitlines()] == [
        "20.999999Z",
        "21.000000Z",
        "21.000001Z",
    ]
