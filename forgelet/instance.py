"""The forgelet that a command works on: its settings, addresses, secrets and database."""

import contextlib
import functools
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from common.config_errors import ConfigError
from forgelet.local import data_directory, variables
from forgelet.local.data_directory import DataDirectory

if TYPE_CHECKING:  # help and completion import neither the servers nor their settings
    from api_server.settings import Settings as ApiSettings
    from api_server.state.database import Database
    from common.settings import Sources
    from forgelet.local.data_directory import Running
    from storage_edge.settings import Settings as EdgeSettings

#: Settings that every server has. If one of them is given, that server is meant.
_OWN = {"database_url", "data_dir"}


class Instance:
    """The object that `@click.pass_obj` gives to a command. Each part is looked up when it is first used.

    It is the `forgelet up` with the folder `named`, running or not. Otherwise it is the server whose database or folder
    the environment or the file of FORGELET_SETTINGS gives. Otherwise it is the running `forgelet up`, or the one with
    the default folder. Every member raises `ConfigError` if there is no instance, or if its settings are invalid.
    """

    def __init__(self) -> None:
        #: The folder of --data-dir or FORGELET_DATA_DIR.
        self.named: Path | None = None

    @functools.cached_property
    def data(self) -> DataDirectory | None:
        """The folder of `forgelet up`, or None for a server with its own settings."""
        if self.named is not None:
            return _existing(DataDirectory(self.named))
        return None if _has_own_settings() else _existing(_by_itself())

    @functools.cached_property
    def running(self) -> "Running | None":
        """The record of the running `forgelet up`, or None if none runs or the server has its own settings."""
        from forgelet.local.data_directory import found_running

        return None if self.data is None else found_running(self.data)

    @functools.cached_property
    def environment(self) -> Mapping[str, str]:
        """The variables from which both processes get their settings."""
        if self.data is None:
            return os.environ
        if self.running is not None:
            return self.running.variables
        return variables.of_stopped(self.data)

    @functools.cached_property
    def api_sources(self) -> "Sources[ApiSettings]":
        """The sources of the API server's settings."""
        return variables.API.sources(self.environment)

    @functools.cached_property
    def edge_sources(self) -> "Sources[EdgeSettings]":
        """The sources of the storage edge's settings."""
        return variables.EDGE.sources(self.environment)

    @functools.cached_property
    def api_settings(self) -> "ApiSettings":
        """The API server's settings. Their `database_url` may be that of an embedded PostgreSQL that does not run:
        commands use `ready_database_url` or `database`."""
        return self.api_sources.settings()

    @functools.cached_property
    def edge_settings(self) -> "EdgeSettings":
        """The settings of a storage edge that runs with the same variables or file."""
        return self.edge_sources.settings()

    @property
    def own_variables(self) -> frozenset[str]:
        """The variables that `forgelet up` sets itself."""
        if self.data is None:
            return frozenset()
        addresses = variables.Addresses()
        return (
            frozenset(variables.of_api(self.data, addresses, ""))
            | variables.of_edge(self.data, addresses).keys()
        )

    @property
    def api_url(self) -> str:
        """The API server's URL on this machine, such as `http://127.0.0.1:8080`."""
        return f"http://{_reachable(self.api_settings.host)}:{self.api_settings.port}"

    @property
    def edge_urls(self) -> list[str]:
        """The base URLs of the edges that the API server notifies of changes."""
        return [url.rstrip("/") for url in self.api_settings.edge_urls]

    @property
    def purge_token(self) -> str:
        """The token for purging the edges; it may be empty."""
        return str(self.api_settings.edge_purge_token)

    @functools.cached_property
    def ready_database_url(self) -> str:
        """The URL of a database that accepts connections. The PostgreSQL of a stopped `forgelet up` is started until
        this command ends; nobody else can use the folder during that time."""
        if self.data is None or self.running is not None or not variables.has_own_postgres(self.data):
            return self.api_settings.database_url
        from forgelet.local import embedded_postgres

        cleanup = contextlib.ExitStack()
        click.get_current_context().find_root().call_on_close(cleanup.close)
        cleanup.enter_context(self.data.opened())
        cluster = embedded_postgres.cluster_of(self.data)
        cleanup.callback(cluster.stop)
        cluster.start(self.data.log("postgres"))
        return cluster.url()

    @functools.cached_property
    def migrated_database_url(self) -> str:
        """`ready_database_url`. Raise `ConfigError` if that database has another version's schema."""
        from api_server.state import migrate

        if migrate.planned(self.ready_database_url):
            raise ConfigError(
                "The database is not of this version's schema: run `forgelet migrate`, or start the service"
            )
        return self.ready_database_url

    @contextlib.asynccontextmanager
    async def database(self, *, statement_timeout: float = 60.0) -> AsyncIterator["Database"]:
        """Yield the database with a pool of two connections. Statements may take `statement_timeout` seconds. Raise
        `ConfigError` if the database has another version's schema."""
        from api_server.state import database

        async with database.connect(
            self.migrated_database_url,
            base_url=self.api_settings.base_url,
            size=2,
            statement_timeout=statement_timeout,
        ) as connected:
            yield connected


def _has_own_settings() -> bool:
    from common.settings import section_of

    of_file = {key.replace("-", "_") for key in section_of(os.environ, variables.API.section)}
    variable = variables.API.sources(os.environ).variable
    return not of_file.isdisjoint(_OWN) or any(variable(name) in os.environ for name in _OWN)


def _by_itself() -> DataDirectory:
    """Return the default folder if a `forgelet up` runs there, otherwise the only running one, otherwise the default
    folder."""
    default = DataDirectory(data_directory.default_data_dir())
    if default.is_held():
        return default
    running = data_directory.registered()
    if len(running) > 1:
        folders = ", ".join(str(data.path) for data in running)
        raise ConfigError(f"More than one forgelet runs here ({folders}): name one with --data-dir")
    if running:
        return running[0]
    if not default.exists():
        from common.settings import SETTINGS_FILE_VARIABLE

        raise ConfigError(
            "No forgelet runs here: start `forgelet up`, name its folder with --data-dir, or give the server's"
            f" settings with FORGELET_API_DATABASE_URL and FORGELET_API_DATA_DIR, or with {SETTINGS_FILE_VARIABLE}"
        )
    return default


def _existing(data: DataDirectory) -> DataDirectory:
    if not data.exists():
        raise ConfigError(
            f"{data.path} is not the data directory of a forgelet: name another with --data-dir"
        )
    return data


def _reachable(host: str) -> str:
    """Return the address on which a server that listens on `host` can be reached from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host
