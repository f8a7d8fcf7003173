"""Two real API processes over one PostgreSQL, with a project whose jobs are listed, handed out and written to."""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs

from forgelet.local.embedded_postgres import Cluster, temporary
from scripts.bench.scene import working_runners
from scripts.bench.scene.api_process import HEADERS, Running, running
from scripts.bench.simulating.clients import request

JSON = {"Content-Type": "application/json"}


@attrs.frozen
class Scene:
    """`idle` and `busy` are the tokens of two runners: one has nothing to do, the other `jobs` of `project`."""

    cluster: Cluster
    servers: tuple[Running, Running]
    project: int
    jobs: int
    requests: dict[str, bytes]
    busy: str
    idle: str

    @property
    def ports(self) -> list[int]:
        return [int(server.api.base_url.rpartition(":")[2]) for server in self.servers]


@contextlib.contextmanager
def scene(jobs: int) -> Iterator[Scene]:
    """With so many jobs that wait."""
    with temporary() as cluster, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        first, second = Path(folder, "first"), Path(folder, "second")
        first.mkdir()
        second.mkdir()
        data = str(first / "data")
        with (
            running(cluster, first, RAW_RATE_LIMIT="0") as one,
            running(cluster, second, DATA_DIR=data, WORK="false", RAW_RATE_LIMIT="0") as other,
        ):
            project, busy = working_runners.project_with_jobs(one.api, jobs, "busy")
            one.api.put(f"projects/{project}", {"visibility": "public"})
            empty = one.api.post("projects", {"name": "empty"})["id"]
            wanted = {"runner_type": "project_type", "project_id": empty}
            idle = one.api.post("user/runners", wanted)["token"]
            yield Scene(cluster, (one, other), project, jobs, _requests(project, idle), busy, idle)


def poll(token: str, last_update: str = "") -> bytes:
    """A runner's request for a job; with `last_update` it waits."""
    body = {"token": token, "system_id": "s_1"} | ({"last_update": last_update} if last_update else {})
    return request("POST", "/api/v4/jobs/request", JSON, json.dumps(body).encode())


def _requests(project: int, idle: str) -> dict[str, bytes]:
    raw = "/root/busy/-/raw/main/.gitlab-ci.yml"
    return {
        "list": request("GET", f"/api/v4/projects/{project}/jobs?pagination=keyset", HEADERS),
        "poll": poll(idle),
        "fetch": request("GET", raw, {}),
    }
