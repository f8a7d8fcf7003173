"""Every list of the API's contract, against FastAPI with the same rows, and two against PostgreSQL alone."""

import base64
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from scripts.bench.harness.measuring import http_requests, statements
from scripts.bench.harness.runs import OURS, Bench, Measure, NotMeasured, Row, Sides
from scripts.bench.peer import servers
from scripts.bench.peer.servers import Peer
from scripts.bench.scene.service import DEEP, HEADERS, POOL, Service, connection, service

FASTAPI, PGBENCH, PRISM, ADMINISTRATOR = "FastAPI", "pgbench", "Prism", "the administrator"
PER_PAGE = 20

#: Endpoint of the contract, name, what follows /api/v4/, and the least share of FastAPI's requests a second.
LISTS = (
    (1, "jobs-keyset", "projects/{project_id}/jobs?pagination=keyset", 8.0),
    (1, "jobs-counted", "projects/{project_id}/jobs", 6.0),
    (2, "pipeline-jobs", "projects/{project_id}/pipelines/{pipeline_id}/jobs", 5.0),
    (3, "bridges", "projects/{project_id}/pipelines/{bridged_id}/bridges", 5.0),
    (12, "status-check-services", "projects/{project_id}/external_status_checks", 5.0),
    (16, "status-checks", "projects/{project_id}/merge_requests/1/status_checks", 5.0),
    (19, "remote-mirrors", "projects/{project_id}/remote_mirrors", 5.0),
    (25, "events-keyset", "audit_events?pagination=keyset", 5.0),
    (25, "events-counted", "audit_events", 5.0),
    (27, "group-events", "groups/{group_id}/audit_events", 5.0),
    (29, "project-events", "projects/{project_id}/audit_events", 5.0),
    (32, "project-invitations", "projects/{project_id}/invitations", 5.0),
    (32, "group-invitations", "groups/{group_id}/invitations", 5.0),
    (None, "projects", "projects?simple=true", 5.0),
)
#: Of these, what the statement itself reaches without a server around it, and the least share of that.
AGAINST_POSTGRESQL = {"jobs-keyset": 0.6, "jobs-counted": 0.6, "projects": 0.6}
#: What authors of clients use today answers with examples; it is shown for one list.
AGAINST_PRISM = ("jobs-keyset",)


def _sides(name: str, path: str, bench: Bench) -> Sides:
    served = bench.use(service)
    path = path.format(**served.ids)
    sides: dict[str, Measure | NotMeasured] = {OURS: ours(served, path)}
    sides[FASTAPI] = peer(bench, servers.fastapi, path)
    if name in AGAINST_POSTGRESQL:
        sides[PGBENCH] = _postgresql(served, path)
    if name in AGAINST_PRISM:
        sides[PRISM] = peer(bench, servers.prism, path, below="")
    return sides


def ours(served: Service, path: str, headers: dict[str, str] | None = None) -> Measure:
    """Our server, with its database's processor time."""
    url = f"{served.api.base_url}/api/v4/{path}"
    return lambda seconds: http_requests(
        url, seconds, HEADERS if headers is None else headers, pids=served.running.pids
    )


def peer(
    bench: Bench, make: Callable[[Bench], AbstractContextManager[Peer]], path: str, *, below: str = "/api/v4"
) -> Measure | NotMeasured:
    """The same request of a peer, or why there is none."""
    try:
        found = bench.use(make)
    except NotMeasured as reason:
        return reason
    return lambda seconds: http_requests(f"{found.url}{below}/{path}", seconds, HEADERS, pids=found.pids)


def _postgresql(served: Service, path: str) -> Measure:
    script = served.statements[path]
    return lambda seconds: statements(script, connection(served.cluster), seconds, POOL)


def _deep(bench: Bench) -> Sides:
    served = bench.use(service)
    path = f"projects/{served.ids['project_id']}/jobs?per_page={PER_PAGE}&pagination=keyset"
    after = max(served.ids["job_id"] - DEEP * PER_PAGE, PER_PAGE)
    cursor = base64.urlsafe_b64encode(b'{"id":"%d","_kd":"n"}' % after).decode()
    return {OURS: ours(served, f"{path}&cursor={cursor}"), "page 1": ours(served, path)}


def _as_member(path: str, bench: Bench) -> Sides:
    served = bench.use(service)
    path = path.format(**served.ids)
    return {OURS: ours(served, path, {"PRIVATE-TOKEN": served.member}), ADMINISTRATOR: ours(served, path)}


def _row(endpoint: int | None, name: str, path: str, aim: float) -> Row:
    number = f"endpoint {endpoint}: " if endpoint else ""
    aims = {FASTAPI: aim}
    if name in AGAINST_POSTGRESQL:
        aims[PGBENCH] = AGAINST_POSTGRESQL[name]
    shown = (
        path.replace("{project_id}", ":id")
        .replace("{group_id}", ":id")
        .format(pipeline_id=":pipeline_id", bridged_id=":pipeline_id")
    )
    return Row(name, f"{number}GET /{shown}", partial(_sides, name, path), aims=aims)


ROWS = (
    *(_row(*listed) for listed in LISTS),
    Row(
        "jobs-of-member",
        "endpoint 1, keyset, asked by a Developer of the group",
        partial(_as_member, "projects/{project_id}/jobs?pagination=keyset"),
        aims={ADMINISTRATOR: 0.9},
    ),
    Row(
        "projects-of-member",
        "GET /projects?simple=true, asked by a Developer of the group",
        partial(_as_member, "projects?simple=true"),
        aims={ADMINISTRATOR: 0.7},
    ),
    Row("jobs-deep", f"endpoint 1, keyset page {DEEP:,}", _deep, aims={"page 1": 1 / 1.2}),
)
