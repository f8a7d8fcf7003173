"""Starts the database, the API server and the edge as one, joins them, and stops them as one."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import attrs

from api_server.settings import Settings as ApiSettings
from common.client_settings import ClientSettings
from common.settings import SETTINGS_FILE_VARIABLE, Sources
from forgelet.local import embedded_postgres
from forgelet.local.api_client import Api, ApiError, answers
from forgelet.local.data_directory import DataDirectory
from forgelet.local.keeping_up import Service
from forgelet.local.processes import CannotStart, Child, end_processes_in
from storage_edge.settings import Settings as EdgeSettings

HOST = "127.0.0.1"
READY_SECONDS = 60.0
#: How long a server may take to end beyond its `shutdown_timeout`: it closes what it has opened.
CLOSING_SECONDS = 5.0
#: How long PostgreSQL may.
POSTGRES_SECONDS = 10.0
POSTGRESQL, API_SERVER, EDGE = "PostgreSQL", "The API server", "The storage edge"
#: Section and prefix of the servers' settings.
SOURCES = {"api": ("api_server", "FORGELET_API_"), "edge": ("edge", "FORGELET_EDGE_")}


@attrs.frozen
class Plan:
    """What to run and where; the commands are fields so that tests can put stand-ins in their place."""

    data: DataDirectory
    checkout: Path
    api_port: int
    edge_port: int | None  # None: no edge
    database_url: str | None  # None: a PostgreSQL of our own
    api_command: Sequence[str] = (sys.executable, "-P", "-m", "api_server")
    edge_command: Sequence[str] = (sys.executable, "-P", "-m", "storage_edge")

    @property
    def api_url(self) -> str:
        return f"http://{HOST}:{self.api_port}"

    @property
    def edge_url(self) -> str | None:
        return None if self.edge_port is None else f"http://{HOST}:{self.edge_port}"


class Forgelet:
    """Everything that `up` runs, for as long as a block `with Forgelet(plan, tell) as forgelet` lasts."""

    def __init__(self, plan: Plan, tell: Callable[[str], None]) -> None:
        self.plan = plan
        self._tell = tell
        self._data = plan.data
        self._cluster: embedded_postgres.Cluster | None = None
        #: In the order in which they need each other.
        self._services: list[Service] = []
        self._hurried = False
        self._reload = False

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

    def watch(self) -> None:
        """Returns never: keeps the processes up, and hands SIGHUP on. Raises `CannotStart` when one of them ends for
        the third time within a minute."""
        while True:
            for service in self._services:
                if not service.keep_up():
                    break  # the next ones need it
            if self._reload:
                self._reload = False
                self._hand_on_hangup()
            time.sleep(0.1)

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
        begun = time.monotonic()
        for service in servers:
            left = begun + service.patience - time.monotonic()
            self._child(service).stop(max(0.1, left), self._is_hurried)
        if self._cluster is not None:
            self._cluster.stop(POSTGRES_SECONDS, self._is_hurried)
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
        plan = self.plan
        servers = [self._service(API_SERVER, "api", plan.api_command, self._api_environment, ApiSettings)]
        if plan.edge_url:
            servers.append(
                self._service(EDGE, "edge", plan.edge_command, self._edge_environment, EdgeSettings)
            )
        end_processes_in(
            *(self._data.part(name) for name in ("api", "edge")),
            stop_signal=signal.SIGTERM,
            patience=max(server.patience for server in servers),
        )
        check_ports(plan)
        if plan.database_url is None:
            self._start_postgres()
        self._tell("Starting the API server" + (" and the storage edge ..." if plan.edge_url else " ..."))
        for server in servers:
            server.start()
            self._services.append(server)
        for url in filter(None, (plan.api_url, plan.edge_url)):
            self._wait_for(f"{url}/-/readiness")
        self._join()

    def _start_postgres(self) -> None:
        directory = embedded_postgres.cluster_directory(self._data.path / "postgres")
        if directory.parent != self._data.path:
            self._tell(f"PostgreSQL cannot run as root; its files are kept in {directory}.")
        self._tell("Starting PostgreSQL ...")
        password = self._data.secret("postgres-password")
        cluster = self._cluster = embedded_postgres.Cluster(directory, password, durable=True)
        log = self._data.log("postgres")
        service = Service(POSTGRESQL, lambda: cluster.start(log), self._tell, patience=POSTGRES_SECONDS)
        service.start()
        self._services.append(service)

    def _service(
        self,
        title: str,
        name: str,
        command: Sequence[str],
        environment: Callable[[], Mapping[str, str]],
        settings_class: type[ClientSettings],
    ) -> Service:
        """One of the two servers, not started yet. Raises `Mistake` where its settings are wrong."""
        log, folder = self._data.log(name), self._data.part(name)

        def variables() -> dict[str, str]:
            return {**_inherited(os.environ), **environment()}

        def start() -> Child:
            return Child(title, command, log=log, environment=variables(), cwd=folder)

        section, prefix = SOURCES[name]
        sources = Sources(
            settings_class=settings_class, section=section, env_prefix=prefix, environment=variables()
        )
        patience = sources.settings().shutdown_timeout + CLOSING_SECONDS
        return Service(title, start, self._tell, patience=patience)

    def _api_environment(self) -> dict[str, str]:
        ours = self._cluster.url() if self._cluster else "postgresql:///"
        environment = {
            "FORGELET_API_HOST": HOST,
            "FORGELET_API_PORT": str(self.plan.api_port),
            "FORGELET_API_DATABASE_URL": self.plan.database_url or ours,
            "FORGELET_API_DATA_DIR": str(self._data.part("api")),
            "FORGELET_API_EXTERNAL_URL": self.plan.api_url,
            "FORGELET_API_ROOT_TOKEN_FILE": self._data.file_with_secret("root-token", prefix="flpat-"),
        }
        if self.plan.edge_url is not None:
            environment["FORGELET_API_EDGE_URLS"] = self.plan.edge_url
            environment["FORGELET_API_EDGE_PURGE_TOKEN_FILE"] = self._data.file_with_secret(
                "edge-purge-token"
            )
        return environment

    def _edge_environment(self) -> dict[str, str]:
        return {
            "FORGELET_EDGE_HOST": HOST,
            "FORGELET_EDGE_PORT": str(self.plan.edge_port),
            "FORGELET_EDGE_ORIGIN": self.plan.api_url,
            "FORGELET_EDGE_STORAGE_TOKEN_FILE": self._data.file_with_secret("edge-storage-token"),
            "FORGELET_EDGE_PURGE_TOKEN_FILE": self._data.file_with_secret("edge-purge-token"),
            "FORGELET_EDGE_DATA_DIR": str(self._data.part("edge")),
        }

    def _wait_for(self, url: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not answers(url):
            self._check_all_start()
            if time.monotonic() > deadline:
                raise CannotStart(
                    f"{url} was not ready after {READY_SECONDS:.0f} s (logs: {self._data.part('logs')})."
                )
            time.sleep(0.03)

    def _join(self) -> None:
        """Tells the API server where the edge is today, or that there is none."""
        token = self._data.secret("edge-storage-token") if self.plan.edge_url else ""
        try:
            self.api().put(
                "application/settings",
                {
                    "static_objects_external_storage_url": self.plan.edge_url or "",
                    "static_objects_external_storage_auth_token": token,
                },
            )
        except ApiError as problem:
            raise CannotStart(f"The edge cannot be joined to the API server: {problem}.") from None

    def _check_all_start(self) -> None:
        for service in self._services:
            child = self._child(service)
            if child.has_ended():
                raise CannotStart(f"{child.name} stopped while starting with {child.account_of_end()}.")


def _inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """What both processes get of our own environment: no secrets, and the settings file by its full path."""
    inherited = {
        name: value
        for name, value in environment.items()
        if name not in {"FORGELET_ROOT_TOKEN", "FORGELET_DATABASE_URL"}
    }
    if SETTINGS_FILE_VARIABLE in inherited:
        inherited[SETTINGS_FILE_VARIABLE] = str(Path(inherited[SETTINGS_FILE_VARIABLE]).absolute())
    return inherited


def check_ports(plan: Plan) -> None:
    """Refuses a port that another process listens on, or that this account may not listen on."""
    wanted = {"--api-port": plan.api_port, "--edge-port": plan.edge_port}
    if plan.api_port == plan.edge_port:
        raise CannotStart(f"--api-port and --edge-port are both {plan.api_port}; choose two different ports.")
    for option, port in wanted.items():
        if port is not None:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((HOST, port))
                except OSError as problem:
                    raise CannotStart(
                        f"Port {port} of {HOST} cannot be used ({problem.strerror}); choose another {option}."
                    ) from None
