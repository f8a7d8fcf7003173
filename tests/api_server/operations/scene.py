"""A service whose whole environment fails: a mirror's target, a receiver, the mail server, an edge, the store; and no
runner is there."""

import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, MutableMapping
from pathlib import Path
from typing import Any

import attrs

from api_server.operations.failing import Failure, failing
from api_server.outbound.mail import Mail, queue_mail
from api_server.state.queue import enqueue
from tests.support.ci import ci_project
from tests.support.forge import Forge
from tests.support.logs import lines_of_this_test
from tests.support.merge_requests import new_project, open_merge_request
from tests.support.ports import free_port

SECRET = "s3cr3t-of-the-target"
PURGE_TOKEN = "purge-token-of-the-tests"


@attrs.frozen
class Scene:
    """The server, a port on which nothing listens, the store's folder, and the log lines."""

    forge: Forge
    nobody: int
    store: Path
    lines: list[MutableMapping[str, Any]]

    async def failing(self, kind: str | None = None) -> list[Failure]:
        """Return the current failures, in the order in which operators see them."""
        database = self.forge.database
        return [one for one in await failing(database, database.now) if kind in (None, one.kind)]

    def warnings(self, event: str) -> list[MutableMapping[str, Any]]:
        return [line for line in self.lines if line["event"] == event and line["log_level"] == "warning"]

    async def break_all(self) -> None:
        """Let an entity of each kind fail from now on, in the project `broken` and around it."""
        alice = await self.forge.user("alice")
        project = await new_project(self.forge, alice)
        nowhere = f"http://127.0.0.1:{self.nobody}"
        check = {"name": "QA", "external_url": f"{nowhere}/hook?token={SECRET}"}
        assert (
            await alice.api.post(f"/projects/{project['id']}/external_status_checks", check)
        ).status == 201
        mirror = {"url": f"http://alice:{SECRET}@127.0.0.1:{self.nobody}/x.git", "enabled": True}
        made = await alice.api.post(f"/projects/{project['id']}/remote_mirrors", mirror)
        assert made.status == 201, made
        await open_merge_request(alice, project)
        await (await ci_project(self.forge)).pipeline()
        await self.send_mail()
        shutil.rmtree(self.store)

    async def send_mail(self) -> None:
        async with self.forge.database.transaction() as transaction:
            await queue_mail(
                transaction, Mail(id="1@test", to="bob@example.org", subject="Hello", paragraphs=["Hello."])
            )

    async def queue_unknown(self, count: int) -> None:
        """Queue tasks with unknown names, which fail permanently."""
        async with self.forge.database.transaction() as transaction:
            for _ in range(count):
                await enqueue(transaction, "of_another_version")


@contextlib.asynccontextmanager
async def failing_scene(new_forge: Callable[..., Any], folder: Path) -> AsyncIterator[Scene]:
    """Run a server whose mail server and edge do not answer; everything else works until `break_all`."""
    nobody, store = free_port(), folder / "store"
    with lines_of_this_test() as lines:
        async with new_forge(
            work=True,
            allow_local_requests=True,
            data_dir=folder / "data",
            object_store_url=f"file://{store}",
            smtp_url=f"smtp://forge:{SECRET}@127.0.0.1:{nobody}",
            edge_urls=[f"http://127.0.0.1:{nobody}"],
            edge_purge_token=PURGE_TOKEN,
        ) as forge:
            yield Scene(forge, nobody, store, lines)
