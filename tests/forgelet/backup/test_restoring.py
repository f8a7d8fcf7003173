"""A restored instance answers as the one that was backed up; and what may not be restored leaves nothing behind."""

import asyncio
import contextlib
import datetime
import io
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from api_server.audit import heads
from api_server.audit.chain import verify as verify_chain
from api_server.state import sweep
from api_server.state.objects import OBJECTS
from forgelet.backup.backing_up import BackedUp, back_up
from forgelet.backup.places import Places
from forgelet.backup.restoring import Restored, check_is_empty, restore
from forgelet.local.embedded_postgres import Cluster
from tests.support.database_roles import as_role
from tests.support.forge import Forge, new_name, running_forge
from tests.support.furnished import Furnished, furnish
from tests.support.route_table import ROUTES, name_of

PASSPHRASE = "correct horse battery staple"
#: Both instances say that they are there.
URL = "http://forge.example"
NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
#: Answers that differ between two readings: the request's own token was used, time has passed.
MOVING = {"last_used_at", "last_activity_at", "current_sign_in_at", "contacted_at", "expires_in"}


def quiet(*_: object) -> None:
    return


@attrs.frozen
class Kept:
    """A backup, and what the instance answered whose it is."""

    text: bytes
    made: BackedUp
    furnished: Furnished
    answers: dict[str, Any]
    heads: int


def places_of(forge: Forge) -> Places:
    return Places(forge.settings.database_url, forge.settings.data_dir)


async def backed_up(forge: Forge) -> tuple[bytes, BackedUp]:
    stream = io.BytesIO()
    made = await asyncio.to_thread(back_up, places_of(forge), PASSPHRASE, stream, NOW, quiet)
    return stream.getvalue(), made


async def answers_of(furnished: Furnished) -> dict[str, Any]:
    """Of all routes that read, without what moves by itself."""
    found = {}
    for route in ROUTES:
        if route.method == "GET":
            answer = await furnished.read(route)
            found[name_of(route)] = (answer.status, at_rest(answer.body))
    return found


def at_rest(body: Any) -> Any:
    if isinstance(body, dict):
        return {name: at_rest(value) for name, value in body.items() if name not in MOVING}
    return [at_rest(one) for one in body] if isinstance(body, list) else body


@pytest.fixture(scope="module")
async def kept(new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Kept:
    folder = tmp_path_factory.mktemp("kept")
    async with running_forge(new_database(), folder, external_url=URL) as forge:
        here = attrs.evolve(forge, settings=attrs.evolve(forge.settings, external_url=""))
        furnished = await furnish(here)
        await heads.keep(forge.database, forge.server.app[OBJECTS])
        await furnished.read(next(route for route in ROUTES if route.path == "/user"))
        answers = await answers_of(furnished)
        text, made = await backed_up(forge)
    return Kept(text, made, furnished, answers, len(answers))


@pytest.fixture
def empty_database(postgres: Cluster) -> Iterator[str]:
    name = new_name("restored").replace("-", "_")
    with as_role(postgres.url()) as owner:
        owner.execute(f"CREATE DATABASE {name}")
    yield postgres.url(name)
    with as_role(postgres.url()) as owner:
        owner.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def empty(empty_database: str, tmp_path: Path) -> Places:
    return Places(empty_database, tmp_path / "data")


def restored(places: Places, text: bytes, passphrase: str = PASSPHRASE) -> Restored:
    check_is_empty(places)
    return restore(places, passphrase, io.BytesIO(text), quiet)


@contextlib.asynccontextmanager
async def again(places: Places) -> AsyncIterator[Forge]:
    async with running_forge(places.database_url, places.data_dir, external_url=URL) as forge:
        yield forge


async def test_every_answer_is_the_same(kept: Kept, empty: Places) -> None:
    told = await asyncio.to_thread(restored, empty, kept.text)
    assert (told.projects, told.objects, told.missing) == (kept.made.projects, kept.made.objects, [])
    async with again(empty) as forge:
        client = attrs.evolve(
            kept.furnished.root, session=forge.session, base=f"http://127.0.0.1:{forge.settings.port}"
        )
        answers = await answers_of(attrs.evolve(kept.furnished, root=client))
        assert {name: answers[name] for name in answers if answers[name] != kept.answers[name]} == {}
        verdict = await verify_chain(forge.database, await heads.kept(forge.server.app[OBJECTS]))
        assert verdict.problem is None
        assert [gone async for gone in sweep.missing(forge.database, forge.server.app[OBJECTS])] == []
