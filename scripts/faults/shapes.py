"""What a service consists of while faults are made on it."""

from collections.abc import Sequence

import attrs

from scripts.faults import object_store
from tests.support import pgbouncer, standbys


@attrs.frozen
class Shape:
    """How many API servers and edges there are, and what else."""

    servers: int = 1
    edges: int = 1
    #: PgBouncer, in transaction mode, between the API servers and PostgreSQL.
    pooled: bool = False
    #: A standby follows PostgreSQL: commits wait for it, and the API servers read from it.
    replicated: bool = False
    #: Objects are in an S3 of moto's.
    s3: bool = False

    @property
    def api_names(self) -> Sequence[str]:
        return _numbered("api", self.servers)

    @property
    def edge_names(self) -> Sequence[str]:
        return _numbered("edge", self.edges)

    def hindrance(self) -> str | None:
        """Why there can be no such service on this machine; None where there can."""
        if self.s3 and not object_store.is_there():
            return f"needs {object_store.PROGRAM} on PATH (pip install 'moto[server]')"
        if self.pooled and not pgbouncer.program():
            return "needs PgBouncer (Debian: apt-get install pgbouncer)"
        if self.replicated and not standbys.program():
            return "needs pg_basebackup (Debian: apt-get install postgresql)"
        return None

    def __str__(self) -> str:
        parts = {
            "PostgreSQL": True,
            "a replica": self.replicated,
            "PgBouncer": self.pooled,
            "S3": self.s3,
            _counted(self.servers, "API server"): True,
            _counted(self.edges, "storage edge"): True,
        }
        return ", ".join(part for part, is_there in parts.items() if is_there)


def _numbered(name: str, count: int) -> Sequence[str]:
    return [name, *(f"{name}-{number}" for number in range(2, count + 1))]


def _counted(count: int, what: str) -> str:
    return f"one {what}" if count == 1 else f"{count} {what}s"


ALONE = Shape()
WITH_S3 = Shape(s3=True)
FLEET = Shape(servers=2, edges=2, pooled=True, replicated=True, s3=True)
