"""The API server as a process of its own, and its lists as pgbench scripts."""

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg2

from forgelet.local.api_client import Api, answers
from forgelet.local.embedded_postgres import DATABASE, ROLE, SUPERUSER, Cluster
from forgelet.local.processes import Child
from scripts.bench.load import http_requests, statements
from scripts.bench.rows import Row, by_turns
from tests.support.ports import free_port

ROUND_SECONDS = 4
POOL = 10
TOKEN = "flpat-benchmark-token"  # of a database that lives as long as the measurement


def requests(api: Api, path: str) -> float:
    """Requests a second that the server answers at `path`."""
    return http_requests(f"{api.base_url}/api/v4/{path}", {"PRIVATE-TOKEN": TOKEN}, ROUND_SECONDS)


def share_of_postgresql(cluster: Cluster, folder: Path, what: str, path: str, aim: float) -> Row:
    """The list at `path`, against pgbench with the statement that the server prepares for it."""
    set_logging(cluster, "all")
    with running(cluster, folder) as api:
        api.get(path)
    set_logging(cluster, "none")
    script = prepared_script(cluster.log.read_text())
    with running(cluster, folder) as api:
        ours, theirs = by_turns(
            lambda: requests(api, path), lambda: statements(script, connection(cluster), ROUND_SECONDS, POOL)
        )
    return Row(what, ours, theirs, "pgbench with the same prepared statement", aim)


def prepared_script(log: str) -> str:
    """A pgbench script out of PostgreSQL's log: the last list that was prepared, once, then its execution."""
    logged = re.findall(r"LOG:  statement: (.*(?:\n\t.*)*)", log)
    prepared = {text.split()[1]: text for text in logged if text.startswith("PREPARE")}
    for text in reversed(logged):
        executed = re.match(r"(SET LOCAL [^;]*; )?EXECUTE (\w+)", text)
        if executed and "json_agg(entity" in prepared[executed[2]]:
            # pgbench reads one backslash command a line, takes a statement to its semicolon, and sends two together
            # where there is a backslash before it.
            execute = text.replace("; EXECUTE", "\\; EXECUTE", 1)
            prepare = prepared[executed[2]]
            return f"\\if :prepared\n\\else\n{prepare};\n\\set prepared 1\n\\endif\n{execute};\n"
    raise RuntimeError("The API server has prepared no list.")


@contextlib.contextmanager
def running(cluster: Cluster, folder: Path) -> Iterator[Api]:
    """The API server over the cluster's database, and a client of its administrator."""
    port = free_port()
    settings = {
        "PORT": str(port),
        "DATABASE_URL": cluster.url(),
        "DATA_DIR": str(folder / "data"),
        "ROOT_TOKEN": TOKEN,
        "DATABASE_POOL": str(POOL),
        "JOBS_RATE_LIMIT": "0",
    }
    environment = {**os.environ, **{f"FORGELET_API_{name}": value for name, value in settings.items()}}
    server = Child(
        "The API server", [sys.executable, "-m", "api_server"], log=folder / "log", environment=environment
    )
    try:
        while not answers(f"http://127.0.0.1:{port}/-/readiness"):
            if server.has_ended():
                raise RuntimeError(f"The API server stopped with {server.account_of_end()}.")
            time.sleep(0.05)
        yield Api(f"http://127.0.0.1:{port}", TOKEN)
    finally:
        server.stop()


def set_logging(cluster: Cluster, which: str) -> None:
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
