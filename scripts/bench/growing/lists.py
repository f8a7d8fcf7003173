"""Every list of jobs, pipelines and events: first pages, pages from the middle by keyset, counts, rare rows."""

import base64
import http.client
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from forgelet.local.embedded_postgres import Cluster
from scripts.bench.growing.filling import superuser
from scripts.bench.scene.api_process import HEADERS, Running

WARM = 6
TIMES = 20

#: What follows /api/v4/, by its name; {jobs}, {pipelines} and {events} are keyset cursors in the middle of the list.
LISTS = {
    "jobs of a project": "projects/{busy_id}/jobs?pagination=keyset",
    "jobs of a project, deep": "projects/{busy_id}/jobs?pagination=keyset&cursor={jobs}",
    "jobs of a project, counted": "projects/{busy_id}/jobs",
    "jobs of a project, page 2,000": "projects/{busy_id}/jobs?page=2000",
    "jobs of a project, running": "projects/{busy_id}/jobs?scope[]=running",
    "jobs of a project, skipped": "projects/{busy_id}/jobs?scope[]=skipped",
    "jobs of a project, two states": "projects/{busy_id}/jobs?scope[]=failed&scope[]=canceled",
    "jobs of a small project": "projects/{small_id}/jobs",
    "jobs of a pipeline": "projects/{busy_id}/pipelines/{pipeline_id}/jobs",
    "jobs of a runner": "runners/{runner_id}/jobs",
    "pipelines": "projects/{busy_id}/pipelines?pagination=keyset",
    "pipelines, deep": "projects/{busy_id}/pipelines?pagination=keyset&cursor={pipelines}",
    "pipelines, counted": "projects/{busy_id}/pipelines",
    "pipelines, running": "projects/{busy_id}/pipelines?status=running",
    "pipelines, of a ref": "projects/{busy_id}/pipelines?ref=topic-10",
    "pipelines, of no ref there is": "projects/{busy_id}/pipelines?ref=none",
    "pipelines, of a source": "projects/{busy_id}/pipelines?source=schedule",
    "pipelines, by when updated": "projects/{busy_id}/pipelines?order_by=updated_at",
    "pipelines, finished scope": "projects/{busy_id}/pipelines?scope=finished",
    "pipelines, branches scope": "projects/{busy_id}/pipelines?scope=branches",
    "latest pipeline": "projects/{busy_id}/pipelines/latest?ref=main",
    "events": "audit_events?pagination=keyset",
    "events, deep": "audit_events?pagination=keyset&cursor={events}",
    "events, counted": "audit_events",
    "events, before a moment": "audit_events?created_before={middle}",
    "events, of an entity": "audit_events?entity_type=Project&entity_id=7000000",
    "events, of no entity there is": "audit_events?entity_type=Project&entity_id=6999999",
    "events of a group": "groups/{group_id}/audit_events",
    "events of a project": "projects/{busy_id}/audit_events",
    "events of a project, deep": "projects/{busy_id}/audit_events?pagination=keyset&cursor={events}",
}
MIDDLE = """
    SELECT (SELECT id FROM jobs WHERE project_id = %(busy_id)s ORDER BY id OFFSET %(jobs)s LIMIT 1) AS jobs,
        (SELECT id FROM pipelines WHERE project_id = %(busy_id)s ORDER BY id OFFSET %(pipelines)s LIMIT 1) AS pipelines,
        (SELECT max(id) / 2 FROM audit_events) AS events,
        (SELECT max(id) FROM pipelines WHERE project_id = %(busy_id)s) AS pipeline_id,
        to_char(now() - interval '180 days', 'YYYY-MM-DD') AS middle
"""


def paths(cluster: Cluster, ids: Mapping[str, int], rows: int) -> dict[str, str]:
    """Of each list, by its name."""
    with superuser(cluster) as cursor:
        cursor.execute(MIDDLE, {**ids, "jobs": rows // 20, "pipelines": rows // 200})
        names = [column.name for column in cursor.description]
        found: dict[str, Any] = dict(zip(names, cursor.fetchone(), strict=True))
    for name in ("jobs", "pipelines", "events"):
        found[name] = base64.urlsafe_b64encode(b'{"id":"%d","_kd":"n"}' % found[name]).decode()
    return {name: path.format(**ids, **found) for name, path in LISTS.items()}


def milliseconds(server: Running, path: str) -> float:
    """Of an answer, one request after the other on one connection: the median of many."""
    place = urlsplit(server.api.base_url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=600)
    taken = []
    try:
        for number in range(WARM + TIMES):
            begun = time.perf_counter()
            connection.request("GET", f"/api/v4/{path}", headers=HEADERS)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{path} was answered {answer.status}: {said[:200]!r}")
            if number >= WARM:
                taken.append(time.perf_counter() - begun)
    finally:
        connection.close()
    return sorted(taken)[len(taken) // 2] * 1000
