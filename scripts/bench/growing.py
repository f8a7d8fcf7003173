"""How much longer lists, hand-outs, removals and vacuum take with many rows."""

import base64
import contextlib
import json
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import attrs
import click

from api_server.state.secrets import digest
from forgelet.local.embedded_postgres import DATABASE, Cluster
from scripts.bench import filling, measuring
from scripts.bench.filling import superuser
from scripts.bench.runs import NotMeasured, seconds_of
from scripts.bench.service import TIMEOUT, Running, running

#: Tables that grow, with the partitions of events.
GROWING = r"(?:jobs|pipelines|job_logs|job_artifacts|audit_chain|audit_events\w*)"
#: A sequential scan, its rows, and the number of rows that its filter removed. PostgreSQL rightly reads small tables
#: and partitions in this way.
_WHOLE = re.compile(
    rf"Seq Scan on ({GROWING})\b.*\(actual rows=(\d+)(?:.*\n(?:\t +Filter.*\n)?\t +Rows Removed by Filter: (\d+))?"
)
_MIN_ROWS = 1_000
_BUFFERS = re.compile(r"Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?")


@attrs.frozen
class Plan:
    """A query plan. `pages` are the pages of 8 KiB that were read from memory or disk; `whole` are the growing tables
    that were read completely."""

    text: str
    pages: int

    @property
    def whole(self) -> list[str]:
        return [
            table
            for table, rows, filtered in _WHOLE.findall(self.text)
            if int(rows) + int(filtered or 0) > _MIN_ROWS
        ]


def explain(cluster: Cluster, *, on: bool) -> None:
    """Turn on or off that new connections write the plans of all their statements to PostgreSQL's log. Raise
    `NotMeasured` if the server does not have auto_explain."""
    with superuser(cluster) as cursor:
        if not on:
            cursor.execute(f"ALTER DATABASE {DATABASE} RESET ALL")
            return
        try:
            cursor.execute("LOAD 'auto_explain'")
        except Exception as problem:
            reason = f"auto_explain does not belong to the PostgreSQL that is used: {problem}"
            raise NotMeasured(reason) from None
        for setting, value in (
            ("session_preload_libraries", "auto_explain"),
            ("auto_explain.log_min_duration", "0"),
            ("auto_explain.log_analyze", "on"),
            ("auto_explain.log_buffers", "on"),
            ("auto_explain.log_timing", "off"),
            ("auto_explain.log_nested_statements", "on"),
        ):
            cursor.execute(f"ALTER DATABASE {DATABASE} SET {setting} = '{value}'")


def plans_of(log: Path, work: Callable[[], object]) -> list[Plan]:
    """Return the plans of all statements that run during the work."""
    before = log.stat().st_size
    work()
    with log.open("rb") as file:
        file.seek(before)
        text = file.read().decode(errors="replace")
    return read_plans(text)


def read_plans(log: str) -> list[Plan]:
    """Return the plans in PostgreSQL's log, with their statements."""
    plans = re.findall(r"LOG:  duration: [\d.]+ ms  plan:\n((?:\t.*\n)*)", log)
    return [Plan(text, _pages(text)) for text in plans]


def _pages(text: str) -> int:
    """Return the pages of a plan. The first line about buffers is that of the uppermost node, which includes all nodes
    below it."""
    first = _BUFFERS.search(text)
    return sum(int(number or 0) for number in first.groups()) if first else 0


WARM_LISTS = 6
TIMES = 20

#: Paths below /api/v4/ by name; {jobs}, {pipelines} and {events} are keyset cursors in the middle of the list.
LISTS = {
    "jobs of a project": "projects/{busy_id}/jobs?pagination=keyset",
    "jobs of a project, deep": "projects/{busy_id}/jobs?pagination=keyset&cursor={jobs}",
    "jobs of a project, counted": "projects/{busy_id}/jobs",
    "jobs of a project, page 2,000": "projects/{busy_id}/jobs?page=2000",
    "jobs of a project, running": "projects/{busy_id}/jobs?scope[]=running",
    "jobs of a project, skipped": "projects/{busy_id}/jobs?scope[]=skipped",
    "jobs of a project, two states": "projects/{busy_id}/jobs?scope[]=failed&scope[]=canceled",
    "jobs of a small project": "projects/{small_id}/jobs",
    "jobs of a pipeline": "projects/{busy_id}/pipelines/{pipeline_id}/jobs",
    "jobs of a runner": "runners/{runner_id}/jobs",
    "pipelines": "projects/{busy_id}/pipelines?pagination=keyset",
    "pipelines, deep": "projects/{busy_id}/pipelines?pagination=keyset&cursor={pipelines}",
    "pipelines, counted": "projects/{busy_id}/pipelines",
    "pipelines, running": "projects/{busy_id}/pipelines?status=running",
    "pipelines, of a ref": "projects/{busy_id}/pipelines?ref=topic-10",
    "pipelines, of no ref there is": "projects/{busy_id}/pipelines?ref=none",
    "pipelines, of a source": "projects/{busy_id}/pipelines?source=schedule",
    "pipelines, by when updated": "projects/{busy_id}/pipelines?order_by=updated_at",
    "pipelines, finished scope": "projects/{busy_id}/pipelines?scope=finished",
    "pipelines, branches scope": "projects/{busy_id}/pipelines?scope=branches",
    "latest pipeline": "projects/{busy_id}/pipelines/latest?ref=main",
    "events": "audit_events?pagination=keyset",
    "events, deep": "audit_events?pagination=keyset&cursor={events}",
    "events, counted": "audit_events",
    "events, before a moment": "audit_events?created_before={middle}",
    "events, of an entity": "audit_events?entity_type=Project&entity_id=7000000",
    "events, of no entity there is": "audit_events?entity_type=Project&entity_id=6999999",
    "events of a group": "groups/{group_id}/audit_events",
    "events of a project": "projects/{busy_id}/audit_events",
    "events of a project, deep": "projects/{busy_id}/audit_events?pagination=keyset&cursor={events}",
}
MIDDLE = """
    SELECT (SELECT id FROM jobs WHERE project_id = %(busy_id)s ORDER BY id OFFSET %(jobs)s LIMIT 1) AS jobs,
        (SELECT id FROM pipelines WHERE project_id = %(busy_id)s ORDER BY id OFFSET %(pipelines)s LIMIT 1) AS pipelines,
        (SELECT max(id) / 2 FROM audit_events) AS events,
        (SELECT max(id) FROM pipelines WHERE project_id = %(busy_id)s) AS pipeline_id,
        to_char(now() - interval '180 days', 'YYYY-MM-DD') AS middle
"""


def list_paths(cluster: Cluster, ids: Mapping[str, int], rows: int) -> dict[str, str]:
    """Return the path of each list by its name."""
    keys = filling.row_of(cluster, MIDDLE, {**ids, "jobs": rows // 20, "pipelines": rows // 200})
    for name in ("jobs", "pipelines", "events"):
        keys[name] = base64.urlsafe_b64encode(b'{"id":"%d","_kd":"n"}' % keys[name]).decode()
    return {name: path.format(**ids, **keys) for name, path in LISTS.items()}


def ask(server: Running, path: str, method: str = "GET", body: object = None) -> float:
    """Return the milliseconds of an answer on a kept-alive connection."""
    return seconds_of(lambda: server.api.request(method, path, body)) * 1000


def list_milliseconds(server: Running, path: str) -> float:
    """Return the median of many requests, one after the other."""
    for _ in range(WARM_LISTS):
        ask(server, path)
    return statistics.median_high(ask(server, path) for _ in range(TIMES))


HANDED_OUT = 30
TOKEN = "glrt-growth"
#: The tables that are vacuumed, and the number of their rows that are updated before.
VACUUMED = ("jobs", "audit_events")
DEAD = 2_000
UPDATE_JOBS = "UPDATE jobs SET exit_code = 1 WHERE id IN (SELECT id FROM jobs ORDER BY id LIMIT %s)"
LEFT_JOBS = "SELECT EXISTS (SELECT FROM jobs WHERE project_id = %s AND kind = 'build')"
SIZES = """
    SELECT relation, pg_size_pretty(bytes) FROM (
        SELECT 'jobs' AS relation, pg_total_relation_size('jobs') AS bytes
        UNION ALL SELECT 'pipelines', pg_total_relation_size('pipelines')
        UNION ALL SELECT 'audit_chain', pg_total_relation_size('audit_chain')
        UNION ALL SELECT 'audit_events', sum(pg_total_relation_size(inhrelid)) FROM pg_inherits
            WHERE inhparent = 'audit_events'::regclass
        UNION ALL SELECT 'the database', pg_database_size(current_database())
    ) sizes
"""


def give_token(cluster: Cluster, ids: Mapping[str, int]) -> None:
    """Set the token of the first runner."""
    with superuser(cluster) as cursor:
        cursor.execute(
            "UPDATE runners SET token_digest = %s WHERE id = %s", [digest(TOKEN), ids["runner_id"]]
        )


def hand_out(server: Running) -> float:
    """Return the milliseconds of an answer with a job."""
    return ask(server, "jobs/request", "POST", {"token": TOKEN, "system_id": "s_1"})


def remove_project(cluster: Cluster, server: Running, project_id: int) -> tuple[float, float]:
    """Return the milliseconds until the request is answered, and until the database has no jobs of the project any
    more."""
    start = time.perf_counter()
    with superuser(cluster) as cursor:
        answer_milliseconds = ask(server, f"projects/{project_id}", "DELETE")
        while True:
            cursor.execute(LEFT_JOBS, [project_id])
            if not cursor.fetchone()[0]:
                return answer_milliseconds, (time.perf_counter() - start) * 1000
            time.sleep(0.05)


def measure_vacuum(cluster: Cluster) -> dict[str, float]:
    """Return the milliseconds of each command, after some jobs were updated. The tables stay in the caches as they
    are."""
    milliseconds = {}
    with superuser(cluster) as cursor:
        cursor.execute("VACUUM jobs")  # remove the rows of deleted projects
        cursor.execute(UPDATE_JOBS, [DEAD])
        for table in VACUUMED:
            for command in ("VACUUM", "ANALYZE"):
                name = f"{command} {table}"
                milliseconds[name] = seconds_of(partial(cursor.execute, name)) * 1000
    return milliseconds


def sizes(cluster: Cluster) -> dict[str, str]:
    """Return the sizes of tables with their indexes, as texts."""
    with superuser(cluster) as cursor:
        cursor.execute(SIZES)
        return dict(cursor.fetchall())


#: Number of requests after which each connection has run a statement often enough for PostgreSQL to choose its final
#: plan.
WARM = 30


@attrs.define
class Measured:
    """The results at one size: milliseconds by action; `filling` is in seconds. `pages` (of 8 KiB) and `whole` (tables
    that were read completely) are those of one request, if plans are available. `plans` are texts."""

    rows: int
    filling: dict[str, float]
    milliseconds: dict[str, float] = attrs.Factory(dict)
    pages: dict[str, int] = attrs.Factory(dict)
    whole: dict[str, list[str]] = attrs.Factory(dict)
    plans: dict[str, str] = attrs.Factory(dict)
    sizes: dict[str, str] = attrs.Factory(dict)
    why_no_plans: str = ""


def measure_growth(rows: int, projects: int, report: Callable[[str], None]) -> Measured:
    """Measure everything in a new database with this many jobs and events."""
    with filling.durable_cluster() as cluster, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        report(f"{rows:,} jobs and events: filling")
        ids, seconds = filling.fill_everything(cluster, Path(folder, "data"), rows, projects)
        report(f"  filled in {sum(seconds.values()):.0f} s")
        result = Measured(rows, seconds)
        give_token(cluster, ids)
        result.sizes = sizes(cluster)
        report("  lists")
        with _server(cluster, Path(folder)) as server:
            paths = list_paths(cluster, ids, rows)
            for name, path in paths.items():
                result.milliseconds[name] = list_milliseconds(server, path)
            times = (hand_out(server) for _ in range(HANDED_OUT))
            result.milliseconds["a job handed out"] = statistics.median_high(times)
        report("  plans")
        _explained(cluster, Path(folder), paths, ids["tiny_id"], result)
        report("  removals and vacuum")
        with _server(cluster, Path(folder)) as server:
            _measure_removals(cluster, server, ids, result)
        result.milliseconds |= measure_vacuum(cluster)
    return result


def _server(cluster: Cluster, folder: Path) -> contextlib.AbstractContextManager[Running]:
    return running(cluster, folder, DATABASE_STATEMENT_TIMEOUT=str(TIMEOUT))


def _explained(
    cluster: Cluster, folder: Path, paths: Mapping[str, str], tiny_id: int, result: Measured
) -> None:
    try:
        explain(cluster, on=True)
    except NotMeasured as reason:
        result.why_no_plans = str(reason)
        return
    try:
        with _server(cluster, folder) as server:
            ask(server, paths["jobs of a small project"])  # signs the token in
            for name, path in paths.items():
                for _ in range(WARM):
                    ask(server, path)
                _note(result, name, plans_of(cluster.log, partial(ask, server, path)))
            _note(result, "a job handed out", plans_of(cluster.log, partial(hand_out, server)))
            plans = plans_of(cluster.log, lambda: remove_project(cluster, server, tiny_id))
            _note(result, "a tiny project removed", plans)
    finally:
        explain(cluster, on=False)


def _note(result: Measured, name: str, plans: list[Plan]) -> None:
    result.pages[name] = sum(plan.pages for plan in plans)
    if full_scans := sorted({table for plan in plans for table in plan.whole}):
        result.whole[name] = full_scans
    result.plans[name] = max(plans, key=lambda plan: plan.pages).text if plans else ""


def _measure_removals(cluster: Cluster, server: Running, ids: Mapping[str, int], result: Measured) -> None:
    for name, project in (("2,000 jobs", ids["small_id"]), ("a tenth of all jobs", ids["doomed_id"])):
        answered, removed = remove_project(cluster, server, project)
        result.milliseconds[f"a project with {name} removed: the answer"] = answered
        result.milliseconds[f"a project with {name} removed: its jobs gone"] = removed


def growth_text(runs: Sequence[Measured]) -> str:
    """Return a line for each action: the milliseconds at each size, their growth, and the pages."""
    first, last = runs[0], runs[-1]
    sizes = [f"{measured.rows:,}" for measured in runs]
    lines = [_line("milliseconds", sizes, "grew", "pages of 8 KiB", "read whole")]
    for name in {**last.milliseconds, **last.pages}:
        figures, grew = ["" for _ in runs], ""
        if name in last.milliseconds:
            figures = [f"{measured.milliseconds[name]:,.1f}" for measured in runs]
            grew = f"x {last.milliseconds[name] / first.milliseconds[name]:.1f}"
        pages = " -> ".join(f"{measured.pages[name]:,}" for measured in runs if name in measured.pages)
        lines.append(_line(name, figures, grew, pages, ", ".join(last.whole.get(name, []))))
    lines += ["", "seconds of filling"]
    lines += [_line(name, [f"{measured.filling[name]:,.1f}" for measured in runs]) for name in last.filling]
    lines += ["", "with indexes"]
    lines += [_line(name, [measured.sizes[name] for measured in runs]) for name in last.sizes]
    if last.why_no_plans:
        lines += ["", f"No plans are shown: {last.why_no_plans}"]
    return "\n".join(lines)


def _line(name: str, figures: Sequence[str], *extra: str) -> str:
    columns = [f"{name:<58}", *(f"{figure:>12}" for figure in figures), *(f"  {cell:<16}" for cell in extra)]
    return "".join(columns).rstrip()


#: Bytes of a job and an event, with their shares of pipeline and chain, all indexes, and the write-ahead log
#: meanwhile.
BYTES_A_ROW = 3_000
MIN_FREE_BYTES = 10 << 30  # bytes that stay free for other programs


@click.command()
@click.option(
    "--rows",
    type=click.IntRange(1000),
    default=10_000_000,
    show_default=True,
    help="Number of jobs, and of events.",
)
@click.option(
    "--beside",
    type=click.IntRange(1000),
    default=200_000,
    show_default=True,
    help="Smaller number that is measured first, to compare with.",
)
@click.option("--projects", type=click.IntRange(4), default=10_000, show_default=True)
@click.option("--json", "keep", type=click.Path(path_type=Path), help="Write all figures to this file.")
@click.option(
    "--plans", type=click.Path(path_type=Path), help="Write the plans of the larger size to this file."
)
def growth(rows: int, beside: int, projects: int, keep: Path | None, plans: Path | None) -> None:
    """Measure lists, hand-outs, removals and vacuum with many jobs and audit events, and compare the times with those
    of fewer."""
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < rows * BYTES_A_ROW + MIN_FREE_BYTES:
        raise click.ClickException(
            f"{free >> 30} GiB are free, and {rows:,} rows need {rows * BYTES_A_ROW + MIN_FREE_BYTES >> 30}."
        )
    sizes = sorted({min(beside, rows), rows})
    runs = [measure_growth(size, projects, report=_report) for size in sizes]
    click.echo(growth_text(runs))
    if keep:
        sizes_kept = [attrs.asdict(measured, filter=_is_figure) for measured in runs]
        document = {"machine": measuring.describe_machine(), "sizes": sizes_kept}
        keep.write_text(json.dumps(document, indent=1) + "\n")
    if plans:
        plans.write_text("\n".join(f"=== {name}\n{text}" for name, text in runs[-1].plans.items()))


def _report(text: str) -> None:
    click.echo(text, err=True)


def _is_figure(attribute: "attrs.Attribute[object]", _: object) -> bool:
    return attribute.name != "plans"


if __name__ == "__main__":
    growth(prog_name="scripts/bench/growth")
