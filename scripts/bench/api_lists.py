"""A list of the API, as a share of what PostgreSQL alone reaches with the list's own prepared statement."""

import contextlib
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg2

from scripts.bench.load import http_requests, statements
from scripts.bench.rows import Row, by_turns
from scripts.local.api_client import Api, answers
from scripts.local.embedded_postgres import DATABASE, ROLE, SUPERUSER, Cluster, temporary
from scripts.local.processes import Child

PROJECTS = 60
ROUND_SECONDS = 4
POOL = 10
TOKEN = "flpat-benchmark-token"  # of a database that lives as long as the measurement
PATH = "projects?per_page=20"


def measure() -> Iterator[Row]:
    """GET /projects, 20 rows a page."""
    with temporary() as cluster, tempfile.TemporaryDirectory() as folder:
        with _server(cluster, Path(folder)) as api:
            for number in range(PROJECTS):
                api.post("projects", {"name": f"project-{number}", "visibility": "public"})
        _set_logging(cluster, "all")
        with _server(cluster, Path(folder)) as api:
            api.get(PATH)
        _set_logging(cluster, "none")
        script = prepared_script(cluster.log.read_text())
        with _server(cluster, Path(folder)) as api:
            ours, theirs = by_turns(
                lambda: http_requests(
                    f"{api.base_url}/api/v4/{PATH}", {"PRIVATE-TOKEN": TOKEN}, ROUND_SECONDS
                ),
                lambda: statements(script, _connection(cluster), ROUND_SECONDS, POOL),
            )
        yield Row("GET /projects, 20 rows", ours, theirs, "pgbench with the same prepared statement", 0.7)


def prepared_script(log: str) -> str:
    """A pgbench script out of PostgreSQL's log: the last list that was prepared, once, then its execution."""
    logged = re.findall(r"LOG:  statement: (.*(?:\n\t.*)*)", log)
    executed = [text for text in logged if text.startswith("EXECUTE")]
    prepared = {text.split()[1]: text for text in logged if text.startswith("PREPARE")}
    for execute in reversed(executed):
        name = re.split(r"[ (]", execute)[1]
        if "json_agg(entity" in prepared[name]:
            # pgbench reads one backslash command a line, and takes a statement to its semicolon.
            return f"\\if :prepared\n\\else\n{prepared[name]};\n\\set prepared 1\n\\endif\n{execute};\n"
    raise RuntimeError("The API server has prepared no list.")


@contextlib.contextmanager
def _server(cluster: Cluster, folder: Path) -> Iterator[Api]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "PORT": str(port),
        "DATABASE_URL": cluster.url(),
        "DATA_DIR": str(folder / "data"),
        "ROOT_TOKEN": TOKEN,
        "DATABASE_POOL": str(POOL),
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


def _set_logging(cluster: Cluster, which: str) -> None:
    """Which statements new connections write to PostgreSQL's log."""
    with contextlib.closing(psycopg2.connect(cluster.url(role=SUPERUSER))) as connection:
        connection.autocommit = True
        connection.cursor().execute(f"ALTER DATABASE {DATABASE} SET log_statement = '{which}'")


def _connection(cluster: Cluster) -> dict[str, str]:
    parts = psycopg2.extensions.parse_dsn(cluster.url())
    return {
        "PGHOST": parts["host"],
        "PGUSER": ROLE,
        "PGPASSWORD": parts["password"],
        "PGDATABASE": DATABASE,
        "PGOPTIONS": "-c forgelet.base_url=http://127.0.0.1:8080 -c jit=off",
    }
