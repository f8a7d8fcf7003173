"""Mirrors in tests: of a running server, and single runs without a server."""

import asyncio
import socket
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from api_server.code import refs
from api_server.git.received_push import RefUpdate
from api_server.git.repositories import REPOSITORIES
from api_server.mirrors import queries
from api_server.mirrors.configuration import all_branches
from api_server.mirrors.pushing import Outcome, Selection, Target, update_target
from api_server.mirrors.queries import Mirror
from api_server.outbound.client import RESOLVER
from api_server.outbound.policy import Policy
from api_server.web.context import SERVICES
from tests.api_server.mirrors.repositories import BareRepository
from tests.api_server.mirrors.targets import PASSWORD, USER
from tests.support.forge import Forge, Person

Json = dict[str, Any]


#: A target to which nothing is sent, and its form in answers.
URL = "https://example:p%40ss@target.example.org/group/app.git"
SHOWN = "https://*****:*****@target.example.org/group/app.git"


def with_credentials(url: str, password: str = PASSWORD) -> str:
    return url.replace("://", f"://{USER}:{quote(password, safe='')}@")


async def queued(forge: Forge, mirror_id: int) -> list[Any]:
    """Return the waiting runs of a mirror: scheduled_at, args."""
    return await forge.database.rows(
        "SELECT scheduled_at, args::text FROM procrastinate_jobs WHERE lock = %(lock)s",
        lock=f"remote_mirror:{mirror_id}",
    )


async def new_mirror(forge: Forge, owner: Person, project_id: int, url: str, **values: Any) -> Json:
    """Create a mirror; return the answer of endpoint 21."""
    made = await owner.api.post(f"/projects/{project_id}/remote_mirrors", {"url": url} | values)
    assert made.status == 201, made
    return dict(made.body)


@attrs.frozen
class Mirrored:
    """A project with one enabled mirror, into whose repository the test writes."""

    forge: Forge
    owner: Person
    project: Json
    mirror: Json
    source: BareRepository

    @classmethod
    async def create(cls, forge: Forge, url: str, **values: Any) -> "Mirrored":
        owner = await forge.user("alice")
        project = await forge.project(owner)
        repositories = forge.server.app[SERVICES][REPOSITORIES]
        await repositories.create(project["id"])
        mirror = await new_mirror(forge, owner, project["id"], url, **{"enabled": True} | values)
        return cls(forge, owner, project, mirror, BareRepository(Path(repositories.path(project["id"]))))

    @property
    def path(self) -> str:
        return f"/projects/{self.project['id']}/remote_mirrors/{self.mirror['id']}"

    async def show(self) -> Json:
        answer = await self.owner.api.get(self.path)
        assert answer.status == 200, answer
        return dict(answer.body)

    async def push(self, new: dict[str, str | None]) -> None:
        """Move refs, with the consequences of a push."""
        old = self.source.refs()
        self.source.set_refs(new)
        zeros = "0" * 40
        updates = [RefUpdate(old.get(ref, zeros), sha or zeros, ref) for ref, sha in new.items()]
        app = self.forge.server.app
        async with self.forge.database.transaction() as transaction:
            await refs.follow(app[SERVICES], transaction, self.project["id"], self.owner.id, updates)

    async def sync(self) -> None:
        answer = await self.owner.api.post(f"{self.path}/sync")
        assert answer.status == 204, answer

    async def hurry(self) -> None:
        """End the back-off of a waiting run."""
        async with self.forge.database.transaction() as transaction:
            await transaction.row(
                "UPDATE procrastinate_jobs SET scheduled_at = NULL WHERE lock = %(lock)s AND status = 'todo'",
                lock=self.lock,
            )
            await transaction.row(
                "SELECT pg_notify('procrastinate_any_queue_v1', '{\"type\": \"job_inserted\"}')"
            )

    @property
    def lock(self) -> str:
        return f"remote_mirror:{self.mirror['id']}"

    async def jobs(self) -> list[str]:
        """Return the states of this mirror's tasks in the queue."""
        rows = await self.forge.database.rows(
            "SELECT status::text FROM procrastinate_jobs WHERE lock = %(lock)s ORDER BY id", lock=self.lock
        )
        return [row.status for row in rows]

    async def row(self) -> Any:
        return await self.forge.database.row(
            "SELECT * FROM remote_mirrors WHERE id = %(id)s", id=self.mirror["id"]
        )

    async def found(self) -> Mirror:
        """Return the mirror in the form that runs get."""
        return await queries.find(self.forge.database, self.project["id"], self.mirror["id"])

    async def reaches(self, *statuses: str, run: int = 1, seconds: float = 20) -> Json:
        """Wait until the run of that number has one of the statuses; return the mirror."""
        async with asyncio.timeout(seconds):
            while True:
                row = await self.row()
                if row.run >= run and row.update_status in statuses:
                    return await self.show()
                await asyncio.sleep(0.05)

    async def idle(self, seconds: float = 20) -> None:
        """Wait until no task of the mirror is in the queue."""
        async with asyncio.timeout(seconds):
            while await self.jobs():
                await asyncio.sleep(0.05)


async def mails(forge: Forge, mirror_id: int) -> list[EmailMessage]:
    """Return the mails about this mirror, once they have left the queue."""
    waiting = "SELECT count(*) FROM procrastinate_jobs WHERE task_name = 'send_mail' AND status <> 'failed'"
    async with asyncio.timeout(20):
        while await forge.database.value(waiting):
            await asyncio.sleep(0.05)
    files = sorted((forge.settings.data_dir / "mail").glob(f"remote-mirror-{mirror_id}-*.eml"))
    return [message_from_bytes(file.read_bytes(), policy=default) for file in files]


def text_of(mail: EmailMessage) -> str:
    body = mail.get_body(("plain",))
    assert body is not None
    return str(body.get_content())


async def failures(forge: Forge, mirror_id: int) -> list[str]:
    rows = await forge.database.rows(
        "SELECT details ->> 'reason' AS reason FROM audit_events "
        "WHERE event_type = 'remote_mirror_update_failed' AND target_id = %(id)s ORDER BY id",
        id=mirror_id,
    )
    return [row.reason for row in rows]


class ExampleResolver(AbstractResolver):
    """A resolver of *.example.org (to a documentation address, or to the one at the beginning of the name:
    `10-0-0-1.example.org`)."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        if not host.endswith(".example.org"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        first = host.partition(".")[0].replace("-", ".")
        address = first if first[0].isdigit() else "192.0.2.10"
        family = socket.AF_INET
        return [ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)]

    async def close(self) -> None:
        """Do nothing: no resource is open."""


def resolve_examples(app: web.Application) -> None:
    app[SERVICES][RESOLVER] = ExampleResolver()


EVERYTHING = Selection(all_branches)
KEEP = Selection(all_branches, keep_divergent_refs=True)
LOCAL_ALLOWED = Policy(allow_local_requests=True)


async def mirror(
    source: BareRepository,
    url: str,
    selection: Selection = EVERYTHING,
    *,
    password: str = PASSWORD,
    policy: Policy = LOCAL_ALLOWED,
    time_limit: float = 60,
) -> Outcome:
    """Run a mirror of `source` to `url` with the user of the test targets."""
    return await update_target(
        source.path,
        Target(url, USER, password),
        selection,
        policy=policy,
        resolver=ThreadedResolver(),
        time_limit=time_limit,
    )
