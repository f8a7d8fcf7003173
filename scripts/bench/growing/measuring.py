"""All that is measured over one database, in the order in which one thing does not disturb the next."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs

from forgelet.local.embedded_postgres import Cluster
from scripts.bench.growing import filling, lists, migrating, plans, work
from scripts.bench.harness.rows import NotMeasured
from scripts.bench.scene.api_process import Running, running

#: Much longer than users have: what takes so long is to be measured, not to be refused.
STATEMENT_TIMEOUT = "900"
#: Requests after which each connection has run a statement often enough for PostgreSQL to decide upon a plan for good.
WARM = 30


@attrs.define
class Measured:
    """Milliseconds by what was done; `filling` and `migrations` are seconds. `pages` (of 8 KiB) and `whole` (tables
    read from end to end) are those of one request, where PostgreSQL can tell. `plans` are texts."""

    rows: int
    filling: dict[str, float]
    migrations: dict[str, float]
    rewritten: list[str]
    milliseconds: dict[str, float] = attrs.Factory(dict)
    pages: dict[str, int] = attrs.Factory(dict)
    whole: dict[str, list[str]] = attrs.Factory(dict)
    plans: dict[str, str] = attrs.Factory(dict)
    sizes: dict[str, str] = attrs.Factory(dict)
    not_told: str = ""


def measured(rows: int, projects: int, told: Callable[[str], None]) -> Measured:
    """A new database with so many jobs and events."""
    with filling.cluster() as cluster, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        told(f"{rows:,} jobs and events: filling")
        ids, seconds = filling.fill(cluster, Path(folder, "data"), rows, projects)
        told(f"  filled in {sum(seconds.values()):.0f} s; migrating")
        migrations, rewritten = migrating.migrated(cluster)
        found = Measured(rows, seconds, migrations, rewritten)
        work.give_token(cluster, ids)
        found.sizes = work.sizes(cluster)
        told("  lists")
        with _server(cluster, Path(folder)) as server:
            paths = lists.paths(cluster, ids, rows)
            for name, path in paths.items():
                found.milliseconds[name] = lists.milliseconds(server, path)
            found.milliseconds["a job handed out"] = work.hand_out(server)
        told("  plans")
        _explained(cluster, Path(folder), paths, ids["tiny_id"], found)
        told("  removals and vacuum")
        with _server(cluster, Path(folder)) as server:
            _removed(cluster, server, ids, found)
        found.milliseconds |= work.vacuumed(cluster)
    return found


@contextlib.contextmanager
def _server(cluster: Cluster, folder: Path) -> Iterator[Running]:
    with running(cluster, folder, DATABASE_STATEMENT_TIMEOUT=STATEMENT_TIMEOUT) as server:
        yield server


def _explained(
    cluster: Cluster, folder: Path, paths: Mapping[str, str], tiny_id: int, found: Measured
) -> None:
    try:
        plans.explain(cluster, on=True)
    except NotMeasured as reason:
        found.not_told = str(reason)
        return
    try:
        with _server(cluster, folder) as server:
            work.request(server, "GET", paths["jobs of a small project"])  # signs the token in
            for name, path in paths.items():

                def ask(path: str = path) -> None:
                    work.request(server, "GET", path)

                for _ in range(WARM):
                    ask()
                _note(found, name, plans.of(cluster.log, ask))
            asked = {"token": work.TOKEN, "system_id": "s_1"}
            done = plans.of(cluster.log, lambda: work.request(server, "POST", "jobs/request", asked))
            _note(found, "a job handed out", done)
            done = plans.of(cluster.log, lambda: work.removed(cluster, server, tiny_id))
            _note(found, "a tiny project removed", done)
    finally:
        plans.explain(cluster, on=False)


def _note(found: Measured, name: str, done: list[plans.Plan]) -> None:
    found.pages[name] = sum(plan.pages for plan in done)
    if whole := sorted({table for plan in done for table in plan.whole}):
        found.whole[name] = whole
    found.plans[name] = max(done, key=lambda plan: plan.pages).text if done else ""


def _removed(cluster: Cluster, server: Running, ids: Mapping[str, int], found: Measured) -> None:
    for name, project in (("2,000 jobs", ids["small_id"]), ("a tenth of all jobs", ids["doomed_id"])):
        answered, gone = work.removed(cluster, server, project)
        found.milliseconds[f"a project with {name} removed: the answer"] = answered
        found.milliseconds[f"a project with {name} removed: its jobs gone"] = gone
