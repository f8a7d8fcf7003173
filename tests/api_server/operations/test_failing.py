"""Failures are shown within seconds and in the same words everywhere: on `/admin`, by `doctor`, in the log and in
metrics."""

import asyncio
import html
import re
from collections.abc import AsyncIterator, Callable, MutableMapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from api_server.ci.runners.pending_jobs import LISTENER
from api_server.operations.failing import KINDS, failing
from api_server.operations.watch import WATCH
from api_server.state import failures
from api_server.state.database import connect
from api_server.state.queue import enqueue
from api_server.web.context import SERVICES
from forgelet.doctor.findings import DiagnosedInstance
from forgelet.doctor.processes import work
from tests.api_server.operations.scene import PURGE_TOKEN, SECRET, Scene, failing_scene
from tests.support.browser import Browser, browsing
from tests.support.ci import ci_project
from tests.support.clock import MovedClock
from tests.support.forge import Forge
from tests.support.runner import a_runner
from tests.support.waiting import until

OF_DATABASE = {"forgelet_jobs", "forgelet_queue_tasks", "forgelet_failing", "forgelet_mirrors"}


async def metrics_of(forge: Forge) -> dict[tuple[str, ...], float]:
    """Return metrics by their name and the values of their labels."""
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
        monkeypatch.setitem(
            forge.server.app[SERVICES].background._down, LISTENER, "ConnectionLost: it is gone"
        )
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


@pytest.fixture
async def scene(new_forge: Callable[..., Any], tmp_path: Path) -> AsyncIterator[Scene]:
    async with failing_scene(new_forge, tmp_path) as scene:
        yield scene


async def test_each_part_that_fails_is_seen_with_its_reason(scene: Scene) -> None:
    await scene.break_all()
    await scene.queue_unknown(2)
    expected = {"store", "edge", "mail", "runner", "mirror", "delivery", "task"}

    async def are_seen() -> bool:
        found = {one.kind: one.reason for one in await scene.failing()}
        return expected <= found.keys() and found["task"].startswith("2 ")

    await until(are_seen)

    async def are_counted() -> bool:
        shown = await metrics_of(scene.forge)
        return {kind for kind in KINDS if shown["forgelet_failing", kind]} == expected

    await until(are_counted)
    found = {one.kind: one for one in await scene.failing()}
    assert list(found) == [kind for kind in KINDS if kind in expected], "what stops most comes first"
    assert (found["store"].name.split(" ")[0], found["store"].reason) == (
        str(scene.store),
        "the object store is unavailable: [Errno 2] its folder is gone.",
    )
    assert found["edge"].name == f"http://127.0.0.1:{scene.nobody}"
    assert "It does not answer (ClientConnectorError)" in found["edge"].reason
    assert found["mail"].name == f"127.0.0.1:{scene.nobody}"
    assert found["mail"].reason.startswith("SMTPConnectError: ")
    assert found["runner"].reason == "1 pending job, but no runner that may run them."
    assert "Failed to connect to 127.0.0.1" in found["mirror"].reason
    assert found["delivery"].name.endswith(": QA")
    assert found["delivery"].reason == "No connection: Connection refused."
    assert found["task"].name == "of_another_version"
    assert found["task"].reason == "2 failed permanently; the last: TaskNotFound: Task cannot be imported."
    assert all(one.since and one.remedy for one in found.values())
    assert [one for one in map(repr, found.values()) if SECRET in one or PURGE_TOKEN in one] == []


async def test_each_failure_is_one_line_that_says_what_and_why(scene: Scene) -> None:
    await scene.break_all()
    await scene.queue_unknown(1)
    events = ("delivery failed", "mirror run failed", "a task failed", "an edge cannot be told")
    parts = {"store", "edge"}

    async def are_told() -> bool:
        tasks = {line["task"] for line in scene.warnings("a task failed")}
        fails = {line["part"] for line in scene.warnings("a part fails")}
        return (
            all(scene.warnings(event) for event in events)
            and fails == parts
            and tasks == {"send_mail", "of_another_version"}
        )

    await until(are_told)
    delivery = _deliveries(scene)[0]
    assert (delivery["host"], delivery["attempt"]) == ("127.0.0.1", 1)
    assert delivery["reason"] == "No connection: Connection refused"
    (mirror, *_) = scene.warnings("mirror run failed")
    assert (mirror["host"], mirror["status"]) == ("127.0.0.1", "to_retry")
    assert "Failed to connect" in mirror["reason"]
    (mail, *more) = [line for line in scene.warnings("a task failed") if line["task"] == "send_mail"]
    assert f"127.0.0.1:{scene.nobody}" in mail["reason"]
    assert (mail["attempt"], mail["again"]) == (1, True)
    assert [one["attempt"] for one in more] == list(range(2, 2 + len(more))), "one line an attempt"
    (unknown,) = [line for line in scene.warnings("a task failed") if line["task"] == "of_another_version"]
    assert not unknown["again"]
    attempts = await scene.forge.database.value("SELECT sum(attempts) FROM status_check_deliveries")
    assert len(_deliveries(scene)) in (attempts, attempts + 1)


def _deliveries(scene: Scene) -> list[MutableMapping[str, Any]]:
    """Return lines about failed deliveries of this server; the shared server may still send its own to other hosts."""
    return [line for line in scene.warnings("delivery failed") if line["host"] == "127.0.0.1"]


async def test_what_works_again_is_not_listed_any_more(scene: Scene) -> None:
    elsewhere = scene.store.with_name("elsewhere")

    async def fails() -> bool:
        await scene.forge.server.app[SERVICES][WATCH].check_now()
        return bool(await scene.failing("store"))

    async def works() -> bool:
        return not await fails()

    scene.store.rename(elsewhere)
    await until(fails)
    elsewhere.rename(scene.store)
    await until(works)
    assert "a part works again" in [line["event"] for line in scene.lines]


async def test_work_that_keeps_ending_is_listed(scene: Scene) -> None:
    ended = asyncio.Event()

    async def ends() -> None:
        ended.set()
        raise OSError("the tape is torn")

    background = scene.forge.server.app[SERVICES].background
    background.start("tape", ends)
    await ended.wait()
    await until(lambda: _is_down(scene, "tape"))
    await background.finish("tape", 0)


async def _is_down(scene: Scene, name: str) -> bool:
    await scene.forge.server.app[SERVICES][WATCH].check_now()
    found = [one for one in await scene.failing("background") if one.name.startswith(name)]
    return bool(found) and found[0].reason == "OSError: the tape is torn."


async def test_what_a_process_said_counts_while_it_lives(new_database: Callable[[], str]) -> None:
    clock = MovedClock()
    async with connect(new_database(), base_url="http://forge.example.org", clock=clock) as database:
        async with database.transaction() as transaction:
            await failures.note(transaction, "store", "bucket", "It is gone", "one:8080")
            await failures.note(transaction, "mail", "smtp:25", "It is gone")
        assert [one.name for one in await failing(database, database.now)] == ["bucket (one:8080)", "smtp:25"]
        clock.move(seconds=61)
        assert [one.name for one in await failing(database, database.now)] == ["smtp:25"]


def test_a_reason_is_one_bounded_line_without_secrets() -> None:
    told = failures.shortened(f"https://alice:{SECRET}@example.org\n said\0: {'no ' * 1000}")
    assert SECRET not in told
    assert "\n" not in told
    assert len(told) == 500


async def test_a_runner_that_dies_with_a_job_in_its_hands_is_listed(scene: Scene) -> None:
    """It is listed until its next request; while the service itself was away, this is unknown."""
    project = await ci_project(scene.forge)
    await project.pipeline()
    running = await (await a_runner(scene.forge, description="box")).job()
    database = scene.forge.database

    async def age(statement: str) -> list[str]:
        async with database.transaction() as transaction:
            await transaction.run(statement)
        return [f"{one.name}: {one.reason}" for one in await scene.failing("runner")]

    assert await age(SILENT_FOR_LONG) == []
    (told,) = await age(HEARD_BY_THEN)
    assert told.startswith("box (#")
    assert f": The runner stopped responding with 1 job, such as job {running.id} of {project.path}." in told
    await running.log(b"Still here\n")
    assert await scene.failing("runner") == []


SILENT_FOR_LONG = (
    "UPDATE jobs SET contacted_at = %(now)s::timestamptz - interval '301 seconds' WHERE status = 'running'"
)
HEARD_BY_THEN = """
    INSERT INTO runner_watch VALUES (true, %(now)s, %(now)s::timestamptz - interval '302 seconds')
    ON CONFLICT (one) DO UPDATE SET listening_since = excluded.listening_since
"""


#: Failures that the test repairs, by creating a folder and by removing a task.
SEEN_KINDS = ("store", "task")


async def test_what_fails_is_told_everywhere_and_what_works_again_nowhere(
    new_forge: Callable[..., Any], tmp_path: Path
) -> None:
    async with failing_scene(new_forge, tmp_path) as scene, browsing(scene.forge) as browser:
        await browser.enter(scene.forge, await scene.forge.user("boss", admin=True))
        await scene.break_all()
        await scene.queue_unknown(1)
        kinds = {"store", "edge", "mail", "runner", "mirror", "delivery", "task"}

        async def all_fail() -> bool:
            return {one.kind for one in await scene.failing()} == kinds

        await until(all_fail)

        async def are_counted() -> bool:  # figures are cached for five seconds
            metrics = await metrics_of(scene.forge)
            return all(metrics["forgelet_failing", kind] for kind in kinds)

        await until(are_counted)
        page, told = await _page(browser), await _doctor(scene)
        for one in await scene.failing():
            assert one.reason in page, one
            sentences = one.reason.rstrip("."), one.remedy.rstrip(".")
            assert any(all(each in line for each in sentences) for line in told), one
        scene.store.mkdir()
        await scene.forge.database.value(
            "DELETE FROM procrastinate_jobs WHERE task_name = 'of_another_version' RETURNING 1"
        )

        async def are_gone() -> bool:
            metrics = await metrics_of(scene.forge)
            listed = {one.kind for one in await scene.failing()}
            return not any(metrics["forgelet_failing", kind] for kind in SEEN_KINDS) and not listed & set(
                SEEN_KINDS
            )

        await until(are_gone)
        page, told = await _page(browser), await _doctor(scene)
        assert "its folder is gone" not in page + "".join(told)
        assert "of_another_version" not in page + "".join(told)
        assert "a part works again" in [line["event"] for line in scene.lines]


async def _page(browser: Browser) -> str:
    text = (await browser.get("/admin")).text
    return html.unescape(text.replace("<code>", "`").replace("</code>", "`"))


async def _doctor(scene: Scene) -> list[str]:
    async with aiohttp.ClientSession() as session:
        patient = DiagnosedInstance({}, scene.forge.settings, None, session)
        patient.database_serves.set_result(True)
        return [one.text for one in await work(patient)]
