"""The periodic checks of each process, and the checks behind `/-/readiness`.

A failure is recorded for `failing`, and removed when the part works again. Readiness fails without the
database, because then nothing can be answered. If another part fails, some requests can be answered, and the
server is degraded.
"""

import asyncio
import datetime
import functools
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import structlog

from api_server.ci.runners.pending_jobs import LISTENER
from api_server.operations import figure_queries, figures
from api_server.operations.failing import NO_ORIGIN, WRONG_STORAGE_TOKEN
from api_server.outbound.edges import EDGES
from api_server.services import Key, Services
from api_server.state import disk, failures
from api_server.state.errors import LockNotAvailable, Unavailable
from api_server.state.secrets import UnusableKey, open_vault
from api_server.web.request_log import REQUESTS, SLOW_SECONDS
from common.lifecycle import Check, Degraded

log = structlog.get_logger(__name__)

#: Seconds between two checks.
EVERY_SECONDS = 5.0
NAME = "watch of parts"

#: The subject of a failure: a kind of part and which one of that kind.
Subject = tuple[str, str]


@attrs.define
class Watch:
    """The failures that this process has found."""

    _services: Services
    source: str
    #: Recorded failures, with their reason and the time of recording, in seconds of the loop's clock.
    _recorded: dict[Subject, tuple[str, float]] = attrs.field(init=False, factory=dict)
    #: Requests answered until the last check.
    _request_counts: dict[str, int] = attrs.field(init=False, factory=dict)
    _checking: asyncio.Lock = attrs.field(init=False, factory=asyncio.Lock)

    async def run(self) -> None:
        """Check periodically as long as the process lives. Wait first, so that parts that start at the same
        time, such as edges, can do so."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await self.check_now()

    def forget(self) -> None:
        """Forget which failures have been recorded."""
        self._recorded.clear()

    async def check_now(self) -> None:
        """Check everything once and record changes. If the database is down, record them after the next
        check."""
        async with self._checking:
            await self._check()

    async def _check(self) -> None:
        problems = await self._disks()
        problems |= await self._store(problems)
        problems |= {("background", name): reason for name, reason in self._services.background.down.items()}
        try:
            problems |= await self._edges()
            await self._write(problems)
            await self._count_requests()
        except (Unavailable, LockNotAvailable):
            return

    async def _count_requests(self) -> None:
        """Add the requests answered since the last check, if there are any, to the present minute."""
        requests = self._services[REQUESTS]
        now = {"requests": requests.count(), "slow_requests": requests.count(over=SLOW_SECONDS)}
        increases = {name: float(count - self._request_counts.get(name, 0)) for name, count in now.items()}
        if any(increases.values()):
            await figures.keep_sample(self._services.database, increases, sums=True)
        self._request_counts = now

    async def _write(self, problems: dict[Subject, str]) -> None:
        database, now = self._services.database, asyncio.get_running_loop().time()
        for (part, subject), reason in problems.items():
            before, recorded_at = self._recorded.get((part, subject), (None, 0.0))
            if reason == before and now - recorded_at < failures.HEARD_OF.total_seconds() / 2:
                continue
            async with database.transaction() as transaction:
                await failures.note(transaction, part, subject, reason, self.source)
            if reason != before:
                log.warning("a part fails", part=part, subject=subject, reason=failures.shortened(reason))
            self._recorded[part, subject] = reason, now
        for part, subject in self._recorded.keys() - problems.keys():
            async with database.transaction() as transaction:
                await failures.settle(transaction, part, subject, self.source)
            log.info("a part works again", part=part, subject=subject)
            del self._recorded[part, subject]

    async def _disks(self) -> dict[Subject, str]:
        """Check the disks of the data and of a store in local files. `_store` reports it if the latter's
        folder is missing."""
        data, store, reserve = (
            self._services.settings.data_dir,
            self._services.objects.folder,
            self._services.settings.disk_reserve,
        )
        problems = {data: await asyncio.to_thread(problem_of_disk, data, reserve)}
        if store is not None and store.exists():
            problems[store] = await asyncio.to_thread(problem_of_disk, store, reserve)
        return {("disk", str(folder)): problem for folder, problem in problems.items() if problem is not None}

    async def _store(self, disks: dict[Subject, str]) -> dict[Subject, str]:
        objects = self._services.objects
        if ("disk", objects.location) in disks:
            return {}
        try:
            await objects.check()
        except Degraded as problem:
            return {("store", objects.location): str(problem)}
        return {}

    async def _edges(self) -> dict[Subject, str]:
        """Check the edges of all servers, after recording this server's own."""
        await self._services[EDGES].list_own()
        statuses = await self._services[EDGES].statuses()
        problems = {url: problem_of_edge(status) for url, status in statuses.items()}
        return {("edge", url): problem for url, problem in problems.items() if problem is not None}


WATCH = Key[Watch]("watch")


async def watching(services: Services) -> AsyncIterator[None]:
    """Check periodically while the application runs."""
    source = f"{socket.gethostname()}:{services.settings.port}"
    services[WATCH] = Watch(services, source)
    services.background.start(NAME, services[WATCH].run, longest_pause=EVERY_SECONDS)
    yield
    await services.background.finish(NAME, 0)


def problem_of_disk(folder: Path, reserve: int) -> str | None:
    """Return the problem of the disk below a folder, if fewer than `reserve` bytes are free or it cannot be
    read, or None."""
    floor = max(reserve, 1)
    try:
        return (
            None if disk.leaves_free(folder, 0, floor) else f"Less than {floor:,} bytes are free on this disk"
        )
    except OSError as problem:
        return failures.reason_of(problem)


def problem_of_edge(status: dict[str, Any] | str) -> str | None:
    """Return the reason why an edge does not work, from its status or the sentence in place of it, or
    None."""
    if isinstance(status, str):
        return status
    origin = status.get("origin")
    if not isinstance(origin, dict):
        return None
    if origin.get("token") == "wrong":
        return f"{WRONG_STORAGE_TOKEN}: it cannot fetch what is private"
    if origin.get("reachable") is False:
        return f"{NO_ORIGIN}: {origin.get('problem') or 'it does not say why'}"
    return None


def readiness_checks(services: Services) -> dict[str, Check]:
    """Return the readiness checks by the names under which they are shown."""
    own_checks = {
        "database": _database_check,
        "disk": _disk_check,
        "key": _key_check,
        "queue": _queue_check,
        "listener": _listener_check,
        "edges": _edges_check,
    }
    return {
        **{name: functools.partial(check, services) for name, check in own_checks.items()},
        "background": services.background.check,
        "object_store": services.objects.check,
    }


async def _database_check(services: Services) -> None:
    await services.database.ping()


async def _disk_check(services: Services) -> None:
    settings = services.settings
    problem = await asyncio.to_thread(problem_of_disk, settings.data_dir, settings.disk_reserve)
    if problem is not None:
        raise Degraded(f"{settings.data_dir}: {problem}")


async def _key_check(services: Services) -> None:
    """Raise `Degraded` if the key file is unusable: the process has the key in memory, but the next start
    needs the file."""
    try:
        vault = await asyncio.to_thread(open_vault, services.settings.data_dir)
    except UnusableKey as problem:
        raise Degraded(str(problem)) from None
    if vault.check_value() != services.vault.check_value():
        raise Degraded("The secret key differs from the one with which this process was started")


async def _queue_check(services: Services) -> None:
    now, heartbeat_timeout = (
        services.database.now,
        datetime.timedelta(seconds=services.settings.worker_timeout),
    )
    try:
        workers = await figure_queries.alive_workers(services.database, now - heartbeat_timeout)
    except Unavailable:
        return  # reported by the check of the database
    if not workers:
        raise Degraded("No process does background work")


async def _listener_check(services: Services) -> None:
    if LISTENER in services.background.down:
        raise Degraded("Runners that wait are not woken by new jobs: they ask every few seconds")


async def _edges_check(services: Services) -> None:
    await services[EDGES].check()
