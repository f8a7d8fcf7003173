"""LFS objects of a mirror run: before refs are pushed, the target gets the objects that their commits point to."""

import asyncio
from collections.abc import Collection

import attrs
import structlog

from api_server.git.errors import GitError
from api_server.git.lfs_pointers import Pointer, pointers_in
from api_server.git.remote.access import Remote
from api_server.git.repositories import REPOSITORIES
from api_server.mirrors.lfs import queries
from api_server.mirrors.lfs.target import LfsTarget, Report, Stored
from api_server.mirrors.queries import Mirror
from api_server.outbound.client import OUTGOING_POLICY, OUTGOING_SESSION, RESOLVER
from api_server.outbound.destinations import HTTP_SCHEMES
from api_server.state.objects import OBJECTS
from api_server.web.context import DATABASE, App

log = structlog.get_logger(__name__)

#: Problems that a text names.
REPORTED_PROBLEMS = 10
TOOK_TOO_LONG = "The LFS objects took too long; the next run goes on with them."
NOT_SEARCHED = "The commits could not be searched for LFS pointers."


@attrs.frozen
class LfsCourier:
    """Brings the objects of one run of `mirror`, in at most `time_limit` seconds."""

    app: App
    mirror: Mirror
    time_limit: float

    async def __call__(self, remote: Remote, pushed: Collection[str], theirs: Collection[str]) -> str | None:
        """Why objects did not get to `remote`, for the user; None where they did, or there was nothing to do.

        `pushed` are the ids that its refs are about to get, `theirs` those that they have. Commits that it had before
        are looked through once; what it did not get is remembered for the next run.
        """
        if not remote.url.startswith(tuple(f"{scheme}://" for scheme in HTTP_SCHEMES)):
            return None
        debt = await queries.debt(self.app[DATABASE], self.mirror)
        if debt is None or (debt.lfs_followed and not debt.owes and not pushed):
            return None
        tips, known = (pushed, theirs) if debt.lfs_followed else ({*pushed, *theirs}, ())
        new: set[str] | None = None
        report = Report()
        try:
            async with asyncio.timeout(self.time_limit):
                new = await self._pointers(tips, known)
                if debt.lfs_followed and not debt.owes and not new:
                    return None
                await self._bring(remote, new, report)
        except TimeoutError:
            report.problems.append(TOOK_TOO_LONG)
        except GitError:
            log.exception("LFS pointers could not be searched for", mirror=self.mirror.id)
            report.problems.append(NOT_SEARCHED)
        await self._note(new, report)
        return self._told(report)

    async def _pointers(self, tips: Collection[str], known: Collection[str]) -> set[str]:
        repository = self.app[REPOSITORIES].path(self.mirror.project_id)
        return {pointer.oid for pointer in await pointers_in(repository, tips, known)}

    async def _bring(self, remote: Remote, new: set[str], report: Report) -> None:
        rows = await queries.owed_objects(self.app[DATABASE], self.mirror, new)
        stored = [Stored(Pointer(row.oid, row.size), row.object_key) for row in rows]
        app = self.app
        target = LfsTarget(remote, app[OBJECTS], app[OUTGOING_SESSION], app[OUTGOING_POLICY], app[RESOLVER])
        await target.bring(stored, report)

    async def _note(self, new: set[str] | None, report: Report) -> None:
        """Before the refs are pushed: the next run does not look at these commits again."""
        async with self.app[DATABASE].transaction() as transaction:
            if new is None:
                await queries.look_through_all(transaction, self.mirror)
            else:
                await queries.note(
                    transaction, self.mirror, arrived=report.arrived, owed=new - report.arrived
                )

    def _told(self, report: Report) -> str | None:
        if not report.problems:
            return None
        problems = report.problems[:REPORTED_PROBLEMS]
        if (more := len(report.problems) - REPORTED_PROBLEMS) > 0:
            problems.append(f"... and {more} more")
        log.warning("LFS objects did not get to the target", mirror=self.mirror.id, problems=problems)
        return "\n".join(problems)
