"""Contents on which users and their data rely do not change by accident: routes, the API's description, the database's
schema.

After an intended change, `FREEZE=1 scripts/test tests/api_server/test_frozen.py` writes the files again.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson
import psycopg2
from aiohttp import web

from api_server.description.document import document
from api_server.state.migrate import _file, known_migrations
from tests.support.forge import Forge
from tests.support.route_table import ROUTES

FROZEN = Path(__file__).with_name("frozen")


def compare(name: str, lines: Iterable[str]) -> None:
    text = "".join(f"{line}\n" for line in sorted(set(lines)))
    if os.environ.get("FREEZE"):
        (FROZEN / name).write_text(text)
    assert (FROZEN / name).read_text() == text


def test_routes(forge: Forge) -> None:
    """Every method and path that the server answers, including pages and git."""
    compare("routes.txt", _routes(forge.server.app))


def _routes(app: web.Application) -> Iterator[str]:
    for route in app.router.routes():
        if route.resource is not None:
            yield f"{route.method} {route.resource.canonical}"


def test_description() -> None:
    """One line for each operation and each schema, with a digest of its description."""
    described = document(ROUTES)
    parts = {
        f"{method.upper()} {path}": operation
        for path, item in described["paths"].items()
        for method, operation in item.items()
    } | {
        f"{kind} {name}": part
        for kind, all_ in described["components"].items()
        for name, part in all_.items()
    }
    compare("description.txt", (f"{name} {_digest(part)}" for name, part in parts.items()))


def _digest(part: object) -> str:
    return hashlib.sha256(orjson.dumps(part, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


#: Partitions of the months around today.
MONTH = re.compile(r"_20\d\d_\d\d")
#: A line for each column, constraint, index, trigger, view and function; longer ones have a digest.
SCHEMA = """
    SELECT format('%s.%s %s%s%s', c.oid::regclass, a.attname, format_type(a.atttypid, a.atttypmod),
        CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END,
        coalesce(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), '')) AS line
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace
    UNION ALL
    SELECT format('%s: %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND conrelid <> 0 AND contype <> 'n'
    UNION ALL
    SELECT pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
    WHERE relnamespace = 'public'::regnamespace
    UNION ALL
    SELECT pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
    WHERE NOT tgisinternal AND relnamespace = 'public'::regnamespace
    UNION ALL
    SELECT format('VIEW %s %s', viewname, md5(definition)) FROM pg_views WHERE schemaname = 'public'
    UNION ALL
    SELECT format('FUNCTION %s %s', p.oid::regprocedure, md5(pg_get_functiondef(p.oid)))
    FROM pg_proc p WHERE pronamespace = 'public'::regnamespace AND prokind = 'f'
"""


def test_migrations() -> None:
    """Databases do not run a migration again: files are added, and existing ones do not change."""
    contents = {name: _file(f"migrations/{name}.sql").read_bytes() for name in known_migrations()}
    compare(
        "migrations.txt", (f"{name} {hashlib.sha256(text).hexdigest()}" for name, text in contents.items())
    )


def test_schema(database_of_module: str) -> None:
    with (
        contextlib.closing(psycopg2.connect(database_of_module)) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(SCHEMA)
        lines = [line for (line,) in cursor.fetchall()]
    compare("schema.txt", (line for line in lines if not MONTH.search(line)))
