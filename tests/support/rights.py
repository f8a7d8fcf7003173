"""Writing requests that are stopped exactly between the check of rights and the action."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from api_server.state.database import Database, Opening, Transaction
from tests.support.forge import Forge

TIMEOUT = 20.0

#: Values that a request needs in addition to its example, so that it would succeed; `{names}` stand for existing ids.
_FILE = {"branch": "main", "commit_message": "Change", "content": "x"}
BODIES: dict[str, dict[str, Any]] = {
    "POST /users": {"email": "races@example.org", "username": "races"},
    "POST /user/emails": {"email": "another-race@example.org"},
    "POST /users/{id}/emails": {"email": "races@example.org"},
    "PUT /projects/{id}/transfer": {"namespace": "{group_id}"},
    "POST /projects/{id}/repository/branches": {"branch": "new", "ref": "main"},
    "POST /projects/{id}/repository/tags": {"tag_name": "new", "ref": "main"},
    "POST /projects/{id}/repository/commits/{sha}/cherry_pick": {"branch": "main"},
    "POST /projects/{id}/repository/commits/{sha}/revert": {"branch": "main"},
    "POST /projects/{id}/releases": {"tag_name": "released", "ref": "main"},
    "POST /projects/{id}/releases/{tag_name}/assets/links": {"url": "http://203.0.113.7/other"},
    "PUT /projects/{id}/releases/{tag_name}/assets/links/{link_id}": {"name": "another"},
    "POST /projects/{id}/repository/files/{path}": _FILE,
    "PUT /projects/{id}/repository/files/{path}": _FILE,
    "DELETE /projects/{id}/repository/files/{path}": _FILE,
    "POST /projects/{id}/repository/commits": _FILE
    | {"actions": [{"action": "create", "file_path": "new", "content": "x"}]},
    "POST /projects/{id}/merge_requests": {"title": "x", "source_branch": "feature", "target_branch": "v2"},
    "POST /projects/{id}/external_status_checks": {"name": "Another", "external_url": "http://203.0.113.7"},
    "POST /projects/{id}/merge_requests/{merge_request_iid}/status_check_responses": {
        "sha": "{head}",
        "external_status_check_id": "{check_id}",
    },
    "POST /projects/{id}/pipeline": {"ref": "main"},
    "POST /projects/{id}/pipeline_schedules": {"ref": "main"},
    "POST /projects/{id}/runners": {"runner_id": "{runner_id}"},
    "POST /user/runners": {"project_id": "{id}"},
    "POST /projects/{id}/remote_mirrors": {"url": "https://203.0.113.7/a.git"},
    "POST /projects/{id}/invitations": {"email": "somebody@example.org"},
    "POST /groups/{id}/invitations": {"email": "somebody@example.org"},
    "POST /projects/{id}/job_token_scope/allowlist": {"target_project_id": "{other_project_id}"},
    "POST /projects/{id}/job_token_scope/groups_allowlist": {"target_group_id": "{group_id}"},
    "PUT /application/settings": {"default_projects_limit": 7},
}
#: Other values in the paths of some requests.
PATHS = {
    "POST /projects/{id}/pipeline_schedules/{pipeline_schedule_id}/take_ownership": {
        "pipeline_schedule_id": "{schedule_of_root_id}"
    },
    "DELETE /projects/{id}/repository/branches/{name}": {"name": "feature"},
    "POST /projects/{id}/repository/files/{path}": {"path": "NEWS.md"},
    "POST /projects/{id}/repository/commits/{sha}/cherry_pick": {"sha": "feature"},
}


class Stop:
    """A point at which requests wait; it opens once for all."""

    def __init__(self) -> None:
        self.arrived = 0
        self._news = asyncio.Condition()
        self._open = asyncio.Event()

    async def here(self) -> None:
        async with self._news:
            self.arrived += 1
            self._news.notify_all()
        await self._open.wait()

    async def until(self, count: int, answers: list[asyncio.Task[Any]] | None = None) -> None:
        """Wait until this many requests wait, or have been answered without arriving here."""
        async with asyncio.timeout(TIMEOUT):
            while self.arrived + sum(answer.done() for answer in answers or []) < count:
                with contextlib.suppress(TimeoutError):
                    async with self._news:
                        await asyncio.wait_for(self._news.wait(), 0.05)

    def open(self) -> None:
        self._open.set()


@contextlib.contextmanager
def stopped_before_acting(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stop]:
    """Stop requests of this server after their rights are checked, before their transaction begins."""
    stop, opening_with = Stop(), forge.database.opening_with

    def stopping(opening: Opening) -> Database:
        database = opening_with(opening)
        begin = database.transaction

        @contextlib.asynccontextmanager
        async def transaction() -> AsyncIterator[Transaction]:
            await stop.here()
            async with begin() as begun:
                yield begun

        database.transaction = transaction  # type: ignore[method-assign]
        return database

    with monkeypatch.context() as patched:
        patched.setattr(forge.database, "opening_with", stopping)
        yield stop
        stop.open()


@contextlib.contextmanager
def stopped_while_acting(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stop]:
    """Stop requests of this server after their transaction has checked again that their rights still hold."""
    stop, opening_with = Stop(), forge.database.opening_with

    def stopping(opening: Opening) -> Database:
        async def opened(transaction: Transaction) -> None:
            await opening(transaction)
            await stop.here()

        return opening_with(opened)

    with monkeypatch.context() as patched:
        patched.setattr(forge.database, "opening_with", stopping)
        yield stop
        stop.open()
