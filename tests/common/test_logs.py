"""The log: one chain for structlog and the standard library, and no secret in either."""

import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from common import logs
from common.logs import AccessLines

SECRET = "flpat-0123456789abcdefghij"


@pytest.fixture
def written() -> Iterator[io.BytesIO]:
    """What is logged during a test; the configuration before it comes back."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.BytesIO()
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


def _configured(written: io.BytesIO, format_: logs.LogFormat, level: str = "INFO") -> None:
    logs.configure(format_, level, stream=io.TextIOWrapper(written, write_through=True))
    structlog.configure(cache_logger_on_first_use=False)


def test_both_kinds_of_records_are_one_json_line_each_with_the_same_fields(written: io.BytesIO) -> None:
    _configured(written, "json")
    structlog.get_logger("ours").warning("pushed", path="/a?private_token=b", token="c")
    logging.getLogger("theirs").warning("pulled with %s", SECRET)
    ours, theirs = (json.loads(line) for line in written.getvalue().splitlines())
    assert ours.pop("timestamp") <= theirs.pop("timestamp")
    assert ours == {
        "event": "pushed",
        "path": "/a?private_token=[REDACTED]",
        "token": "[REDACTED]",
        "level": "warning",
        "logger": "ours",
    }
    assert theirs == {"event": "pulled with [REDACTED]", "level": "warning", "logger": "theirs"}


@pytest.mark.parametrize("format_", ["console", "json"])
def test_a_traceback_is_logged_without_its_secrets(written: io.BytesIO, format_: logs.LogFormat) -> None:
    _configured(written, format_)
    try:
        raise ValueError(f"https://alice:{SECRET}@example.org")
    except ValueError:
        structlog.get_logger("ours").exception("failed")
        logging.getLogger("theirs").exception("failed")
    text = written.getvalue().decode()
    assert text.count("ValueError") == 2 * text.count("raise ValueError") == 4
    assert SECRET not in text


def test_what_is_below_the_level_is_not_logged(written: io.BytesIO) -> None:
    _configured(written, "console", "WARNING")
    structlog.get_logger("ours").info("quiet")
    logging.getLogger("theirs").info("quiet")
    assert written.getvalue() == b""


@pytest.mark.parametrize("format_", ["console", "json"])
def test_a_line_can_be_written_whatever_text_is_in_it(written: io.BytesIO, format_: logs.LogFormat) -> None:
    _configured(written, format_)
    structlog.get_logger("ours").info("request", path="/\udcff\0", number=2**70, thing=object)
    assert written.getvalue().count(b"\n") == 1


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("kind", "is_json"), [(io.TextIOWrapper, True), (_Terminal, False)])
def test_lines_are_for_programs_where_there_is_no_terminal(
    written: io.BytesIO, kind: type[io.TextIOWrapper], is_json: bool
) -> None:
    logs.configure("auto", stream=kind(written, write_through=True))
    structlog.configure(cache_logger_on_first_use=False)
    structlog.get_logger("ours").info("pushed")
    assert written.getvalue().startswith(b'{"timestamp":"') is is_json


_PIECES = st.sampled_from(
    [
        "flpat-",
        "glrt-",
        "abc",
        "://",
        "@",
        "?",
        "&",
        "=",
        "token",
        "secret",
        "Bearer ",
        "basic ",
        "ba\N{LATIN SMALL LETTER LONG S}ic ",
        "BAS\N{LATIN SMALL LETTER DOTLESS I}C ",
        "password",
        "value",
        "variables[",
        "-",
        " ",
        "/",
    ]
)


# each alternative of the expression needs something of the quick look
@given(st.lists(_PIECES | st.text(max_size=3), max_size=8).map("".join))
def test_the_quick_look_at_a_text_overlooks_no_secret(text: str) -> None:
    found = logs._SECRET_IN_TEXT.search(text)
    assert found is None or logs.may_hold_secret(text)


def test_what_would_do_something_to_a_terminal_is_escaped_for_people(written: io.BytesIO) -> None:
    _configured(written, "console")
    structlog.get_logger("ours").info("pushed", ref="\x1b[2J\x9b1m")
    assert written.getvalue().rstrip().endswith(rb"ref='\x1b[2J\x9b1m'")


@pytest.fixture(params=["full disk", "broken pipe"])
def unwritable(request: pytest.FixtureRequest) -> Iterator[io.TextIOWrapper]:
    """A file that takes nothing."""
    reader, pipe = os.pipe()
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    descriptor, other = (full, pipe) if request.param == "full disk" else (pipe, full)
    nothing = os.open(os.devnull, os.O_WRONLY)
    with os.fdopen(descriptor, "w") as file:
        yield file
        os.dup2(nothing, descriptor)  # so that it can be closed
    os.close(nothing)
    os.close(other)


@pytest.mark.usefixtures("written")
def test_a_line_that_cannot_be_written_is_lost_and_nothing_else(unwritable: io.TextIOWrapper) -> None:
    logs.configure("json", stream=unwritable)
    structlog.configure(cache_logger_on_first_use=False)
    for _ in range(20):
        structlog.get_logger("ours").warning("pushed", path="x" * 1000)
        AccessLines("access")({"path": "x" * 1000})


def test_lines_are_written_again_when_they_can_be(tmp_path: Path, written: io.BytesIO) -> None:
    file = (tmp_path / "log").open("w")
    logs.configure("json", stream=file)
    descriptor = os.dup(file.fileno())
    os.dup2(os.open("/dev/full", os.O_WRONLY), file.fileno())
    for number in range(100):
        AccessLines("access")({"number": number, "path": "x" * 1000})
    os.dup2(descriptor, file.fileno())
    AccessLines("access")({"number": "last"})
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert lines[-1]["number"] == "last"
    file.close()
    os.close(descriptor)
