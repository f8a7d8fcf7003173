"""A server for tests: how long it takes to a clean state, beside the usual way to a clean database."""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from urllib.parse import urlsplit

import psycopg2

from api_server.state.migrate import migrate
from forgelet.local.embedded_postgres import SUPERUSER, temporary
from forgelet.testing import starting
from forgelet.testing.server import Forgelet
from scripts.bench.harness.runs import OURS, Bench, Row, Sample, Sides

COPY = "CREATE DATABASE ... TEMPLATE, and DROP"
MILLISECONDS = 20.0
_CONFIG = "\n".join(f"job{number}: {{script: 'true'}}" for number in range(5))


@contextlib.contextmanager
def _server(_: Bench) -> Iterator[Forgelet]:
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as caches,
        starting.running(settings={"XDG_CACHE_HOME": caches}) as forgelet,
    ):
        yield forgelet


@contextlib.contextmanager
def _worn_server(bench: Bench) -> Iterator[Forgelet]:
    """After many small resets, so that what is left of them would show."""
    forgelet = bench.use(_server)
    for _ in range(bench.size.resets):
        forgelet.api.post("projects", {"path": "project", "initialize_with_readme": True})
        forgelet.reset()
    yield forgelet


@contextlib.contextmanager
def _database(_: Bench) -> Iterator[tuple[str, str]]:
    """The URL of a cluster, and a migrated database in it."""
    with temporary() as cluster:
        migrate(cluster.url())
        yield cluster.url("postgres", SUPERUSER), urlsplit(cluster.url()).path.removeprefix("/")


def _fresh(bench: Bench) -> Sides:
    forgelet, database = bench.use(_server), bench.use(_database)
    return {OURS: lambda _: _reset(forgelet), COPY: lambda _: _copied(*database)}


def _worn(bench: Bench) -> Sides:
    forgelet = bench.use(_worn_server)
    return {OURS: lambda _: _reset(forgelet)}


def _reset(forgelet: Forgelet) -> Sample:
    """Milliseconds that the client waits, the edge's share included, after 5 users, 3 projects, 2 repositories and a
    pipeline with 5 jobs were made."""
    for number in range(5):
        name = f"user-{number}"
        user = {"username": name, "name": name, "email": f"{name}@example.org"}
        forgelet.api.post("users", user | {"force_random_password": True, "skip_confirmation": True})
    for number in range(3):
        project = {"path": f"project-{number}", "initialize_with_readme": number < 2}
        made = forgelet.api.post("projects", project)
        if number == 0:
            action = {"action": "create", "file_path": ".gitlab-ci.yml", "content": _CONFIG}
            commit = {"branch": "main", "commit_message": "CI", "actions": [action]}
            forgelet.api.post(f"projects/{made['id']}/repository/commits", commit)
    return _timed(forgelet.reset)


def _copied(url: str, template: str) -> Sample:
    """Milliseconds that it takes to replace a migrated database by a copy of another one, as quick as PostgreSQL is."""
    with contextlib.closing(psycopg2.connect(url)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:

            def copy() -> None:
                cursor.execute(f"CREATE DATABASE copy TEMPLATE {template}")
                cursor.execute("DROP DATABASE copy WITH (FORCE)")

            return _timed(copy)


def _timed(work: object) -> Sample:
    assert callable(work)
    begun = time.perf_counter()
    work()
    return Sample((time.perf_counter() - begun) * 1000)


_row = partial(Row, unit="ms", most=MILLISECONDS, less_is_better=True)
ROWS = (
    _row("reset", "a reset of a server for tests", _fresh, aims={COPY: 1.0}),
    _row("reset-worn", "the same after 400 others", _worn),
)
