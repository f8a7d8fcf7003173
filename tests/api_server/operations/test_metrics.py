"""Metrics and readiness of the API server, and what they say while something is not there."""

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api_server.ci.runners.pending_jobs import LISTENER
from api_server.operations.failing import KINDS
from api_server.state.queue import enqueue
from common.lifecycle import BACKGROUND
from tests.support.forge import Forge

OF_DATABASE = {"forgelet_jobs", "forgelet_queue_tasks", "forgelet_failing", "forgelet_mirrors"}


async def metrics_of(forge: Forge) -> dict[tuple[str, ...], float]:
    """By name and values of the labels."""
    text = (await forge.anonymous.get(f"{forge.base}/-/metrics")).body
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_requests_are_counted_by_route_and_never_by_what_strangers_choose(forge: Forge) -> None:
    project = await forge.project()
    name, route = "forgelet_http_request_duration_seconds_count", "/api/v4/projects/{id}/jobs"
    before = await metrics_of(forge)
    for path in (f"/projects/{project['id']}/jobs", "/projects/0/jobs"):
        await forge.root.get(path)
    await forge.root.request("BREW", "/coffee")
    await forge.anonymous.get(f"{forge.base}/api/v4/coffee")
    after = await metrics_of(forge)
    for status in ("2xx", "4xx"):
        key = (name, "GET", route, status)
        assert after[key] - before.get(key, 0) == 1
    assert not [key for key in after if {"BREW", "coffee"} & set(re.split(r"\W", " ".join(key)))]


async def test_parts_of_the_process_are_counted(forge: Forge) -> None:
    project = await forge.project(initialize_with_readme=True)
    await forge.root.get(f"/projects/{project['id']}/repository/tree")
    metrics = await metrics_of(forge)
    assert metrics["forgelet_database_statement_duration_seconds_count",] > 10
    assert metrics["forgelet_database_pool_size",] == forge.settings.database_pool
    assert metrics["forgelet_git_processes",] >= 0
    assert metrics["process_resident_memory_bytes",] > 2**20
    assert ("background_task_restarts_total", LISTENER) in metrics
    assert {key[1] for key in metrics if key[0] == "forgelet_failing"} == set(KINDS)
    assert metrics["forgelet_database_up",] == 1


async def test_without_a_database_the_rest_is_shown(new_forge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with new_forge() as forge:
        names = {key[0] for key in await metrics_of(forge)}
        assert names >= OF_DATABASE
        from api_server.operations import figures
        from api_server.state.errors import Unavailable

        async def away(*_: object) -> None:
            raise Unavailable("the database")

        monkeypatch.setattr(figures, "read_figures", away)
        monkeypatch.setattr(figures, "FRESH_SECONDS", 0)
        metrics = await metrics_of(forge)
        assert metrics["forgelet_database_up",] == 0
        assert not {key[0] for key in metrics} & OF_DATABASE
        assert metrics["forgelet_database_pool_size",] == forge.settings.database_pool


async def test_readiness_says_what_does_not_work(
    new_forge: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with new_forge(data_dir=tmp_path / "data", disk_reserve=2**62) as forge:
        (tmp_path / "data/secret_key").rename(tmp_path / "secret_key")
        monkeypatch.setitem(forge.server.app[BACKGROUND]._down, LISTENER, "ConnectionLost: it is gone")
        ready = await forge.anonymous.get(f"{forge.base}/-/readiness")
        assert (ready.status, ready.body["status"]) == (200, "degraded")
        said = {name: part.get("message", "") for name, part in ready.body.items() if name != "status"}
        assert said.keys() == {
            "database", "disk", "key", "queue", "listener", "background", "object_store", "edges",
            "event_loop",
        }  # fmt: skip
        assert "bytes are free on this disk" in said["disk"]
        assert said["key"].endswith("is missing: restore it from a backup")
        assert said["queue"] == "No process does background work"
        assert "Runners that wait are not woken" in said["listener"]
        assert said["database"] == said["edges"] == ""


async def test_tasks_of_another_version_are_counted(new_forge: Any) -> None:
    async with new_forge() as forge:
        async with forge.database.transaction() as transaction:
            await enqueue(transaction, "of_another_version")
            await transaction.run("UPDATE procrastinate_jobs SET status = 'failed'")
        metrics = await metrics_of(forge)
        assert metrics["forgelet_queue_failed_tasks", "of_another_version"] == 1
        assert metrics["forgelet_queue_failed_tasks", "send_mail"] == 0
