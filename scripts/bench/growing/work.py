"""What is done beside the lists: hand-outs, the removal of projects, vacuum."""

import http.client
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from api_server.state.secrets import digest
from forgelet.local.embedded_postgres import Cluster
from scripts.bench.growing.filling import superuser
from scripts.bench.scene.api_process import HEADERS, Running

HANDED_OUT = 30
TOKEN = "glrt-growth"
#: The tables that are vacuumed, and how many of their rows are made dead before.
VACUUMED = ("jobs", "audit_events")
DEAD = 2_000
UPDATE_JOBS = "UPDATE jobs SET exit_code = 1 WHERE id IN (SELECT id FROM jobs ORDER BY id LIMIT %s)"
SIZES = """
    SELECT relation, pg_size_pretty(bytes) FROM (
        SELECT 'jobs' AS relation, pg_total_relation_size('jobs') AS bytes
        UNION ALL SELECT 'pipelines', pg_total_relation_size('pipelines')
        UNION ALL SELECT 'audit_chain', pg_total_relation_size('audit_chain')
        UNION ALL SELECT 'audit_events', sum(pg_total_relation_size(inhrelid)) FROM pg_inherits
            WHERE inhparent = 'audit_events'::regclass
        UNION ALL SELECT 'the database', pg_database_size(current_database())
    ) sizes
"""


def give_token(cluster: Cluster, ids: Mapping[str, int]) -> None:
    """To the first runner."""
    with superuser(cluster) as cursor:
        cursor.execute(
            "UPDATE runners SET token_digest = %s WHERE id = %s", [digest(TOKEN), ids["runner_id"]]
        )


def hand_out(server: Running) -> float:
    """Milliseconds of an answer with a job, the median of many."""
    taken = []
    for _ in range(HANDED_OUT):
        begun = time.perf_counter()
        status, said = request(server, "POST", "jobs/request", {"token": TOKEN, "system_id": "s_1"})
        taken.append(time.perf_counter() - begun)
        if status != 201:
            raise RuntimeError(f"A hand-out was answered {status}: {said[:200]!r}")
    return sorted(taken)[len(taken) // 2] * 1000


def removed(cluster: Cluster, server: Running, project_id: int) -> tuple[float, float]:
    """Milliseconds until the request is answered, and until nothing of the project is left in the database."""
    begun = time.perf_counter()
    status, said = request(server, "DELETE", f"projects/{project_id}")
    answered = time.perf_counter() - begun
    if status != 202:
        raise RuntimeError(f"A removal was answered {status} after {answered:.0f} s: {said[:200]!r}")
    with superuser(cluster) as cursor:
        while True:
            cursor.execute(
                "SELECT EXISTS (SELECT FROM jobs WHERE project_id = %s AND kind = 'build')", [project_id]
            )
            if not cursor.fetchone()[0]:
                return answered * 1000, (time.perf_counter() - begun) * 1000
            time.sleep(0.05)


def vacuumed(cluster: Cluster) -> dict[str, float]:
    """Milliseconds of each, after a few jobs were written anew; with the tables as warm as they are."""
    found = {}
    with superuser(cluster) as cursor:
        cursor.execute("VACUUM jobs")  # what removals have left
        cursor.execute(UPDATE_JOBS, [DEAD])
        for table in VACUUMED:
            for what in ("VACUUM", "ANALYZE"):
                begun = time.perf_counter()
                cursor.execute(f"{what} {table}")
                found[f"{what} {table}"] = (time.perf_counter() - begun) * 1000
    return found


def sizes(cluster: Cluster) -> dict[str, str]:
    """Of tables with their indexes, in words."""
    with superuser(cluster) as cursor:
        cursor.execute(SIZES)
        return dict(cursor.fetchall())


def request(server: Running, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    """The answer's status and body."""
    place = urlsplit(server.api.base_url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=900)
    try:
        text = None if body is None else json.dumps(body)
        headers = {**HEADERS, "Content-Type": "application/json"}
        connection.request(method, f"/api/v4/{path}", body=text, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
