"""The API server as a process of its own, and its lists as pgbench scripts."""

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs
import psycopg2

from forgelet.local.api_client import Api, answers
from forgelet.local.embedded_postgres import DATABASE, ROLE, SUPERUSER, Cluster
from forgelet.local.processes import Child
from tests.support.ports import free_port

POOL = 10
TOKEN = "flpat-benchmark-token"  # of a database that lives as long as the measurement
HEADERS = {"PRIVATE-TOKEN": TOKEN}


@attrs.frozen
class Running:
    """The server's process with its database's, whose processor time counts together."""

    api: Api
    pid: int
    database: int

    @property
    def pids(self) -> list[int]:
        return [self.pid, self.database]


@contextlib.contextmanager
def running(cluster: Cluster, folder: Path, **settings: str) -> Iterator[Running]:
    """The API server over the cluster's database as users run it, access log included, and its administrator."""
    port = free_port()
    wanted = {
        "PORT": str(port),
        "DATABASE_URL": cluster.url(),
        "DATA_DIR": str(folder / "data"),
        "ROOT_TOKEN": TOKEN,
        "DATABASE_POOL": str(POOL),
        "JOBS_RATE_LIMIT": "0",
    } | settings
    environment = {**os.environ, **{f"FORGELET_API_{name}": value for name, value in wanted.items()}}
    command = [sys.executable, "-m", "api_server"]
    server = Child("The API server", command, log=folder / "log", environment=environment)
    try:
        while not answers(f"http://127.0.0.1:{port}/-/readiness"):
            if server.has_ended():
                raise RuntimeError(f"The API server stopped with {server.account_of_end()}.")
            time.sleep(0.05)
        yield Running(Api(f"http://127.0.0.1:{port}", TOKEN), server.process.pid, postmaster(cluster))
    finally:
        server.stop()


def postmaster(cluster: Cluster) -> int:
    """The process id of PostgreSQL."""
    return int((cluster.data / "postmaster.pid").read_text().split("\n", 1)[0])


def list_statements(cluster: Cluster, folder: Path, paths: Iterable[str]) -> dict[str, str]:
    """For the list at each path, a pgbench script of what the server prepares and runs for it."""
    scripts = {}
    _set_logging(cluster, "all")
    try:
        with running(cluster, folder) as server:
            for path in paths:
                server.api.get(path)
                scripts[path] = prepared_script(cluster.log.read_text())
    finally:
        _set_logging(cluster, "none")
    return scripts


def prepared_script(log: str) -> str:
    """A pgbench script out of PostgreSQL's log: the last list that was prepared, once, then its execution."""
    logged = re.findall(r"LOG:  statement: (.*(?:\n\t.*)*)", log)
    prepared = {text.split()[1]: text for text in logged if text.startswith("PREPARE")}
    for text in reversed(logged):
        executed = re.match(r"(SET LOCAL [^;]*; )?EXECUTE (\w+)", text)
        if executed and "AS last_id" in prepared.get(executed[2], ""):
            # pgbench reads one backslash command a line, takes a statement to its semicolon, and sends two together
            # where there is a backslash before it.
            execute = text.replace("; EXECUTE", "\\; EXECUTE", 1)
            prepare = prepared[executed[2]]
            return f"\\if :prepared\n\\else\n{prepare};\n\\set prepared 1\n\\endif\n{execute};\n"
    raise RuntimeError("The API server has prepared no list.")


def _set_logging(cluster: Cluster, which: str) -> None:
    """Which statements new connections write to PostgreSQL's log."""
    with contextlib.closing(psycopg2.connect(cluster.url(role=SUPERUSER))) as connection:
        connection.autocommit = True
        connection.cursor().execute(f"ALTER DATABASE {DATABASE} SET log_statement = '{which}'")


def connection(cluster: Cluster) -> dict[str, str]:
    """How pgbench connects, as the API server does."""
    parts = psycopg2.extensions.parse_dsn(cluster.url())
    return {
        "PGHOST": parts["host"],
        "PGUSER": ROLE,
        "PGPASSWORD": parts["password"],
        "PGDATABASE": DATABASE,
        "PGOPTIONS": "-c forgelet.base_url=http://127.0.0.1:8080 -c jit=off",
    }
