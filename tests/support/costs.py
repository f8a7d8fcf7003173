"""The costs of tests: they are measured, recorded in a file, and decide which tests are slow.

A test costs the core-seconds of this process, of its children that have ended and of the processes below it that run,
such as PostgreSQL's; or a quarter of the seconds that it waits, if this is more. Fixtures of the whole session do not
count. The costs of a module's fixture are divided among the tests of the module that use it.
"""

import contextlib
import functools
import os
import re
import resource
import statistics
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import hypothesis
import pytest

from tests.support.checkout import CHECKOUT
from tests.support.watchdog import slowness

RECORD = CHECKOUT / "tests" / "recorded_times.txt"
#: Seconds of a function's most expensive item from which on the function is slow.
SLOW = 0.25
#: Seconds below which nothing is recorded.
RECORDED_FROM = 0.1
#: Core-seconds that an item may cost, on a machine of usual speed, without being recorded as slow.
MOST = 2.0
#: A recorded figure is kept if the measured one differs by at most this share, because measurements are not exact.
_TOLERANCE = 0.3
#: The share of a second that counts if a test only waits in it: another worker uses the processor meanwhile.
_WAITING = 0.25
#: A test with fewer seconds costs less than is recorded.
_SHORT = 0.04
#: Maximum number of functions in a message.
_NAMED = 10
_CACHED = "costs"
_TICK = os.sysconf("SC_CLK_TCK")
_HEAD = """\
# The cost of the most expensive item of each test function, in seconds from 0.1 on (see tests/support/costs.py).
# From 0.25 on, a function is slow. Written by `scripts/test --all --record` on a machine with nothing else to do.
"""

#: Seconds by function.
Costs = dict[str, float]


def function_of(nodeid: str) -> str:
    """Return `tests/a.py::test_b` for `tests/a.py::test_b[c]`."""
    return nodeid.partition("[")[0]


@functools.cache
def recorded(file: Path) -> Mapping[str, float]:
    lines = (line.split() for line in file.read_text().splitlines() if not line.startswith("#"))
    return {function: float(seconds) for seconds, function in lines}


def stale(costs: Mapping[str, float], root: Path) -> list[str]:
    """Return the functions that no longer exist."""
    return [function for function in costs if not _is_there(function, root)]


def _is_there(function: str, root: Path) -> bool:
    path, *_, name = function.split("::")
    return (root / path).exists() and bool(
        re.search(rf"^ *(async )?def {name}\(", _text(root / path), re.MULTILINE)
    )


@functools.cache
def _text(path: Path) -> str:
    return path.read_text()


def updated(before: Mapping[str, float], measured: Mapping[str, float]) -> Costs:
    """Return the figures to record after `measured`, with two digits. Similar figures are kept, and those of functions
    that did not run."""
    after = dict(before)
    for function, seconds in measured.items():
        if seconds < RECORDED_FROM:
            after.pop(function, None)
        elif abs(seconds - before.get(function, 0)) > _TOLERANCE * before.get(function, 0):
            after[function] = float(f"{seconds:.2g}")
    return after


def write(costs: Mapping[str, float], file: Path) -> None:
    file.write_text(_HEAD + "".join(f"{costs[function]:<5g} {function}\n" for function in sorted(costs)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also run the slow tests")
    parser.addoption("--sample", action="store_true", help="run only one test with a database of each folder")
    parser.addoption("--record", action="store_true", help=f"write the costs of each test to {RECORD.name}")


def configure(config: pytest.Config) -> None:
    """Register the option and the plug-ins; `pytest_configure` calls this."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.option.keyword:
        config.option.all = True  # workers get this option, and always paths
    config.pluginmanager.register(Meter())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Judge(config))


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put slow tests first, those of files with expensive ones before others, so that no worker runs them alone at the
    end."""
    slow = [item for item in items if _recorded_cost(item) >= SLOW]
    most: dict[Path, float] = {}
    for item in slow:
        most[item.path] = max(most.get(item.path, 0), _recorded_cost(item))
    slow.sort(key=lambda item: most[item.path], reverse=True)
    for item in slow:
        item.add_marker("slow")
    others = [item for item in items if _recorded_cost(item) < SLOW]
    chosen = slow + others if config.option.all else others
    if config.option.sample:
        chosen = sample(others)
    left = set(items).difference(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = chosen


#: The fixtures of tests that need a database or an edge.
_SERVERS = {"postgres", "start_edge"}
#: Folders whose tests are about documents and tools.
_OF_CHECKOUT = {"documents", "scripts"}


def sample(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that may depend on the version of Python: all tests of the product without a database or an
    edge, and the most expensive one with these of each folder."""
    with_servers: dict[Path, list[pytest.Item]] = {}
    items = [item for item in items if not _OF_CHECKOUT & set(item.nodeid.split("/"))]
    for item in items:
        if _SERVERS & set(getattr(item, "fixturenames", ())):
            with_servers.setdefault(item.path.parent, []).append(item)
    most = (max(folder, key=_recorded_cost) for folder in with_servers.values())
    left_out = set().union(*with_servers.values()) - set(most)
    return [item for item in items if item not in left_out]


def _recorded_cost(item: pytest.Item) -> float:
    return recorded(RECORD).get(function_of(item.nodeid), 0)


def _share_of_examples(function: object) -> float:
    """Return the everyday number of hypothesis examples as a share of the current one, at most 1."""
    if not getattr(function, "is_hypothesis_test", False):
        return 1.0
    everyday = hypothesis.settings.get_profile("everyday").max_examples
    return min(1.0, everyday / hypothesis.settings().max_examples)


@functools.cache
def _prepare_hypothesis() -> None:
    """Let hypothesis create the tables of characters for its first text, which takes a second in a new checkout."""

    @hypothesis.settings(max_examples=1, database=None)
    @hypothesis.given(hypothesis.strategies.text())
    def is_text(text: str) -> None:
        assert isinstance(text, str)

    is_text()


@attrs.frozen
class Spent:
    """Seconds since the machine's start, without those in which this thread waited for a processor, and core-seconds;
    or the difference of two such values."""

    seconds: float
    core: float

    def __sub__(self, other: "Spent") -> "Spent":
        return Spent(self.seconds - other.seconds, max(0.0, self.core - other.core))

    @property
    def cost(self) -> float:
        return max(self.core, _WAITING * (self.seconds - self.core))


def spent() -> Spent:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    below = sum(_core_seconds(pid) for pid in _below(str(os.getpid())))
    core = time.process_time() + ended.ru_utime + ended.ru_stime + below
    return Spent(time.monotonic() - _in_line(), core)


def _in_line() -> float:
    """Return the seconds in which this thread was ready, but had no processor."""
    return int((_read("/proc/thread-self/schedstat") or b"0 0").split()[1]) / 1e9


def _below(pid: str) -> Iterator[str]:
    """Yield the descendants of a process."""
    for child in _read(f"/proc/{pid}/task/{pid}/children").split():
        yield child.decode()
        yield from _below(child.decode())


def _core_seconds(pid: str) -> float:
    """Return the core-seconds of the process and of its children that have ended."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[11:15]
    return sum(map(int, fields)) / _TICK


def _read(path: str) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:  # the process has ended, or this is not Linux
        return b""
    try:
        return os.read(file, 65536)
    except OSError:
        return b""
    finally:
        os.close(file)


#: Costs since the last test began that are of use to later tests too.
_shared: list[Spent] = []


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Exclude the costs of this block from those of the current test, because later tests use its result too."""
    before = spent()
    yield
    _shared.append(spent() - before)


class Meter:
    """A plug-in that measures each test in the process that runs it, and adds the figures to the test's report."""

    def __init__(self) -> None:
        self._look()

    def _look(self) -> None:
        self._last = spent()
        self._looked = time.monotonic()

    @pytest.fixture(autouse=True)
    def what_a_test_costs(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Measure a test. Fixtures of a module or the session are ready before this fixture, and are removed after it.

        A look at all processes takes as long as some tests, so it is omitted for the shortest ones.
        """
        if getattr(request.function, "is_hypothesis_test", False):
            _prepare_hypothesis()
        began = time.monotonic()
        if began - self._looked > _SHORT:
            self._look()
        before = self._last
        _shared.clear()
        yield
        used = Spent(0, 0)
        if time.monotonic() - began > _SHORT:
            self._look()
            used = self._last - before
            for part in _shared:
                used = used - part
        share = _share_of_examples(request.function)
        cost, core = used.cost * share, used.core * share
        if core > MOST and not request.node.get_closest_marker("slow"):
            core /= slowness()
        request.node.user_properties.append(("cost", [cost, core]))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        if fixturedef.scope != "module":
            return (yield)
        before = spent()
        made = yield
        used = spent() - before
        users = [
            item
            for item in request.session.items
            if item.path == request.path and fixturedef.argname in getattr(item, "fixturenames", ())
        ]
        if users:
            functions = sorted({function_of(item.nodeid) for item in users})
            share = ("shared", [fixturedef.argname, used.cost / len(users), functions])
            request._pyfuncitem.user_properties.append(share)
        return made


class Judge:
    """A plug-in that collects the measurements of all processes of a run, and stores and judges them at its end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._passed: set[str] = set()
        self._own: Costs = {}
        self._core: Costs = {}
        self._shares: dict[tuple[str, str], float] = {}
        self._step = (0.0, "")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._passed.add(report.nodeid)
        if report.when != "teardown":
            return
        function = function_of(report.nodeid)
        properties: list[tuple[str, Any]] = report.user_properties
        for name, value in properties:
            if name == "cost" and report.nodeid in self._passed:
                self._own[function] = max(self._own.get(function, 0), value[0])
                self._core[function] = max(self._core.get(function, 0), value[1])
            elif name == "step":
                self._step = max(self._step, (value, report.nodeid))
            elif name == "shared":
                fixture, seconds, functions = value
                for user in functions:
                    self._shares[user, fixture] = max(self._shares.get((user, fixture), 0), seconds)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        measured = self._measured()
        before = recorded(RECORD)
        if not measured:
            return
        if cache := getattr(self._config, "cache", None):
            cache.set(_CACHED, measured)
        if self._config.option.record:
            after = updated(before, measured)
            gone = stale(after, self._config.rootpath)
            write({function: after[function] for function in after.keys() - set(gone)}, RECORD)
            return
        if failures := too_expensive(self._core, before):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        factor = slowness()
        lines = [*failures, *become_slow(self._core, before, factor)]
        whole = self._config.option.all and not getattr(self._config.option, "lf", False)
        if whole and self._config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            lines += grown(measured, before, factor)
        if self._step[0]:
            lines.append(f"Longest step of the event loop: {self._step[0] * 1000:.0f} ms in {self._step[1]}")
        for line in lines:
            self._config.get_terminal_writer().line(f"\n{line}", red=line in failures)

    def _measured(self) -> Costs:
        shares: Costs = {}
        for (function, _), seconds in self._shares.items():
            shares[function] = shares.get(function, 0) + seconds
        return {
            function: round(seconds + shares.get(function, 0), 3) for function, seconds in self._own.items()
        }


def too_expensive(core: Mapping[str, float], before: Mapping[str, float]) -> list[str]:
    """Return, for a failed run, the functions that are not recorded as slow and cost more than allowed."""
    named = {function: core[function] for function in _fast(core, before) if core[function] > MOST}
    return (
        [_named(f"Not recorded as slow (scripts/test --record), and above {MOST:g} core-seconds", named)]
        if named
        else []
    )


def become_slow(core: Mapping[str, float], before: Mapping[str, float], factor: float) -> list[str]:
    """Return the functions that will be slow once they are recorded. `factor` is the machine's `slowness`. Waiting
    does not count, because on a busy machine all tests wait."""
    most = SLOW * factor * (1 + _TOLERANCE)
    named = {function: core[function] for function in _fast(core, before) if core[function] > most}
    return [_named("Has become slow (scripts/test --record)", named)] if named else []


def _fast(measured: Mapping[str, float], before: Mapping[str, float]) -> list[str]:
    return [function for function in measured if before.get(function, 0) < SLOW]


def grown(measured: Mapping[str, float], before: Mapping[str, float], factor: float) -> list[str]:
    """Return the functions whose costs have grown, and whether the total has. The median of all changes shows the
    speed of the machine, which does not affect the first part."""
    common = measured.keys() & before.keys()
    speed = statistics.median([1.0, *(measured[function] / before[function] for function in common)])
    more = {function: measured[function] - before.get(function, 0) * speed for function in measured}
    named = {function: seconds for function, seconds in more.items() if seconds > RECORDED_FROM}
    lines = [_named("Grown most", named, "+")] if named else []
    now, then = (sum(costs[function] for function in common) for costs in (measured, before))
    if now > 1.1 * then * factor:
        lines.append(f"What is recorded has grown from {then:.0f} to {now:.0f} s in all.")
    return lines


def _named(title: str, costs: Mapping[str, float], sign: str = "") -> str:
    """Return the most expensive functions, each on a line."""
    first = sorted(costs, key=costs.__getitem__, reverse=True)[:_NAMED]
    rest = len(costs) - len(first)
    return "\n".join(
        [
            f"{title}:",
            *(f"  {sign}{costs[function]:.2f} s {function}" for function in first),
            *([f"  and {rest} more"] if rest else []),
        ]
    )
