"""A list of the API, as a share of what PostgreSQL alone reaches with the list's own prepared statement."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from forgelet.local.embedded_postgres import temporary
from scripts.bench.api_process import running, share_of_postgresql
from scripts.bench.rows import Row

PROJECTS = 60


def measure() -> Iterator[Row]:
    """GET /projects, 20 rows a page."""
    with temporary() as cluster, tempfile.TemporaryDirectory() as folder:
        with running(cluster, Path(folder)) as api:
            for number in range(PROJECTS):
                api.post("projects", {"name": f"project-{number}", "visibility": "public"})
        yield share_of_postgresql(
            cluster, Path(folder), "GET /projects, 20 rows", "projects?per_page=20", 0.7
        )
