"""Starts the database, the API server and the edge as one, joins them, and stops them as one."""

import contextlib
import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import attrs

from forgelet.local import embedded_postgres, ports, running, templates, variables
from forgelet.local.api_client import Api, ApiError, answers
from forgelet.local.data_directory import DataDirectory
from forgelet.local.keeping_up import Service
from forgelet.local.processes import CannotStart, Child, end_processes_in
from forgelet.local.variables import Addresses

READY_SECONDS = 60.0
#: How long a server may take to end beyond its `shutdown_timeout`: it closes what it has opened.
CLOSING_SECONDS = 5.0
#: How long PostgreSQL may.
POSTGRES_SECONDS = 10.0
POSTGRESQL, API_SERVER, EDGE = "PostgreSQL", "The API server", "The storage edge"


@attrs.frozen
class Plan:
    """What to run and where; the commands are fields so that tests can put stand-ins in their place."""

    data: DataDirectory
    addresses: Addresses
    database_url: str | None = None  # None: a PostgreSQL of our own
    testing: bool = False  # quick and forgetful, and steered by whoever reaches it
    #: Variables of the servers that options have set.
    chosen: Mapping[str, str] = attrs.field(factory=dict)
    api_command: Sequence[str] = (sys.executable, "-P", "-m", "forgelet.local.server", "api")
    edge_command: Sequence[str] = (sys.executable, "-P", "-m", "forgelet.local.server", "edge")

    @property
    def api_url(self) -> str:
        return self.addresses.api_url

    @property
    def edge_url(self) -> str | None:
        return self.addresses.edge_url


def never(seconds: float) -> bool:
    """Lasts for `seconds`."""
    time.sleep(seconds)
    return False


class Forgelet:
    """Everything that `up` runs, for as long as a block `with Forgelet(plan, tell) as forgelet` lasts."""

    def __init__(
        self, plan: Plan, tell: Callable[[str], None], is_over: Callable[[float], bool] = never
    ) -> None:
        """It lasts until `is_over`, which is given the seconds that it may wait to know."""
        self.plan = plan
        self._tell = tell
        self._is_over = is_over
        self._data = plan.data
        self._cluster: embedded_postgres.Cluster | None = None
        #: In the order in which they need each other.
        self._services: list[Service] = []
        self._has_database = False
        self._hurried = False
        self._reload = False
        self._written = contextlib.ExitStack()
        self._ports: ports.Ports | None = None

    def __enter__(self) -> "Forgelet":
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._tell("Stopping ...")
        self.stop()

    def api(self, token: str | None = None) -> Api:
        """The API as the administrator, or as the owner of `token`."""
        return Api(self.plan.api_url, token or self._data.secret("root-token", prefix="flpat-"))

    def begin_here(self) -> None:
        """Has the API server of a server for tests come back to this state whenever it is reset."""
        try:
            self.api().steer("snapshot", {"as": "start"})
        except ApiError as problem:
            raise CannotStart(f"The state to begin with cannot be kept: {problem}") from None

    def watch(self) -> None:
        """Keeps the processes up, and hands SIGHUP on. Raises `EndsAgainAndAgain` when one of them ends for the third
        time within a minute."""
        while not self._is_over(0.1):
            for service in self._services:
                if not service.keep_up():
                    break  # the next ones need it
            if self._reload:
                self._reload = False
                self._hand_on_hangup()

    def reload(self) -> None:
        """Has SIGHUP handed on to both servers, as soon as they run."""
        self._reload = True

    def hurry(self) -> None:
        """Has everything end at once that is ending."""
        self._hurried = True

    def stop(self) -> None:
        """Ends edge and API server side by side, then the database that they may still need. Each server gets the time
        that it takes for what is in flight. Ends the program with status 1 where there was no such time."""
        running = [service for service in self._services if service.child is not None]
        servers = [service for service in running if service.title != POSTGRESQL]
        for service in servers:
            self._child(service).ask_to_stop()
        self._written.close()
        begun = time.monotonic()
        for service in servers:
            left = begun + service.patience - time.monotonic()
            self._child(service).stop(max(0.1, left), self._is_hurried)
        if self._cluster is not None:
            self._cluster.stop(POSTGRES_SECONDS, self._is_hurried)
        if self._ports is not None:
            self._ports.close()
        if self._hurried:
            self._tell("Stopped at once; what was in flight was cut off.")
            raise SystemExit(1)

    def _is_hurried(self) -> bool:
        return self._hurried

    @staticmethod
    def _child(service: Service) -> Child:
        assert service.child is not None
        return service.child

    def _hand_on_hangup(self) -> None:
        told = [service for service in self._services if service.child and service.title != POSTGRESQL]
        for service in told:
            self._child(service).process.send_signal(signal.SIGHUP)
        names = " and ".join(service.title[0].lower() + service.title[1:] for service in told)
        self._tell(f"SIGHUP was handed on to {names or 'nobody'}.")

    def _start(self) -> None:
        wanted = self.plan.addresses
        self.plan = attrs.evolve(self.plan, addresses=wanted.supposed())
        servers = self._servers()
        end_processes_in(
            *(self._data.part(name) for name in ("api", "edge")),
            stop_signal=signal.SIGTERM,
            patience=max(server.patience for server in servers),
        )
        self._ports = ports.take(wanted)
        plan = self.plan = attrs.evolve(self.plan, addresses=self._ports.addresses)
        if plan.database_url is None:
            self._cluster = self._own_cluster()
        self._tell("Starting the API server" + (" and the storage edge ..." if plan.edge_url else " ..."))
        for server in servers:
            server.start()
            self._services.append(server)
        if self._cluster is not None:
            self._start_postgres(self._cluster)
        self._write_down()
        self._go_on()
        self._wait_for(f"{plan.api_url}/-/readiness")
        self._join()  # before that, the edge is not ready: the service does not know its token
        if plan.edge_url:
            self._wait_for(f"{plan.edge_url}/-/readiness")

    def _servers(self) -> list[Service]:
        """Not started yet. Raises `Mistake` where their settings are wrong."""
        api = functools.partial(self._service, API_SERVER, "api", self.plan.api_command, variables.API)
        servers = [api(self._variables_of_api)]
        if self.plan.addresses.edge_port is not None:
            edge = functools.partial(self._service, EDGE, "edge", self.plan.edge_command, variables.EDGE)
            servers.append(edge(self._variables_of_edge))
        return servers

    def _write_down(self) -> None:
        """From here on commands find this."""
        ours = self._variables_of_edge() if self.plan.edge_url else {}
        environment = {**self._inherited(), **self._variables_of_api(), **ours}
        variables.remember(self._data, self.plan.addresses)
        self._written.enter_context(
            running.written_down(self._data, self.plan.api_url, self.plan.edge_url, environment)
        )

    def _own_cluster(self) -> embedded_postgres.Cluster:
        cluster = templates.cluster(self._data) if self.plan.testing else embedded_postgres.of(self._data)
        if cluster.data.parent.parent != self._data.path:
            self._tell(f"PostgreSQL cannot run as root; its files are kept in {cluster.data.parent}.")
        return cluster

    def _start_postgres(self, cluster: embedded_postgres.Cluster) -> None:
        """Beside the servers, which have much to load until they need it."""
        self._tell("Starting PostgreSQL ...")
        log = self._data.log("postgres")
        service = Service(POSTGRESQL, lambda: cluster.start(log), self._tell, patience=POSTGRES_SECONDS)
        service.start()
        self._services.insert(0, service)

    def _go_on(self) -> None:
        """The servers may use the database now, and so may those that are started again."""
        self._has_database = True
        for service in self._services:
            self._child(service).go_on()

    def _service(
        self,
        title: str,
        name: str,
        command: Sequence[str],
        program: variables.Program[Any],
        own: Callable[[], Mapping[str, str]],
    ) -> Service:
        """One of the two servers, not started yet. Raises `Mistake` where its settings are wrong."""
        log, folder = self._data.log(name), self._data.part(name)

        def environment() -> dict[str, str]:
            return {**self._inherited(), **own()}

        def start() -> Child:
            socket = self._socket(name)
            given = {**environment(), f"{program.prefix}LISTEN_FD": str(socket)}
            child = Child(
                title, command, log=log, environment=given, cwd=folder, inherits=[socket], waits=True
            )
            if self._has_database:
                child.go_on()
            return child

        patience = program.sources(environment()).settings().shutdown_timeout + CLOSING_SECONDS
        return Service(title, start, self._tell, patience=patience)

    def _socket(self, name: str) -> int:
        assert self._ports is not None
        taken = self._ports.api if name == "api" else self._ports.edge
        assert taken is not None
        return taken.fileno()

    def _inherited(self) -> dict[str, str]:
        ours = variables.for_tests if self.plan.testing else variables.inherited
        return {**ours(os.environ), **self.plan.chosen}

    def _variables_of_api(self) -> dict[str, str]:
        ours = self._cluster.url() if self._cluster else "postgresql:///"
        return variables.of_api(self._data, self.plan.addresses, self.plan.database_url or ours)

    def _variables_of_edge(self) -> dict[str, str]:
        return variables.of_edge(self._data, self.plan.addresses)

    def _wait_for(self, url: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not answers(url):
            self._check_all_start()
            if time.monotonic() > deadline:
                raise CannotStart(
                    f"{url} was not ready after {READY_SECONDS:.0f} s (logs: {self._data.part('logs')})."
                )
            if self._is_over(0.01):
                raise SystemExit(0)

    def _join(self) -> None:
        """Tells the API server where the edge is today, or that there is none."""
        token = self._data.secret("edge-storage-token") if self.plan.edge_url else ""
        try:
            self.api().put(
                "application/settings",
                {
                    "static_objects_external_storage_url": self.plan.addresses.external_edge_url or "",
                    "static_objects_external_storage_auth_token": token,
                },
            )
        except ApiError as problem:
            raise CannotStart(f"The edge cannot be joined to the API server: {problem}") from None

    def _check_all_start(self) -> None:
        for service in self._services:
            child = self._child(service)
            if child.has_ended():
                raise CannotStart(f"{child.name} stopped while starting with {child.account_of_end()}")
