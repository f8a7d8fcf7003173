"""Every read of one resource in the API's contract, and `/user`, against a bare handler with the same bytes."""

import urllib.request
from functools import partial

from scripts.bench.harness.measuring import http_requests
from scripts.bench.harness.runs import OURS, Bench, Measure, NotMeasured, Row, Sides
from scripts.bench.peer import servers
from scripts.bench.rows.lists import FASTAPI, PRISM, ours, peer
from scripts.bench.scene.service import HEADERS, Service, service

BARE = "a bare aiohttp handler"

#: Endpoint of the contract, name, what follows /api/v4/, and the least share of the bare handler, where one is wanted.
READS = (
    (None, "user", "user", 0.3),
    (4, "job-of-token", "job", None),
    (5, "allowed-agents", "job/allowed_agents", None),
    (6, "one-job", "projects/{project_id}/jobs/{job_id}", 0.3),
    (7, "trace", "projects/{ci_project_id}/jobs/{traced_id}/trace", None),
    (20, "one-mirror", "projects/{project_id}/remote_mirrors/{mirror_id}", None),
    (26, "one-event", "audit_events/{project_event_id}", None),
    (28, "one-group-event", "groups/{group_id}/audit_events/{group_event_id}", None),
    (30, "one-project-event", "projects/{project_id}/audit_events/{project_event_id}", None),
)
WITH_JOB_TOKEN = ("job-of-token", "allowed-agents")
AGAINST_FASTAPI = ("one-job",)
AGAINST_PRISM = ("user", "one-job")


def _sides(name: str, path: str, bench: Bench) -> Sides:
    served = bench.use(service)
    path = path.format(**served.ids, traced_id=served.traced["id"])
    headers = {"JOB-TOKEN": served.traced["token"]} if name in WITH_JOB_TOKEN else HEADERS
    sides: dict[str, Measure | NotMeasured] = {
        OURS: ours(served, path, headers),
        BARE: _bare(bench, served, name, path, headers),
    }
    if name in AGAINST_FASTAPI:
        sides[FASTAPI] = peer(bench, servers.fastapi, path)
    if name in AGAINST_PRISM:
        sides[PRISM] = peer(bench, servers.prism, path, below="")
    return sides


def _bare(
    bench: Bench, served: Service, name: str, path: str, headers: dict[str, str]
) -> Measure | NotMeasured:
    try:
        handler = bench.use(servers.bare)
    except NotMeasured as reason:
        return reason
    request = urllib.request.Request(f"{served.api.base_url}/api/v4/{path}", headers=headers)
    with urllib.request.urlopen(request) as answer:
        (handler.folder / name).write_bytes(answer.read())
    return lambda seconds: http_requests(f"{handler.url}/{name}", seconds, headers, pids=handler.pids)


def _row(endpoint: int | None, name: str, path: str, aim: float | None) -> Row:
    number = f"endpoint {endpoint}: " if endpoint else ""
    shown = path.replace("{", ":").replace("}", "").replace("ci_project_id", "id").replace("project_id", "id")
    aims = {} if aim is None else {BARE: aim}
    return Row(
        name, f"{number}GET /{shown.replace('group_id', 'id')}", partial(_sides, name, path), aims=aims
    )


ROWS = tuple(_row(*read) for read in READS)
