"""Writes api_server/description/schemas/entities.json: `python -m scripts.schemas`."""

import contextlib
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import orjson
import psycopg2

from api_server.state.migrate import migrate
from forgelet.local import embedded_postgres
from scripts.schemas.entities import entities

PLACE = Path(str(resources.files("api_server.description.schemas"))) / "entities.json"


def main() -> None:
    with embedded_postgres.temporary() as cluster:
        migrate(cluster.url())
        with contextlib.closing(psycopg2.connect(cluster.url())) as connection, connection.cursor() as cursor:
            PLACE.write_bytes(written(cursor))
    sys.stdout.write(f"{PLACE} is written.\n")


def written(cursor: Any) -> bytes:
    """The file's bytes."""
    return orjson.dumps(entities(cursor), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


if __name__ == "__main__":
    main()
