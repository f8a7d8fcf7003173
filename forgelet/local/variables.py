"""The settings that `forgelet up` gives to its processes, as the variables that they read."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

from common.config_errors import ConfigError
from forgelet.local.data_directory import DataDirectory

if TYPE_CHECKING:
    from api_server.settings import Settings as ApiSettings
    from common.settings import Sources
    from storage_edge.settings import Settings as EdgeSettings

HOST, EVERYWHERE = "127.0.0.1", "0.0.0.0"
API_PORT, EDGE_PORT = 8080, 8081
#: Defaults of a server for tests, which its environment can override. Its data is in memory and discarded at the end,
#: which nobody waits for.
_FOR_TESTS = {
    "FORGELET_API_DISK_RESERVE": "0",
    "FORGELET_API_SHUTDOWN_TIMEOUT": "0",
    "FORGELET_EDGE_DISK_BYTES": str(256 * 2**20),
    "FORGELET_EDGE_SHUTDOWN_TIMEOUT": "0",
}
#: The variable that names an external database for `up`.
DATABASE_URL = "FORGELET_DATABASE_URL"
_ADDRESSES = "addresses"
SettingsT = TypeVar("SettingsT")


@attrs.frozen
class Program(Generic[SettingsT]):
    """One of the two processes: the section and prefix of its settings, and a function that imports their class. The
    import takes a while, so it is done only when the class is needed."""

    _import_class: Callable[[], type[SettingsT]]
    section: str
    prefix: str

    @property
    def settings_class(self) -> type[SettingsT]:
        return self._import_class()

    def sources(self, environment: Mapping[str, str]) -> "Sources[SettingsT]":
        from common.settings import Sources

        return Sources(
            settings_class=self.settings_class,
            section=self.section,
            env_prefix=self.prefix,
            environment=environment,
        )


def _api_settings() -> "type[ApiSettings]":
    from api_server.settings import Settings

    return Settings


def _edge_settings() -> "type[EdgeSettings]":
    from storage_edge.settings import Settings

    return Settings


API = Program(_api_settings, "api_server", "FORGELET_API_")
EDGE = Program(_edge_settings, "edge", "FORGELET_EDGE_")


@attrs.frozen
class Addresses:
    """The addresses on which both processes listen. `edge_port` is None without an edge. Port 0 is any free one."""

    api_port: int = API_PORT
    edge_port: int | None = EDGE_PORT
    #: An IPv4 address of this machine; 0.0.0.0 means all of them.
    host: str = HOST
    #: The name or address by which others reach this machine; by default our own.
    external_host: str | None = None

    @property
    def api_url(self) -> str:
        """The API server's URL on this machine."""
        return f"http://{self._near}:{self.api_port}"

    @property
    def edge_url(self) -> str | None:
        return None if self.edge_port is None else f"http://{self._near}:{self.edge_port}"

    @property
    def external_url(self) -> str:
        """The API server's URL in answers."""
        return f"http://{self.external_host or self._near}:{self.api_port}"

    @property
    def external_edge_url(self) -> str | None:
        return (
            None if self.edge_port is None else f"http://{self.external_host or self._near}:{self.edge_port}"
        )

    @property
    def _near(self) -> str:
        return HOST if self.host == EVERYWHERE else self.host

    def supposed(self) -> "Addresses":
        """Return the addresses with the default ports instead of free ones, for checks before ports are taken."""
        edge_port = EDGE_PORT if self.edge_port == 0 else self.edge_port
        return attrs.evolve(self, api_port=self.api_port or API_PORT, edge_port=edge_port)


def foreign(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment without those of forgelet. A waiting process starts with them."""
    return {name: text for name, text in environment.items() if not name.startswith("FORGELET_")}


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this environment for both processes: without secrets, and with the full path of the
    settings file."""
    from common.settings import SETTINGS_FILE_VARIABLE

    variables = {
        name: value
        for name, value in environment.items()
        if name not in {"FORGELET_ROOT_TOKEN", DATABASE_URL}
    }
    if SETTINGS_FILE_VARIABLE in variables:
        variables[SETTINGS_FILE_VARIABLE] = str(Path(variables[SETTINGS_FILE_VARIABLE]).absolute())
    return variables


def of_api(data: DataDirectory, addresses: Addresses, database_url: str) -> dict[str, str]:
    """Return the variables that `up` sets for the API server."""
    values = {
        "HOST": addresses.host,
        "PORT": str(addresses.api_port),
        "DATABASE_URL": database_url,
        "DATA_DIR": str(data.part("api")),
        "EXTERNAL_URL": addresses.external_url,
        "ROOT_TOKEN_FILE": data.file_with_secret("root-token", prefix="flpat-"),
    }
    if addresses.edge_url is not None:
        values["EDGE_URLS"] = addresses.edge_url
        values["EDGE_PURGE_TOKEN_FILE"] = data.file_with_secret("edge-purge-token")
    return {f"{API.prefix}{name}": text for name, text in values.items()}


def of_edge(data: DataDirectory, addresses: Addresses) -> dict[str, str]:
    """Return the variables that `up` sets for the edge."""
    values = {
        "HOST": addresses.host,
        "PORT": str(addresses.edge_port),
        "ORIGIN": addresses.api_url,
        "STORAGE_TOKEN_FILE": data.file_with_secret("edge-storage-token"),
        "PURGE_TOKEN_FILE": data.file_with_secret("edge-purge-token"),
        "DATA_DIR": str(data.part("edge")),
    }
    return {f"{EDGE.prefix}{name}": text for name, text in values.items()}


def for_tests(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this environment for a server for tests, and those that make it one."""
    testing = {f"{program.prefix}TESTING": "true" for program in (API, EDGE)}
    return {**_FOR_TESTS, **inherited(environment), **testing}


def of_stopped(data: DataDirectory) -> dict[str, str]:
    """Return both processes' variables as the next `up` with the same options would set them. Raise `ConfigError` if
    the database is external and not named."""
    stored: dict[str, Any] = json.loads(data.recall(_ADDRESSES) or "{}")
    addresses = Addresses(**stored)
    database_url = os.environ.get(DATABASE_URL) or os.environ.get(f"{API.prefix}DATABASE_URL")
    if has_own_postgres(data):
        database_url = "postgresql:///forgelet"
    if not database_url:
        raise ConfigError(
            f"{data.path} has no database of its own: name the one that it uses with {DATABASE_URL}"
        )
    edge = of_edge(data, addresses) if addresses.edge_port else {}
    return {**inherited(os.environ), **of_api(data, addresses, database_url), **edge}


def remember(data: DataDirectory, addresses: Addresses) -> None:
    """Record the addresses for commands on a stopped `up`."""
    data.remember(_ADDRESSES, json.dumps(attrs.asdict(addresses)))


def has_own_postgres(data: DataDirectory) -> bool:
    """Return whether `up` has created a PostgreSQL there."""
    return (data.path / "postgres").exists()
