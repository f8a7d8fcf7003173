"""The API servers and edges: their ports and settings."""

import os
import sys
from collections.abc import Mapping, Sequence

import attrs

from forgelet.local.data_directory import DataDirectory
from scripts.abuse.ground import CHECKOUT
from scripts.faults import disks
from scripts.faults.databases import Databases
from scripts.faults.processes import KeptProgram
from scripts.faults.shapes import Shape
from tests.support.ports import free_port

#: After which a job whose runner never came back goes to another; a minute is long to wait for at the end of a run.
HAND_OUT_SECONDS = 15


@attrs.frozen
class Ports:
    """Of loopback. Everybody comes to the servers by the balancer, the edges too."""

    balancer: int
    apis: Sequence[int]
    edges: Sequence[int]

    @classmethod
    def free(cls, shape: Shape) -> "Ports":
        return cls(
            free_port(), [free_port() for _ in shape.api_names], [free_port() for _ in shape.edge_names]
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.balancer}"


def of(
    data: DataDirectory, shape: Shape, ports: Ports, databases: Databases
) -> tuple[list[KeptProgram], list[KeptProgram]]:
    """The servers and the edges, none of which has been started."""
    purging = data.file_with_secret("edge-purge-token")
    api = {
        "DATA_DIR": str(data.part("api")),
        **databases.settings,
        "ROOT_TOKEN_FILE": data.file_with_secret("root-token", prefix="flpat-"),
        "EXTERNAL_URL": ports.url,
        "EDGE_URLS": ",".join(f"http://127.0.0.1:{port}" for port in ports.edges),
        "EDGE_PURGE_TOKEN_FILE": purging,
        "ALLOW_LOCAL_REQUESTS": "true",
        "DISK_RESERVE": str(disks.RESERVE),
        # The load is one user's, from one address, and nobody's patience is tried.
        **dict.fromkeys(("PIPELINE_RATE_LIMIT", "JOBS_RATE_LIMIT", "RAW_RATE_LIMIT", "VARIABLES_LIMIT"), "0"),
        "RUNNER_POLL_TIMEOUT": "2",
        "HAND_OUT_TIMEOUT": str(HAND_OUT_SECONDS),
    }
    edge = {
        "ORIGIN": ports.url,
        "STORAGE_TOKEN_FILE": data.file_with_secret("edge-storage-token"),
        "PURGE_TOKEN_FILE": purging,
        "DISK_BYTES": str(disks.EDGE_BYTES),
        "MEMORY_OBJECT_BYTES": str(disks.EDGE_MEMORY_OBJECT_BYTES),
    }
    servers = [
        _program(data, name, "api_server", "API", port, api)
        for name, port in zip(shape.api_names, ports.apis, strict=True)
    ]
    edges = [
        _program(data, name, "storage_edge", "EDGE", port, {"DATA_DIR": str(data.part(name)), **edge})
        for name, port in zip(shape.edge_names, ports.edges, strict=True)
    ]
    return servers, edges


def _program(
    data: DataDirectory, name: str, module: str, prefix: str, port: int, settings: Mapping[str, str]
) -> KeptProgram:
    given = {"PORT": str(port), "LOG_FORMAT": "json", **settings}
    others = {name: value for name, value in os.environ.items() if not name.startswith("FORGELET_")}
    return KeptProgram(
        name,
        data.part("logs"),
        [sys.executable, "-P", "-m", module],
        environment={
            **others,
            "PYTHONPATH": str(CHECKOUT),
            **{f"FORGELET_{prefix}_{setting}": value for setting, value in given.items()},
        },
        cwd=data.path,
    )
