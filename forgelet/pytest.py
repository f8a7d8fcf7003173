"""The pytest plug-in: a GitLab to test against, started when the first test requests it (docs/testing.md).

Where it is installed, every pytest run loads it. So it imports nothing but pytest until a test requests a fixture, and
never anything of the server, which is a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    import gitlab

    from forgelet.testing.namespaces import Group, Project, User
    from forgelet.testing.server import Forgelet

TIERS = ("free", "premium", "ultimate")
_READY_FILE, _URL = "--forgelet-ready-file", "--forgelet-url"
ISOLATIONS = ("namespace", "reset")
MARKER = (
    "gitlab(tier=None, version=None, isolation=None): the test wants a server of that tier (free, premium, ultimate)"
    " and GitLab version (16.11), once for each where a list is given; isolation='reset' has it reset before the test."
)
SHARED_RESET = (
    "forgelet: isolation by reset wants a server of one's own, and this one is shared by several workers: let each"
    " have its own (without --forgelet-shared, --forgelet-url, --forgelet-ready-file), or keep to namespaces."
)
NOT_FOR_METHODS = (
    "forgelet: a unittest.TestCase cannot be given tier= or version= by the marker gitlab, since it takes no"
    " parameters: let it be a plain class, or start its server by forgelet.testing.starting.running."
)


class Kind(NamedTuple):
    """The licence tier and GitLab version that a test requests."""

    tier: str | None = None
    version: str | None = None

    def __str__(self) -> str:
        return "-".join(part for part in self if part) or "default"

    @property
    def options(self) -> list[str]:
        """Options for `forgelet up`."""
        return ["--gitlab-version", self.version] if self.version else []

    @property
    def settings(self) -> dict[str, str]:
        """Variables for the server's processes."""
        return {"FORGELET_API_TIER": self.tier} if self.tier else {}


class Servers:
    """The servers of this process's tests, one of each kind, each started at the first request for it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._running: dict[Kind, Forgelet] = {}
        self._failed: dict[Kind, str] = {}
        self._ending = contextlib.ExitStack()

    @property
    def are_shared(self) -> bool:
        """Whether other workers test against the same servers."""
        return _is_one_of_many(self._config) and bool(_is_shared(self._config) or _by_hand(self._config))

    def of(self, kind: Kind, folders: pytest.TempPathFactory) -> Forgelet:
        """Return the server of that kind, and start it first if it does not run."""
        return self._once(kind, lambda: self._new(kind, folders))

    def running(self, kind: Kind) -> Forgelet | None:
        """Return the running server of that kind, or None if it has not been started."""
        if _by_hand(self._config):
            return self._once(kind, lambda: self._server_of(kind))
        return self._running.get(kind)

    def forget_failures(self) -> None:
        """Cancel the failures that the test has ordered."""
        for forgelet in self._running.values():
            forgelet.stop_failing()

    def close(self) -> None:
        """End our own servers."""
        self._ending.close()

    def _once(self, kind: Kind, get: Callable[[], Forgelet]) -> Forgelet:
        from forgelet.testing.starting import CannotStart

        if kind not in self._running and kind not in self._failed:
            try:
                self._running[kind] = get()
            except CannotStart as problem:
                self._failed[kind] = str(problem)
        if kind in self._failed:
            pytest.fail(self._failed[kind], pytrace=False)
        return self._running[kind]

    def _new(self, kind: Kind, folders: pytest.TempPathFactory) -> Forgelet:
        from forgelet.testing import starting

        if _by_hand(self._config):
            return self._server_of(kind)
        settings_lines = [line.partition("=") for line in self._config.getini("forgelet_settings")]
        settings = {name.strip(): text.strip() for name, _, text in settings_lines} | kind.settings
        options = [*self._config.getini("forgelet_options"), *kind.options]
        if self.are_shared:
            folder = folders.getbasetemp().parent / f"forgelet-{kind}"
            forgelet = starting.shared(*options, folder=folder, settings=settings)
            self._ending.callback(forgelet.close)
            return forgelet
        folder = folders.mktemp(f"forgelet-{kind}")
        return self._ending.enter_context(starting.running(*options, folder=folder, settings=settings))

    def _server_of(self, kind: Kind) -> Forgelet:
        """Return the server that was started by hand. Skip the test if it is of another kind."""
        from forgelet.testing import starting
        from forgelet.testing.server import Forgelet

        option, value = _by_hand(self._config) or ("", "")
        if option == _URL:
            ready = starting.of_url(value, os.environ.get("FORGELET_ROOT_TOKEN"))
        else:
            ready = starting.of_file(Path(value))
        forgelet = Forgelet(ready, is_shared=self.are_shared)
        self._ending.callback(forgelet.close)
        version = starting.version_of(forgelet)
        if kind.tier or (kind.version and not f"{version}.".startswith(f"{kind.version}.")):
            pytest.skip(f"{forgelet.url} was started by hand, as {version}; this test wants {kind}")
        return forgelet


_SERVERS = pytest.StashKey[Servers]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of the command line and of the configuration file."""
    group = parser.getgroup("forgelet", "forgelet, a GitLab to test against")
    group.addoption(
        "--forgelet-shared", action="store_true", default=False,
        help="one server for all workers of pytest-xdist, instead of one for each",
    )  # fmt: skip
    group.addoption(
        _READY_FILE, metavar="FILE",
        help="use the server that has written this file, instead of starting one (FORGELET_READY_FILE)",
    )  # fmt: skip
    group.addoption(
        _URL, metavar="URL",
        help="use the server at this address, whose administrator's token is in FORGELET_ROOT_TOKEN (FORGELET_URL)",
    )  # fmt: skip
    parser.addini("forgelet_shared", "as --forgelet-shared", type="bool", default=False)
    parser.addini("forgelet_isolation", "namespace (default), or reset before each test", default="namespace")
    parser.addini("forgelet_options", "further options of `forgelet up --testing`", type="args", default=[])
    parser.addini("forgelet_settings", "variables of the server, NAME=value", type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Raise an error for invalid and contradictory options."""
    config.addinivalue_line("markers", MARKER)
    config.stash[_SERVERS] = Servers(config)
    isolation = config.getini("forgelet_isolation")
    if isolation not in ISOLATIONS:
        raise pytest.UsageError(f"forgelet_isolation is {isolation!r}; it can be {' or '.join(ISOLATIONS)}")
    if isolation == "reset" and (_is_shared(config) or _by_hand(config)) and _has_workers(config):
        raise pytest.UsageError(SHARED_RESET)
    for line in config.getini("forgelet_settings"):
        if not re.match(r"FORGELET_\w+\s*=", line):
            raise pytest.UsageError(f"forgelet_settings has {line!r}; a line is FORGELET_API_TIER=free, say")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the servers of an interrupted session."""
    config.stash[_SERVERS].close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test that requests kinds of servers. The fixture `forgelet` is then a server of that kind, even if
    the test uses it only indirectly."""
    values = _marker_values(metafunc.definition)
    kinds = [Kind(tier, version) for tier in values["tier"] for version in values["version"]]
    if any(choices != [None] for choices in values.values()) and "forgelet" not in metafunc.fixturenames:
        metafunc.fixturenames.append("forgelet")
    if kinds != [Kind()]:
        metafunc.parametrize("forgelet", kinds, indirect=True, ids=str, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Reset the server before all fixtures of the test, if its isolation requires that."""
    values = _marker_values(item)
    callspec = getattr(item, "callspec", None)
    kind = callspec.params.get("forgelet", Kind()) if callspec else Kind()
    if callspec is None and (values["tier"] != [None] or values["version"] != [None]):
        pytest.fail(NOT_FOR_METHODS, pytrace=False)
    isolation = values["isolation"][0] or item.config.getini("forgelet_isolation")
    if isolation == "reset" and "forgelet" in getattr(item, "fixturenames", ()):
        servers = item.config.stash[_SERVERS]
        if servers.are_shared:
            pytest.fail(SHARED_RESET, pytrace=False)
        forgelet = servers.running(kind)
        if forgelet is not None:
            forgelet.reset()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Cancel the failures that a test has ordered, before its fixtures end."""
    item.config.stash[_SERVERS].forget_failures()


@pytest.fixture(scope="session")
def _forgelet_servers(pytestconfig: pytest.Config) -> Iterator[Servers]:
    """Yield the servers, and end them after all fixtures that use them."""
    yield pytestconfig.stash[_SERVERS]
    pytestconfig.stash[_SERVERS].close()


@pytest.fixture(scope="session")
def forgelet(
    request: pytest.FixtureRequest, _forgelet_servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Forgelet:
    """Return the server: addresses, administrator's token and API, reset, snapshots, clock, requests, failures."""
    return _forgelet_servers.of(getattr(request, "param", Kind()), tmp_path_factory)


@pytest.fixture
def gitlab_user(request: pytest.FixtureRequest, forgelet: Forgelet) -> User:
    """Return a new ordinary user with a token, whose namespace only this test uses."""
    from forgelet.testing.namespaces import new_user

    return new_user(forgelet, request.node.name)


@pytest.fixture
def gitlab_group(gitlab_user: User) -> Group:
    """Return a new private group, owned by `gitlab_user`."""
    from forgelet.testing.namespaces import new_group

    return new_group(gitlab_user)


@pytest.fixture
def gitlab_project(gitlab_user: User) -> Project:
    """Return a new private project of `gitlab_user` with a first commit."""
    from forgelet.testing.namespaces import new_project

    return new_project(gitlab_user)


@pytest.fixture
def python_gitlab(forgelet: Forgelet, gitlab_user: User) -> Iterator[gitlab.Gitlab]:
    """Return a client of python-gitlab, signed in as `gitlab_user`."""
    client: Any = pytest.importorskip(
        "gitlab", reason="the fixture python_gitlab wants python-gitlab: pip install python-gitlab"
    )
    with client.Gitlab(forgelet.url, private_token=gitlab_user.token) as signed_in:
        yield signed_in


def _marker_values(node: pytest.Item) -> dict[str, list[Any]]:
    """Return the lists of `tier`, `version` and `isolation` in the test's `gitlab` markers, by name; [None] without
    one."""
    # From the module's marker to the test's own, so that the nearer one takes precedence.
    markers = [*node.iter_markers("gitlab")][::-1]
    kwargs = {name: value for marker in markers for name, value in marker.kwargs.items()}
    values = {name: _as_list(kwargs.pop(name, None)) for name in ("tier", "version", "isolation")}
    faults = [f"{name}=" for name in kwargs] + [repr(arg) for marker in markers for arg in marker.args]
    faults += [f"tier={tier!r}" for tier in values["tier"] if tier not in (None, *TIERS)]
    faults += [
        f"version={value!r}"
        for value in values["version"]
        if value and not re.fullmatch(r"\d+\.\d+(\.\d+)?(-\w+)?", value)
    ]
    faults += [f"isolation={value!r}" for value in values["isolation"] if value not in (None, *ISOLATIONS)]
    if faults:
        pytest.fail(f"the marker gitlab cannot have {', '.join(faults)}. It is {MARKER}", pytrace=False)
    return values


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _by_hand(config: pytest.Config) -> tuple[str, str] | None:
    """Return the option that names a server that was started by hand, and its value, or None. Options take precedence
    over variables."""
    options = {option: config.getoption(option) for option in (_READY_FILE, _URL)}
    if not any(options.values()):
        options = {option: os.environ.get(option[2:].upper().replace("-", "_")) for option in options}
    return next(((option, value) for option, value in options.items() if value), None)


def _is_shared(config: pytest.Config) -> bool:
    return bool(config.getoption("--forgelet-shared") or config.getini("forgelet_shared"))


def _is_one_of_many(config: pytest.Config) -> bool:
    """Return whether this is one of several workers of pytest-xdist."""
    return int(getattr(config, "workerinput", {}).get("workercount", 1)) > 1


def _has_workers(config: pytest.Config) -> bool:
    """Return whether this process distributes its tests to workers."""
    return len(config.getoption("tx", None) or ()) > 1
