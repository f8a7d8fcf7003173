"""Log lines, and the operators' listener."""

import asyncio
import io
import itertools
import json
import logging
import os
import re
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from common import logs, operations
from common.client_settings import ClientSettings
from common.lifecycle import SHUTDOWN, Check, Degraded, Shutdown
from common.logs import AccessLines, ThrottledLog
from tests.support.ports import free_port
from tests.support.wire import running

SECRET = "flpat-0123456789abcdefghij"
PASSWORD = "hunter2"


@pytest.fixture
def written() -> Iterator[io.BytesIO]:
    """The log during a test; the configuration is restored after it."""
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
        raise ValueError(f"https://alice:{SECRET}@example.org https://bob:p@{PASSWORD}@example.org")
    except ValueError:
        structlog.get_logger("ours").exception("failed")
        logging.getLogger("theirs").exception("failed")
    text = written.getvalue().decode()
    assert text.count("ValueError") == 2 * text.count("raise ValueError") == 4
    assert SECRET not in text
    assert PASSWORD not in text


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


# each alternative of the expression contains something that the quick check finds
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
    """A file that cannot be written to."""
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


MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@contextmanager
def _access_log(
    format_: logs.LogFormat,
    level: logs.LogLevel = "INFO",
    *,
    colors: bool = False,
    into: io.BytesIO | None = None,
) -> Iterator[Any]:
    """Yield the log of the block; the configuration is restored after it."""
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


_LINE_PIECES = st.sampled_from(
    [SECRET, "?private_token=abc", "&value=x", "://a:b@c", "Bearer abc", "bAsIc YQ==", "/api/v4/user", " ", '"',
     "'", "\\", "=", "\n", "\r", "\x1b[1m", "\x00", "\u2028", "\x85", "é", "\U0001f600", "\udcff", "%20"]
)  # fmt: skip
_TEXTS = st.lists(_LINE_PIECES | st.text(max_size=4), max_size=5).map("".join)
_VALUES = st.none() | _TEXTS | st.integers() | st.floats()
_FIELDS = st.dictionaries(
    st.sampled_from(["method", "path", "status", "ms", "client", "user", "sudo", "cache", "agent"]), _VALUES
)


def _both(fields: dict[str, Any], written: io.BytesIO) -> tuple[str, str]:
    """Return the line of the short way and that of structlog, without their ends and moments."""
    AccessLines("access")(fields)
    structlog.get_logger("access").info("request", **fields)
    lines = written.getvalue().decode()
    assert lines.count("\n") == 2
    assert lines.endswith("\n")
    short, long, _rest = lines.split("\n")
    return MOMENT.sub("", short, count=1), MOMENT.sub("", long, count=1)


def _canonical(line: str) -> str:
    """Return the line with the same white space for both programs."""
    return json.dumps(json.loads(line))


@given(_FIELDS)
def test_a_line_for_programs_is_what_structlog_writes(fields: dict[str, Any]) -> None:
    with _access_log("json") as written:
        short, long = _both(fields, written)
    assert _canonical(short) == _canonical(long)
    assert list(json.loads(short)) == ["timestamp", "level", "logger", "event", *fields]


@pytest.mark.parametrize("colors", [False, True])
@given(fields=_FIELDS)
def test_a_line_for_people_is_what_structlog_writes(fields: dict[str, Any], colors: bool) -> None:
    with _access_log("console", colors=colors) as written:
        short, long = _both(fields, written)
    assert short == long
    assert colors or short.isprintable()


def test_the_line_of_a_request_says_when_whose_and_what() -> None:
    with _access_log("json") as written:
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
    with _access_log("json", "WARNING") as written:
        AccessLines("access")({"status": 200})
    assert written.getvalue() == b""


def test_the_seconds_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    write = AccessLines("access")
    with _access_log("json") as written:
        for moment in (1_700_000_000_999_999_999, 1_700_000_001_000_000_000, 1_700_000_001_000_001_000):
            monkeypatch.setattr("common.logs._now", lambda moment=moment: moment)
            write({})
    assert [json.loads(line)["timestamp"][-10:] for line in written.getvalue().splitlines()] == [
        "20.999999Z",
        "21.000000Z",
        "21.000001Z",
    ]


class _Writes(io.BytesIO):
    """A file that stores each written piece."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []

    def write(self, data: Any) -> int:
        self.pieces.append(bytes(data))
        return super().write(data)


async def test_what_one_turn_of_the_event_loop_has_answered_is_written_behind_it_in_one_piece() -> None:
    write = AccessLines("access")
    with _access_log("json", into=_Writes()) as written:
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
    with _access_log("json", into=_Writes()) as written:
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

    with _access_log("json") as written:
        ends = asyncio.new_event_loop()
        task = ends.create_task(tell_and_end())
        ends.run_forever()
        ends.close()
        assert task.done()
        assert written.getvalue() == b""
        asyncio.run(tell())
        lines = [json.loads(line)["number"] for line in written.getvalue().splitlines()]
    assert lines == [0, 1]


def test_one_line_a_second_about_one_thing_and_how_many_were_left_out() -> None:
    now = [0.0]
    with capture_logs() as lines:
        log = ThrottledLog(structlog.get_logger(), clock=lambda: now[0])
        for _ in range(5):
            log.warning("away", reason="no answer")
        log.warning("away", about="another", reason="no answer")
        log.error("full")
        now[0] = 0.99
        log.warning("away", reason="no answer")
        now[0] = 1.0
        log.warning("away", reason="no answer")
        now[0] = 2.0
        log.warning("away", reason="no answer")
    assert lines == [
        {"event": "away", "reason": "no answer", "log_level": "warning"},
        {"event": "away", "reason": "no answer", "log_level": "warning"},
        {"event": "full", "log_level": "error"},
        {"event": "away", "reason": "no answer", "left_out": 5, "log_level": "warning"},
        {"event": "away", "reason": "no answer", "log_level": "warning"},
    ]


CLOSED = ("/-/readiness", "/-/metrics")
PATHS = ("/-/liveness", *CLOSED)
NOWHERE = {"operations_networks": ["192.0.2.0/24"]}


@pytest.fixture(params=["api", "edge"])
def process(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def statuses(process: str, new_database: Callable[[], str], tmp_path: Path) -> Callable[..., Any]:
    """A function that returns a process's statuses for requests with each of these headers to all paths, by port. The
    edge is not ready, because it has no origin."""

    async def ask(settings: dict[str, Any], *requests: dict[str, str]) -> dict[int, list[int]]:
        async with (
            running(process, new_database, tmp_path, **settings) as server,
            aiohttp.ClientSession() as session,
        ):
            answers: dict[int, list[int]] = {}
            for port in filter(None, (server.port, settings.get("operations_port"))):
                for headers, path in itertools.product(requests or [{}], PATHS):
                    async with session.get(f"http://127.0.0.1:{port}{path}", headers=headers) as answer:
                        answers.setdefault(port, []).append(answer.status)
            return answers

    return ask


#: Settings -> headers of requests, and whether these requests get restricted content.
ADDRESSES: list[tuple[dict[str, Any], list[tuple[dict[str, str], bool]]]] = [
    (
        {},
        [
            ({}, True),
            # Through a proxy that is not trusted, a request is not from this machine.
            ({"X-Forwarded-For": "127.0.0.1"}, False),
            ({"Forwarded": "for=127.0.0.1"}, False),
        ],
    ),
    (NOWHERE, [({}, False)]),
    ({"operations_networks": ["127.0.0.1"]}, [({}, True)]),
    (
        {"trusted_proxies": ["127.0.0.1"]},
        [
            ({"X-Forwarded-For": "203.0.113.5"}, False),
            ({"X-Forwarded-For": "10.1.2.3"}, True),
            ({"X-Forwarded-For": "10.1.2.3, 203.0.113.5"}, False),
        ],
    ),
    ({"trusted_proxies": ["127.0.0.1"], **NOWHERE}, [({"X-Forwarded-For": "192.0.2.9"}, True)]),
]


@pytest.mark.parametrize(("settings", "requests"), ADDRESSES)
async def test_they_are_for_certain_addresses(
    statuses: Callable[..., Any],
    process: str,
    settings: dict[str, Any],
    requests: list[tuple[dict[str, str], bool]],
) -> None:
    ready = 200 if process == "api" else 503
    (answers,) = (await statuses(settings, *(headers for headers, _ in requests))).values()
    assert answers == [
        status for _, is_open in requests for status in ([200, ready, 200] if is_open else [200, 404, 404])
    ]


async def test_with_a_port_of_their_own_the_public_one_has_liveness_only(
    statuses: Callable[..., Any], process: str
) -> None:
    ready = 200 if process == "api" else 503
    public, own = (await statuses({"operations_port": free_port()})).values()
    assert public == [200, 404, 404]
    assert own == [200, ready, 200]


async def test_the_networks_count_on_that_port_too(statuses: Callable[..., Any]) -> None:
    _, own = (await statuses({"operations_port": free_port()} | NOWHERE)).values()
    assert own == [200, 404, 404]


class _Broken(Exception):
    pass


@pytest.mark.parametrize(
    ("problems", "code", "status"),
    [
        ({}, 200, "ok"),
        ({"a": None}, 200, "ok"),
        ({"a": Degraded("The shelf is full."), "b": None}, 200, "degraded"),
        (
            {"a": Degraded("The shelf is full."), "b": _Broken("postgresql://me:secret@db")},
            503,
            "failed",
        ),
    ],
)
async def test_readiness_is_the_worst_of_its_checks(
    problems: dict[str, Exception | None], code: int, status: str
) -> None:
    def check(problem: Exception | None) -> Check:
        async def run() -> None:
            if problem is not None:
                raise problem

        return run

    shown = {
        "a": {"status": "degraded", "message": "The shelf is full."},
        "b": {"status": "failed", "message": "_Broken"},
    }
    app = web.Application()
    app[SHUTDOWN] = Shutdown()
    checks = {name: check(problem) for name, problem in problems.items()}
    operations.setup(app, ClientSettings(), CollectorRegistry(), checks)
    async with TestClient(TestServer(app)) as client, client.get("/-/readiness") as answer:
        assert answer.status == code
        assert await answer.json() == {
            "status": status,
            **{name: shown[name] if problem else {"status": "ok"} for name, problem in problems.items()},
            "event_loop": {"status": "ok"},
        }
