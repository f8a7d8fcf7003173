"""The log: one chain for structlog and the standard library, and no secret in either."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from common import logs

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


def test_the_line_of_a_request_is_as_others_are_and_holds_no_secret(written: io.BytesIO) -> None:
    _configured(written, "json")
    write = logs.AccessLog("access")
    write({"path": f"/user?private_token={SECRET}", "status": 200, "agent": "\udcff", "request_id": "1"})
    token = logs.REQUEST_ID.set("1")
    structlog.get_logger("access").info("request", path=f"/user?private_token={SECRET}", status=200)
    logs.REQUEST_ID.reset(token)
    short, long = (json.loads(line) for line in written.getvalue().splitlines())
    assert short.pop("agent") == "\udcff"
    assert len(short.pop("timestamp")) == len(long.pop("timestamp")) == len("2026-11-22T17:00:00.000000Z")
    assert (
        short
        == long
        == {
            "level": "info",
            "logger": "access",
            "event": "request",
            "path": "/user?private_token=[REDACTED]",
            "status": 200,
            "request_id": "1",
        }
    )


def test_requests_are_not_told_of_below_their_level(written: io.BytesIO) -> None:
    _configured(written, "json", "WARNING")
    logs.AccessLog("access")({"status": 200})
    assert written.getvalue() == b""


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
        "-",
        " ",
        "/",
    ]
)


# each alternative of the expression needs a character of the quick look
@given(st.lists(_PIECES | st.text(max_size=3), max_size=8).map("".join))
def test_the_quick_look_at_a_text_overlooks_no_secret(text: str) -> None:
    found = logs._SECRET_IN_TEXT.search(text)
    assert found is None or logs._MAY_HOLD_SECRET.search(text)
