"""A restored instance answers as the one that was backed up."""

import asyncio
import contextlib
import gzip
import io
import tarfile
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import pytest

from api_server.audit import chain
from api_server.audit.chain import verify as verify_chain
from api_server.state import migrate, secrets, sweep
from api_server.state.objects import OBJECTS
from forgelet.backup.backing_up import BackedUp, back_up
from forgelet.backup.contents import Places
from tests.support.database_roles import as_role
from tests.support.forge import ROOT_TOKEN, Forge, running_forge
from tests.support.furnished import Furnished, furnish
from tests.support.route_table import ROUTES, name_of

from .backups import NOW, PASSPHRASE, backed_up, quiet, restored

#: Both instances say that they are there.
URL = "http://forge.example"
#: Answers that differ between two readings, since they were read.
MOVING = {"last_used_at", "last_activity_at", "current_sign_in_at", "contacted_at"}
#: The newest, without which the schema is an older one.
NEWEST = {"0153_search"}


@attrs.frozen
class Kept:
    """A backup, and what the instance whose it is has answered."""

    text: bytes
    made: BackedUp
    furnished: Furnished
    answers: dict[str, Any]
    secret_key: str


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
        await chain.keep_present_head(forge.database, forge.server.app[OBJECTS])
        answers = await answers_of(furnished)
        text, made = await backed_up(forge)
    return Kept(text, made, furnished, answers, (folder / secrets.KEY_FILE).read_text())


@contextlib.asynccontextmanager
async def again(places: Places) -> AsyncIterator[Forge]:
    async with running_forge(places.database_url, places.data_dir, external_url=URL) as forge:
        yield forge


async def test_every_answer_is_the_same(kept: Kept, empty: Places) -> None:
    told = await asyncio.to_thread(restored, empty, kept.text)
    assert (told.projects, told.objects, told.missing) == (kept.made.projects, kept.made.objects, [])
    assert empty.data_dir.stat().st_mode & 0o777 == 0o700
    async with again(empty) as forge:
        base = f"http://127.0.0.1:{forge.settings.port}"
        client = attrs.evolve(kept.furnished.root, session=forge.session, base=base)
        answers = await answers_of(attrs.evolve(kept.furnished, root=client))
        assert {status for status, _ in answers.values()} == {200, 302}
        assert {name: answers[name] for name in answers if answers[name] != kept.answers[name]} == {}
        known = await chain.kept_heads(forge.server.app[OBJECTS])
        assert known
        assert (await verify_chain(forge.database, known)).problem is None
        assert [gone async for gone in sweep.missing(forge.database, forge.server.app[OBJECTS])] == []


def test_no_secret_is_in_clear(kept: Kept) -> None:
    contents = []
    with tarfile.open(fileobj=io.BytesIO(kept.text)) as tar:
        for entry in tar:
            found = tar.extractfile(entry)
            content = found.read() if found is not None else b""
            contents.append(gzip.decompress(content) if entry.name.endswith(".gz") else content)
    together = b"\n".join(contents)
    assert kept.made.rows > 50
    for secret in (kept.secret_key, ROOT_TOKEN, kept.furnished.job_token, PASSPHRASE):
        assert secret.encode() not in together


async def test_an_older_schema_is_brought_up_to_date(empty: Places, tmp_path: Any) -> None:
    """Of a version without the newest migrations, whose functions are not there."""
    old = Places(empty.database_url.replace("/restored", "/older_restored"), tmp_path / "older")
    name = old.database_url.partition("?")[0].rpartition("/")[2]
    with as_role(empty.database_url) as owner:
        owner.execute(f"CREATE DATABASE {name}")
    migrations = migrate.known_migrations() - NEWEST
    stream = io.BytesIO()

    def make_and_back_up() -> None:
        migrate.make_older_schema(old.database_url, migrations)
        secrets.ensure_key(old.database_url, old.data_dir)
        back_up(old, PASSPHRASE, stream, NOW, quiet)

    await asyncio.to_thread(make_and_back_up)
    with as_role(empty.database_url) as owner:
        owner.execute(f"DROP DATABASE {name} WITH (FORCE)")
    told = await asyncio.to_thread(restored, empty, stream.getvalue())
    assert told.migrations == sorted(NEWEST)
    async with again(empty) as forge:
        client = attrs.evolve(forge.root, base=f"http://127.0.0.1:{forge.settings.port}")
        assert (await client.get("/user")).body["username"] == "root"
