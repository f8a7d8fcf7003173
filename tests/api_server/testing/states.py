"""The whole state of a server, so that two moments can be compared; and short forms of its controls."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import attrs

from api_server.api import ROUTES
from scripts.faults.restores import without_moving
from tests.support.forge import Answer, Forge, Person
from tests.support.furnished import Furnished
from tests.support.route_table import name_of

READS = [route for routes in ROUTES for route in routes.routes if route.method == "GET"]

#: PostgreSQL's list of all tables, except those of the controls.
_TABLES = """
    SELECT oid::regclass::text FROM pg_class
    WHERE relkind IN ('r', 'p', 'm') AND NOT relispartition
        AND relnamespace::regnamespace::text !~ '^(pg_|information_schema|forgelet_testing)'
"""
_SEQUENCES = "SELECT schemaname, sequencename, last_value FROM pg_sequences ORDER BY 1, 2"


@attrs.frozen
class State:
    """All readable answers, all rows of all tables, all files."""

    answers: dict[str, tuple[int, str]]
    tables: dict[str, list[str]]
    files: dict[str, bytes | None]


async def state_of(forge: Forge, furnished: Furnished | None = None) -> State:
    """Return the state of a server without background work; the answers are about the `furnished` entities."""
    connection = await asyncpg.connect(forge.settings.database_url)
    try:
        tables = {
            name: sorted(str(tuple(row)) for row in await connection.fetch(f"SELECT * FROM {name}"))
            for (name,) in await connection.fetch(_TABLES)
        }
        tables["sequences"] = [str(tuple(row)) for row in await connection.fetch(_SEQUENCES)]
    finally:
        await connection.close()
    files = await asyncio.to_thread(_files, forge.settings.data_dir)
    answers = {}
    for route in READS if furnished is not None else []:  # last, because the reading of a log is recorded
        answer = await furnished.read(route)
        answers[name_of(route)] = answer.status, str(without_moving(answer.body))
    return State(answers, tables, files)


def _files(folder: Path) -> dict[str, bytes | None]:
    # discarded files in `testing` are deleted gradually
    kept = [path for path in folder.iterdir() if path.name != "testing"]
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted([*kept, *(below for path in kept for below in path.rglob("*"))])
    }


def differences(one: State, other: State) -> list[str]:
    """Return the differences in a few words."""
    found = []
    for kind in ("answers", "tables", "files"):
        before, after = getattr(one, kind), getattr(other, kind)
        found += [
            f"{kind} {name}: {str(before.get(name))[:300]} became {str(after.get(name))[:300]}"
            for name in sorted({*before, *after})
            if before.get(name, ...) != after.get(name, ...)
        ]
    return found


async def control(forge: Forge, method: str, name: str, body: Any = None, **options: Any) -> Answer:
    """Send a request to `/-/testing`, which needs no token."""
    if body is not None:
        options["json"] = body
    return await forge.anonymous.request(method, f"{forge.base}/-/testing/{name}", **options)


async def reset(forge: Forge) -> None:
    answer = await control(forge, "POST", "reset")
    assert answer.status == 204, answer


async def start_here(forge: Forge) -> None:
    """Store the current state as the one to which a reset returns."""
    answer = await control(forge, "POST", "snapshot", {"as": "start"})
    assert (answer.status, answer.body["id"]) == (201, "start"), answer


@contextlib.asynccontextmanager
async def put_back(forge: Forge) -> AsyncIterator[None]:
    """Run the block from the start state, and return to this state after it, for tests that share a server."""
    await reset(forge)
    try:
        yield
    finally:
        await reset(forge)


@attrs.frozen
class Controls:
    """`/-/testing` of `forge`, restricted to the requests of `whose`; no token is needed."""

    forge: Forge
    whose: Person

    async def ask(self, method: str, path: str, **options: Any) -> Answer:
        return await self.forge.anonymous.request(method, f"{self.forge.base}/-/testing{path}", **options)

    async def requests(self, **filters: object) -> list[dict[str, Any]]:
        """Return the requests of this user."""
        wanted = {"user": self.whose.username} | filters
        query = "&".join(f"{name}={value}" for name, value in wanted.items())
        answer = await self.ask("GET", f"/requests?{query}")
        assert answer.status == 200, answer
        return list(answer.body)

    async def fail(self, **values: Any) -> dict[str, Any]:
        """Order a failure for this user's requests only, unless `user` is another value."""
        answer = await self.ask("POST", "/failures", json={"user": self.whose.username} | values)
        assert answer.status == 201, answer
        return dict(answer.body)

    async def left(self, failure: dict[str, Any]) -> int:
        """Return the number of requests for which a failure still waits."""
        listed = await self.ask("GET", "/failures")
        return next(int(one["left"]) for one in listed.body if one["id"] == failure["id"])
