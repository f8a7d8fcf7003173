"""The supervisor of the database, the API server and the edge: it starts, connects and stops them together.

Imports take most of the servers' start. So the servers start first, with nothing but their sockets, and everything else
is imported and started in the meantime; therefore imports are in functions here. The sockets are held as long as `up`
runs, so that no other process can take a port or answer on it.
"""

import contextlib
import errno
import functools
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import attrs

from forgelet.local import variables
from forgelet.local.data_directory import DataDirectory
from forgelet.local.processes import START_TIMEOUT, CannotStart, Child, StartWait, end_processes_in, is_any_in
from forgelet.local.variables import Addresses


@attrs.frozen
class Ports:
    """Both sockets; `edge` is None without an edge."""

    requested: Addresses
    api: socket.socket
    edge: socket.socket | None

    @property
    def addresses(self) -> Addresses:
        """The addresses with the actual ports."""
        edge_port = None if self.edge is None else _port(self.edge)
        return attrs.evolve(self.requested, api_port=_port(self.api), edge_port=edge_port)

    def close(self) -> None:
        for sock in filter(None, (self.api, self.edge)):
            sock.close()


def take(addresses: Addresses) -> Ports:
    """Return the sockets for `addresses`; a port 0 is any free one. Raise `CannotStart` if another process listens on a
    port, or if this account may not."""
    if addresses.api_port == addresses.edge_port != 0:
        raise CannotStart(
            f"--api-port and --edge-port are both {addresses.api_port}; choose two different ports"
        )
    with contextlib.ExitStack() as sockets:
        api = sockets.enter_context(_bound(addresses.host, addresses.api_port, "--api-port"))
        edge = None
        if addresses.edge_port is not None:
            edge = sockets.enter_context(_bound(addresses.host, addresses.edge_port, "--edge-port"))
        sockets.pop_all()
        return Ports(addresses, api, edge)


def _bound(host: str, port: int, option: str) -> socket.socket:
    """Return a bound socket that does not listen yet, so that early clients are refused."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as problem:
        sock.close()
        if problem.errno == errno.EADDRNOTAVAIL:
            option = "--host"
        raise CannotStart(
            f"Port {port} of {host} cannot be used ({problem.strerror}); choose another {option}"
        ) from None
    return sock


def _port(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


#: Seconds until a process is restarted after its first and second end within a minute.
PAUSES = (0.5, 1.0)
#: Seconds after which an end of a process no longer counts.
MEMORY = 60.0


class EndsAgainAndAgain(CannotStart):
    """A process that has worked before ends again and again."""

    exit_code = 1


class Service:
    """A process with its title for people. The function `start` starts and returns it. Its end may take `stop_timeout`
    seconds."""

    def __init__(
        self,
        title: str,
        start: Callable[[], Child],
        echo: Callable[[str], None],
        *,
        stop_timeout: float = 0.0,
    ) -> None:
        self.title = title
        self.stop_timeout = stop_timeout
        self._start = start
        self._echo = echo
        self._ends: list[float] = []
        self._next_start = 0.0
        self.child: Child | None = None

    def start(self) -> None:
        """Start the process. Raise `CannotStart`."""
        self.child = self._start()

    def keep_up(self) -> bool:
        """Return whether the process runs. If it has ended, start it again after a pause. Raise `EndsAgainAndAgain`
        when it ends for the third time within a minute, because then a person has to find the cause."""
        if self.child is not None and self.child.has_ended():
            self.child.stop()  # and the rest of its session
            self._note_end(f"{self.title} ended with {self.child.account_of_end()}")
        if self.child is None and time.monotonic() >= self._next_start:
            try:
                self.start()
            except CannotStart as problem:
                self._note_end(problem.message)
        return self.child is not None

    def _note_end(self, problem: str) -> None:
        self.child = None
        now = time.monotonic()
        self._ends = [*(moment for moment in self._ends if now - moment < MEMORY), now]
        if len(self._ends) > len(PAUSES):
            raise EndsAgainAndAgain(f"{problem}, for the third time within a minute")
        pause = PAUSES[len(self._ends) - 1]
        self._next_start = now + pause
        self._echo(f"{problem}; it is started again in {pause:g} s.")


if TYPE_CHECKING:
    from forgelet.local.embedded_postgres import Cluster
    from forgelet.testing.api import Api, Connections

#: Seconds that a server may take in addition to its `shutdown_timeout`, for releasing its resources.
CLOSING_SECONDS = 5.0
#: Seconds that PostgreSQL may take to end.
POSTGRES_SECONDS = 10.0
POSTGRESQL, API_SERVER, EDGE = "PostgreSQL", "The API server", "The storage edge"


@attrs.frozen
class Plan:
    """The processes to run, and their place. The commands are fields so that tests can replace them."""

    data: DataDirectory
    addresses: Addresses
    database_url: str | None = None  # None: an embedded PostgreSQL
    testing: bool = False  # fast instead of durable, and everybody who can reach it can control it
    #: The servers' variables that options have set.
    overrides: Mapping[str, str] = attrs.field(factory=dict)
    #: Seconds for the whole start.
    start_timeout: float = START_TIMEOUT
    api_command: Sequence[str] = (sys.executable, "-P", "-m", "forgelet.local.server", "api")
    edge_command: Sequence[str] = (sys.executable, "-P", "-m", "forgelet.local.server", "edge")

    @property
    def api_url(self) -> str:
        return self.addresses.api_url

    @property
    def edge_url(self) -> str | None:
        return self.addresses.edge_url


def never(seconds: float) -> bool:
    """Wait for `seconds` and return False."""
    time.sleep(seconds)
    return False


class Forgelet:
    """Everything that `up` runs for the duration of the block `with Forgelet(plan, tell) as forgelet`."""

    def __init__(
        self, plan: Plan, echo: Callable[[str], None], is_over: Callable[[float], bool] = never
    ) -> None:
        """Prepare to run `plan` until `is_over` returns true; it is called with the seconds that it may wait."""
        self.plan = plan
        self._echo = echo
        self._is_over = is_over
        self._data = plan.data
        self._connections: Connections | None = None
        self._cluster: Cluster | None = None
        #: The processes, each after those that it needs.
        self._services: list[Service] = []
        self._has_database = False
        self._hurried = False
        self._reload = False
        self._ready_file = contextlib.ExitStack()
        self._ports: Ports | None = None

    def __enter__(self) -> "Forgelet":
        try:
            self._start()
        except SystemExit:
            self.__exit__(None, None, None)
            raise
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._echo("Stopping ...")
        self.stop()

    def api(self, token: str | None = None) -> "Api":
        """Return the API as the administrator, or as the owner of `token`."""
        from api_server.testing import OWN_AGENT
        from forgelet.testing.api import Api, Connections

        if self._connections is None:
            self._connections = Connections(self.plan.api_url, user_agent=OWN_AGENT)
        return Api(self._connections, token or self._data.secret("root-token", prefix="flpat-"))

    def begin_here(self) -> None:
        """Make the present state the one to which a reset of a server for tests returns."""
        from forgelet.testing.api import ApiError
        from forgelet.testing.server import Controls

        try:
            Controls(self.api().connections).post("snapshot", {"as": "start"})
        except (ApiError, OSError) as problem:
            raise CannotStart(f"The snapshot of the start cannot be stored: {problem}") from None

    def watch(self) -> None:
        """Restart processes that end, and pass SIGHUP on. Raise `EndsAgainAndAgain` when one of them ends for the third
        time within a minute."""
        while not self._is_over(0.1):
            for service in self._services:
                if not service.keep_up():
                    break  # the following processes need this one
            if self._reload:
                self._reload = False
                self._hand_on_hangup()

    def reload(self) -> None:
        """Pass SIGHUP on to both servers, as soon as they run."""
        self._reload = True

    def hurry(self) -> None:
        """Make all processes that are ending end at once."""
        self._hurried = True

    def stop(self) -> None:
        """End edge and API server at the same time, then the database, which they may still need. Each server gets the
        time that its open requests need. If there was no such time, end the program with status 1."""
        running = [service for service in self._services if service.child is not None]
        servers = [service for service in running if service.title != POSTGRESQL]
        for service in servers:
            self._child(service).ask_to_stop()
        self._ready_file.close()
        stop_started = time.monotonic()
        for service in servers:
            remaining = stop_started + service.stop_timeout - time.monotonic()
            self._child(service).stop(max(0.1, remaining), self._is_hurried)
        if self._cluster is not None:
            self._cluster.stop(POSTGRES_SECONDS, self._is_hurried)
        if self._ports is not None:
            self._ports.close()
        if self._connections is not None:
            self._connections.close()
        if self._hurried:
            self._echo("Stopped at once; what was in flight was cut off.")
            raise SystemExit(1)

    def _is_hurried(self) -> bool:
        return self._hurried

    @staticmethod
    def _child(service: Service) -> Child:
        assert service.child is not None
        return service.child

    def _hand_on_hangup(self) -> None:
        stopping = [service for service in self._services if service.child and service.title != POSTGRESQL]
        for service in stopping:
            self._child(service).process.send_signal(signal.SIGHUP)
        names = " and ".join(service.title[0].lower() + service.title[1:] for service in stopping)
        self._echo(f"SIGHUP was handed on to {names or 'nobody'}.")

    def _start(self) -> None:
        wait = StartWait(self.plan.start_timeout, self._echo)
        self._end_leftovers()
        self._ports = take(self.plan.addresses)
        plan = self.plan = attrs.evolve(self.plan, addresses=self._ports.addresses)
        self._echo("Starting the API server" + (" and the storage edge ..." if plan.edge_url else " ..."))
        servers = self._servers()
        for server in servers:
            server.start()
            self._services.append(server)
        for server, stop_timeout in zip(servers, self._stop_timeouts(), strict=True):
            server.stop_timeout = stop_timeout
        if plan.database_url is None:
            self._start_postgres(self._own_cluster(), wait)
        self._has_database = True
        for server in servers:
            self._child(server).go_on(self._settings_of(server.title))
        self._write_down()
        self._wait_for(f"{plan.api_url}/-/readiness", wait)
        self._join()  # first, because the edge is not ready until the service knows its token
        if plan.edge_url:
            self._wait_for(f"{plan.edge_url}/-/readiness", wait)

    def _end_leftovers(self) -> None:
        """End what a killed `up` has left, which gets the time that its open requests need. Raise `ConfigError` if the
        settings of that time are invalid."""
        folders = [self._data.part(name) for name in ("api", "edge")]
        if is_any_in(*folders):
            self.plan = attrs.evolve(self.plan, addresses=self.plan.addresses.supposed())
            end_processes_in(*folders, stop_signal=signal.SIGTERM, timeout=max(self._stop_timeouts()))

    def _servers(self) -> list[Service]:
        """Return the servers of the plan, not started."""
        logs = {API_SERVER: self._data.log("api")}
        if self.plan.addresses.edge_port is not None:
            logs[EDGE] = self._data.log("edge")
        return [
            Service(title, functools.partial(self._started, title, log), self._echo)
            for title, log in logs.items()
        ]

    def _stop_timeouts(self) -> list[float]:
        """Return the seconds that each server may take to end. Raise `ConfigError` if settings are invalid."""
        settings = [variables.API.sources(self._variables(API_SERVER)).settings().shutdown_timeout]
        if self.plan.addresses.edge_port is not None:
            settings.append(variables.EDGE.sources(self._variables(EDGE)).settings().shutdown_timeout)
        return [seconds + CLOSING_SECONDS for seconds in settings]

    def _write_down(self) -> None:
        """Record addresses and settings, so that commands find this instance."""
        from forgelet.local import data_directory

        of_edge = self._variables(EDGE) if self.plan.edge_url else {}
        variables.remember(self._data, self.plan.addresses)
        self._ready_file.enter_context(
            data_directory.written_down(
                self._data, self.plan.api_url, self.plan.edge_url, {**of_edge, **self._variables(API_SERVER)}
            )
        )
        if not self.plan.testing:
            self._ready_file.enter_context(data_directory.registration(self._data))

    def _own_cluster(self) -> "Cluster":
        from forgelet.local import embedded_postgres, throwaway_data

        cluster = (
            throwaway_data.templated_cluster(self._data)
            if self.plan.testing
            else embedded_postgres.cluster_of(self._data)
        )
        if cluster.data.parent.parent != self._data.path:
            self._echo(f"PostgreSQL cannot run as root; its files are kept in {cluster.data.parent}.")
        return cluster

    def _start_postgres(self, cluster: "Cluster", wait: StartWait) -> None:
        """Start PostgreSQL while the servers are busy with imports."""
        self._echo("Starting PostgreSQL ...")
        log, waits = self._data.log("postgres"), iter([wait])

        def start() -> Child:  # the first time, and whenever it has ended
            return cluster.start(log, next(waits, StartWait(self.plan.start_timeout, self._echo)))

        self._cluster = cluster
        service = Service(POSTGRESQL, start, self._echo, stop_timeout=POSTGRES_SECONDS)
        service.start()
        self._services.insert(0, service)

    def _started(self, title: str, log: Path) -> Child:
        """Start the process of the server `title`. It goes on by itself if the database is already there."""
        api = title == API_SERVER
        name, command = ("api", self.plan.api_command) if api else ("edge", self.plan.edge_command)
        child = Child(
            title,
            command,
            log=log,
            environment=variables.foreign(os.environ),
            cwd=self._data.part(name),
            inherits=[self._socket_of(title).fileno()],
            waits=True,
        )
        if self._has_database:
            child.go_on(self._settings_of(title))
        return child

    def _settings_of(self, title: str) -> dict[str, str]:
        """Return the variables that the server `title` gets when the database is there."""
        prefix = variables.API.prefix if title == API_SERVER else variables.EDGE.prefix
        ours = {name: text for name, text in self._variables(title).items() if name.startswith("FORGELET_")}
        return {**ours, f"{prefix}LISTEN_FD": str(self._socket_of(title).fileno())}

    def _socket_of(self, title: str) -> socket.socket:
        assert self._ports is not None
        bound = self._ports.api if title == API_SERVER else self._ports.edge
        assert bound is not None
        return bound

    def _variables(self, title: str) -> dict[str, str]:
        """Return the environment of the server `title`, with its settings."""
        inherited = variables.for_tests if self.plan.testing else variables.inherited
        if title == API_SERVER:
            url = self._cluster.url() if self._cluster else "postgresql:///"
            settings = variables.of_api(self._data, self.plan.addresses, self.plan.database_url or url)
        else:
            settings = variables.of_edge(self._data, self.plan.addresses)
        return {**inherited(os.environ), **self.plan.overrides, **settings}

    def _wait_for(self, url: str, wait: StartWait) -> None:
        from forgelet.testing.api import answers

        while not answers(url):
            self._check_all_start()
            wait.check(url, self._data.part("logs"))
            if self._is_over(0.01):
                raise SystemExit(0)

    def _join(self) -> None:
        """Tell the API server the edge's address, or that there is no edge."""
        from forgelet.testing.api import ApiError

        token = self._data.secret("edge-storage-token") if self.plan.edge_url else ""
        try:
            self.api().put(
                "application/settings",
                {
                    "static_objects_external_storage_url": self.plan.addresses.external_edge_url or "",
                    "static_objects_external_storage_auth_token": token,
                },
            )
        except (ApiError, OSError) as problem:
            raise CannotStart(f"The edge cannot be connected to the API server: {problem}") from None

    def _check_all_start(self) -> None:
        for service in self._services:
            child = self._child(service)
            if child.has_ended():
                raise CannotStart(f"{child.name} stopped while starting with {child.account_of_end()}")
