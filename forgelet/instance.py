"""Which forgelet a command is about: its settings, addresses, secrets and database."""

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

#: Settings without which there is no server: where one of them is given, that server is meant.
_OWN = {"database_url", "data_dir"}


class Instance:
    """What `@click.pass_obj` gives to a command. Nothing is looked for until something is asked of it.

    It is the `forgelet up` whose folder is `named`, running or not; else the server whose database or folder this
    environment, or the file of FORGELET_SETTINGS, gives; else the `forgelet up` that runs, or whose default folder is
    there. Everything raises `ConfigError` where there is none, or its settings are wrong.
    """

    def __init__(self) -> None:
        #: By --data-dir or FORGELET_DATA_DIR.
        self.named: Path | None = None

    @functools.cached_property
    def data(self) -> DataDirectory | None:
        """The folder of `forgelet up`; None where a server's own settings say where things are."""
        if self.named is not None:
            return _existing(DataDirectory(self.named))
        return None if _has_own_settings() else _existing(_by_itself())

    @functools.cached_property
    def running(self) -> "Running | None":
        """What the `forgelet up` that runs has written down; None where none does, or settings say where things are."""
        from forgelet.local.data_directory import found_running

        return None if self.data is None else found_running(self.data)

    @functools.cached_property
    def environment(self) -> Mapping[str, str]:
        """The variables of which both processes get their settings."""
        if self.data is None:
            return os.environ
        if self.running is not None:
            return self.running.variables
        return variables.of_stopped(self.data)

    @functools.cached_property
    def api_sources(self) -> "Sources[ApiSettings]":
        """Where the API server's settings come from."""
        return variables.API.sources(self.environment)

    @functools.cached_property
    def edge_sources(self) -> "Sources[EdgeSettings]":
        """Where the storage edge's settings come from."""
        return variables.EDGE.sources(self.environment)

    @functools.cached_property
    def api_settings(self) -> "ApiSettings":
        """The API server's. Its `database_url` may be that of a PostgreSQL of our own that does not run: commands use
        `ready_database_url` or `database`."""
        return self.api_sources.settings()

    @functools.cached_property
    def edge_settings(self) -> "EdgeSettings":
        """The storage edge's, as far as it is run with the same variables or file."""
        return self.edge_sources.settings()

    @property
    def own_variables(self) -> frozenset[str]:
        """The variables by which `forgelet up` makes both processes its own."""
        if self.data is None:
            return frozenset()
        addresses = variables.Addresses()
        return (
            frozenset(variables.of_api(self.data, addresses, ""))
            | variables.of_edge(self.data, addresses).keys()
        )

    @property
    def api_url(self) -> str:
        """Where the API server can be reached from this machine, `http://127.0.0.1:8080`, if it runs."""
        return f"http://{_reachable(self.api_settings.host)}:{self.api_settings.port}"

    @property
    def edge_urls(self) -> list[str]:
        """The base URLs of the edges that the API server tells of changes."""
        return [url.rstrip("/") for url in self.api_settings.edge_urls]

    @property
    def purge_token(self) -> str:
        """What the edges ask of whoever purges; may be empty."""
        return str(self.api_settings.edge_purge_token)

    @functools.cached_property
    def ready_database_url(self) -> str:
        """The URL of the database; the PostgreSQL of a `forgelet up` that does not run is started until this command
        ends, and nobody else can use that folder meanwhile."""
        if self.data is None or self.running is not None or not variables.has_own_postgres(self.data):
            return self.api_settings.database_url
        from forgelet.local import embedded_postgres

        ending = contextlib.ExitStack()
        click.get_current_context().find_root().call_on_close(ending.close)
        ending.enter_context(self.data.opened())
        cluster = embedded_postgres.cluster_of(self.data)
        ending.callback(cluster.stop)
        cluster.start(self.data.log("postgres"))
        return cluster.url()

    @contextlib.asynccontextmanager
    async def database(self, *, statement_timeout: float = 60.0) -> AsyncIterator["Database"]:
        """Two connections to the database, as the server has them; statements may take `statement_timeout` seconds."""
        from api_server.state import database

        async with database.connect(
            self.ready_database_url,
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
    """The default folder if a `forgelet up` runs there; else the only one that runs; else the default folder."""
    default = DataDirectory(data_directory.default_data_dir())
    if default.is_held():
        return default
    running = data_directory.registered()
    if len(running) > 1:
        folders = ", ".join(str(data.path) for data in running)
        raise ConfigError(f"More than one forgelet runs here ({folders}): name one by --data-dir")
    if running:
        return running[0]
    if not default.exists():
        from common.settings import SETTINGS_FILE_VARIABLE

        raise ConfigError(
            "No forgelet runs here: start `forgelet up`, name its folder by --data-dir, or give the server's"
            f" settings by FORGELET_API_DATABASE_URL and FORGELET_API_DATA_DIR, or by {SETTINGS_FILE_VARIABLE}"
        )
    return default


def _existing(data: DataDirectory) -> DataDirectory:
    if not data.exists():
        raise ConfigError(f"{data.path} is no folder of `forgelet up`: name another by --data-dir")
    return data


def _reachable(host: str) -> str:
    """An address of this machine for one that is listened on."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host
