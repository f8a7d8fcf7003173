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

from common.settings import SETTINGS_FILE_VARIABLE
from scripts.local import embedded_postgres
from scripts.local.api_client import Api, ApiError, answers
from scripts.local.data_directory import DataDirectory
from scripts.local.processes import CannotStart, Child, end_processes_in

HOST = "127.0.0.1"
READY_SECONDS = 60.0
STOP_SECONDS = 4.0


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
        self._children: list[Child] = []

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
        self.stop()

    def api(self, token: str | None = None) -> Api:
        """The API as the administrator, or as the owner of `token`."""
        return Api(self.plan.api_url, token or self._data.secret("root-token", prefix="flpat-"))

    def watch(self) -> None:
        """Returns never, raises as soon as one of the processes has ended."""
        while True:
            self._check_children("stopped")
            time.sleep(0.3)

    def stop(self) -> None:
        """Ends edge and API server side by side, then the database that they may still need."""
        services = [child for child in self._children if child.name != "PostgreSQL"]
        for child in services:
            child.ask_to_stop()
        deadline = time.monotonic() + STOP_SECONDS
        for child in services:
            child.stop(patience=max(0.1, deadline - time.monotonic()))
        if self._cluster is not None:
            self._cluster.stop()

    def _start(self) -> None:
        plan = self.plan
        for name in ("api", "edge"):
            end_processes_in(self._data.part(name), signal.SIGTERM, STOP_SECONDS)
        check_ports(plan)
        if plan.edge_port is not None:
            self._children.append(self._service("edge", plan.edge_command, self._edge_environment()))
        database_url = plan.database_url or self._start_postgres()
        self._tell("Starting the API server" + (" and the storage edge ..." if plan.edge_url else " ..."))
        self._children.append(self._service("api", plan.api_command, self._api_environment(database_url)))
        for url in filter(None, (plan.api_url, plan.edge_url)):
            self._wait_for(f"{url}/-/readiness")
        self._join()

    def _start_postgres(self) -> str:
        directory = embedded_postgres.cluster_directory(self._data.path / "postgres")
        if directory.parent != self._data.path:
            self._tell(f"PostgreSQL cannot run as root; its files are kept in {directory}.")
        self._tell("Starting PostgreSQL ...")
        password = self._data.secret("postgres-password")
        self._cluster = embedded_postgres.Cluster(directory, password, durable=True)
        self._children.append(self._cluster.start(self._data.log("postgres")))
        return self._cluster.url()

    def _service(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        title = {"api": "The API server", "edge": "The storage edge"}[name]
        return Child(
            title,
            command,
            log=self._data.log(name),
            environment={**_inherited(os.environ), **environment},
            cwd=self._data.part(name),
        )

    def _api_environment(self, database_url: str) -> dict[str, str]:
        environment = {
            "FORGELET_API_HOST": HOST,
            "FORGELET_API_PORT": str(self.plan.api_port),
            "FORGELET_API_DATABASE_URL": database_url,
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
            self._check_children("stopped while starting")
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

    def _check_children(self, what: str) -> None:
        for child in self._children:
            if child.has_ended():
                raise CannotStart(f"{child.name} {what} with {child.account_of_end()}.")


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
