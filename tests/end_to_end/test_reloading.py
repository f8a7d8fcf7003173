"""SIGHUP: the API server reads its settings again, and whoever is being served does not notice."""

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.support.forge import Client
from tests.support.server_process import server_process

READ = "the settings were read again"
REFUSED = "the settings cannot be read again, the old ones stay"


@attrs.frozen
class Log:
    """A log file with JSON in it."""

    path: Path

    def lines(self, event: str) -> list[dict[str, Any]]:
        """What was said of an event, without what every line has."""
        found = [json.loads(line) for line in self.path.read_text().splitlines()]
        every = {"event", "timestamp", "level", "logger"}
        return [{k: v for k, v in line.items() if k not in every} for line in found if line["event"] == event]

    async def until(self, event: str, count: int = 1) -> dict[str, Any]:
        """The `count`th line of an event."""
        async with asyncio.timeout(30):
            while not self.path.exists() or len(self.lines(event)) < count:
                await asyncio.sleep(0.02)
        return self.lines(event)[count - 1]


async def test_limits_tokens_and_the_log_are_those_of_now(
    new_database: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, log, old = tmp_path / "settings.toml", Log(tmp_path / "log"), Log(tmp_path / "log.1")
    monkeypatch.setenv("FORGELET_SETTINGS", str(file))
    section = f'[api_server]\nlog_file = "{log.path}"\nlog_format = "json"\nwork = false\n'
    file.write_text(section + 'log_level = "WARNING"\n')
    async with server_process(new_database(), tmp_path / "data") as server:
        project = (await server.root.post("/projects", {"name": "reload"})).body["id"]
        jobs = f"/projects/{project}/jobs"
        made = await server.root.post("/user/runners", {"runner_type": "project_type", "project_id": project})
        poll = {"token": made.body["token"], "last_update": "x"}
        waiting = asyncio.create_task(server.root.post("/jobs/request", poll))
        assert [(await server.root.get(jobs)).status for _ in range(3)] == [200] * 3
        assert log.lines("request") == []

        file.write_text(section + "jobs_rate_limit = 4\ndatabase_pool = 3\n")
        (tmp_path / "data-root-token").write_text("flpat-another-token-of-root\n")
        log.path.rename(old.path)
        server.signal(signal.SIGHUP)
        assert await log.until(READ) == {
            "changed": ["jobs_rate_limit", "log_level", "root_token"],
            "at_next_start": ["database_pool"],
        }
        assert old.lines(READ) == []
        assert (await server.root.get(jobs)).status == 401
        root = Client(server.session, server.base, "flpat-another-token-of-root")
        assert [(await root.get(jobs)).status for _ in range(3)] == [200, 429, 429]
        await log.until("request", 4)

        file.write_text(section + "jobs_rate_limit = 600\nlog_lvel = 3\n")
        server.signal(signal.SIGHUP)
        assert "log_lvel" in (await log.until(REFUSED))["problem"]
        assert (await root.get(jobs)).status == 429
        assert not waiting.done()
        await _makes_a_job(root, project)
        assert (await waiting).status == 201


async def _makes_a_job(client: Client, project: int) -> None:
    body = {"branch": "main", "content": "build:\n  script: echo\n", "commit_message": "Begin [ci skip]"}
    url = f"/projects/{project}/repository/files/%2Egitlab-ci%2Eyml"
    assert (await client.post(url, body)).status == 201
    assert (await client.post(f"/projects/{project}/pipeline", {"ref": "main"})).status == 201
