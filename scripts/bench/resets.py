"""A server for tests: how long it takes to a clean state, beside the usual way to a clean database."""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg2

from api_server.state.migrate import migrate
from forgelet.local.embedded_postgres import SUPERUSER, temporary
from forgelet.testing import starting
from forgelet.testing.server import Forgelet
from scripts.bench.rows import Limit, Row

ROUNDS, OTHERS = 20, 400
MILLISECONDS = 20.0
_CONFIG = "\n".join(f"job{number}: {{script: 'true'}}" for number in range(5))


def measure() -> Iterator[Limit | Row]:
    """Each after 5 users, 3 projects, 2 repositories and a pipeline with 5 jobs were made; seen by the client, with the
    edge's share. Then often, so that what is left of earlier ones would show."""
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as caches,
        starting.running(settings={"XDG_CACHE_HOME": caches}) as forgelet,
    ):
        times = [_reset(forgelet) for _ in range(ROUNDS)]
        yield Limit("a reset of a server for tests", statistics.median(times), MILLISECONDS, "ms")
        for _ in range(OTHERS):  # small ones, which would leave the same behind
            forgelet.api.post("projects", {"path": "project", "initialize_with_readme": True})
            forgelet.reset()
        last = [_reset(forgelet) for _ in range(ROUNDS)]
        yield Limit(f"the same after {OTHERS} others", statistics.median(last), MILLISECONDS, "ms")
    ours = statistics.median(times)
    yield Row(
        "resets", 1000 / ours, 1000 / _copy(), "CREATE DATABASE ... TEMPLATE, and DROP", 1.0, "a second"
    )


def _reset(forgelet: Forgelet) -> float:
    """Milliseconds."""
    _make_something(forgelet)
    begun = time.perf_counter()
    forgelet.reset()
    return (time.perf_counter() - begun) * 1000


def _make_something(forgelet: Forgelet) -> None:
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


def _copy() -> float:
    """Milliseconds that it takes to replace a migrated database by a copy of another one, as quick as PostgreSQL is."""
    with temporary() as cluster:
        migrate(cluster.url())
        template = urlsplit(cluster.url()).path.removeprefix("/")
        with contextlib.closing(psycopg2.connect(cluster.url("postgres", SUPERUSER))) as connection:
            connection.autocommit = True
            times = []
            for _ in range(10):
                begun = time.perf_counter()
                with connection.cursor() as cursor:
                    cursor.execute(f"CREATE DATABASE copy TEMPLATE {template}")
                    cursor.execute("DROP DATABASE copy WITH (FORCE)")
                times.append((time.perf_counter() - begun) * 1000)
    return statistics.median(times)
