"""docs/monitoring.md and the files beside it, compared with the existing metrics and settings."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from api_server.operations import watch
from api_server.operations.failing import KINDS
from api_server.web.context import SERVICES
from tests.support.forge import Forge
from tests.support.wire import running

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "monitoring.md").read_text()
ALERTS = yaml.safe_load((DOCS / "monitoring/alerts.yml").read_text())
DASHBOARD = json.loads((DOCS / "monitoring/dashboard.json").read_text())
_METRIC = re.compile(r"\b(?:(?:forgelet|edge|process|python|background|event_loop)_[a-z_]+|up)\b")
#: These depend on the platform, and have names of their own.
_OF_PYTHON = ("process_", "python_")


@pytest.fixture(scope="module")
async def known(
    forge: Forge, new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> set[str]:
    """The names of all samples of both processes, including those without a count so far."""
    async with running("edge", new_database, tmp_path_factory.mktemp("edge")) as edge:
        texts = [
            (await forge.anonymous.get(f"{base}/-/metrics")).body
            for base in (forge.base, f"http://127.0.0.1:{edge.port}")
        ]
    families = [family for text in texts for family in text_string_to_metric_families(text)]
    names = {
        "up",
        *(sample.name for family in families for sample in family.samples),
    }  # Prometheus's own first
    for family in families:
        if family.type == "histogram":
            names |= {f"{family.name}_{part}" for part in ("bucket", "count", "sum")}
        elif not family.samples:
            names.add(f"{family.name}_total" if family.type == "counter" else family.name)
    return names


def expressions() -> Iterator[tuple[str, str]]:
    """Return all expressions for Prometheus, with their sources."""
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']}", rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']}", target["expr"]


async def test_expressions_ask_for_what_there_is(known: set[str]) -> None:
    found = list(expressions())
    assert len(found) > 40
    for whose, expression in found:
        asked = set(_METRIC.findall(re.sub(r'"[^"]*"', "", expression)))
        assert asked, whose
        assert asked - known == set(), whose
        assert expression.count("(") == expression.count(")"), whose


def test_alerts_say_what_is_wrong_and_all_kinds_have_one() -> None:
    rules = [rule for group in ALERTS["groups"] for rule in group["rules"]]
    kinds = [kind for rule in rules for kind in re.findall(r'kind=~"([^"]*)"', rule["expr"])]
    assert sorted("|".join(kinds).split("|")) == sorted(KINDS)
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")


def test_the_page_asks_each_process_where_it_listens_and_the_rules_miss_each() -> None:
    unit = (DOCS / "systemd/forgelet-worker.service").read_text()
    (of_worker,) = re.findall(r"^Environment=FORGELET_API_OPERATIONS_PORT=(\d+)$", unit, re.MULTILINE)
    asked = dict(re.findall(r'job_name: (\S+).*\n.*\n.*targets: \["127.0.0.1:(\d+)"\]', TEXT))
    assert asked == {"forgelet": "8080", "forgelet-edge": "8081", "forgelet-worker": of_worker}
    (down,) = [expression for whose, expression in expressions() if whose == "alert ForgeletDown"]
    (jobs,) = re.findall(r'^up\{job=~"(.*)"\} == 0$', down)
    assert all(re.fullmatch(jobs, job) for job in asked)


async def test_the_table_names_all_metrics_and_no_others(known: set[str]) -> None:
    rows = [line for line in (TEXT + (DOCS / "edge.md").read_text()).splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in _METRIC.findall(row.split("|")[1])}
    there = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known if not name.startswith(_OF_PYTHON)}
    there = {name for name in there if not name.endswith("_created")} - {"up"}
    missing_of_histograms = {name for name in told if f"{name}_bucket" in known}
    told = {name for name in told if not name.startswith(_OF_PYTHON)}
    optional = {"edge_shared_usable"}  # of edges with a shared tier
    optional |= {"forgelet_database_replicas_ready", "forgelet_database_replica_reads_total"}  # with replicas
    assert told - optional == there | missing_of_histograms - optional


def _first_column(title: str) -> list[str]:
    section = TEXT.split(f"## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)


def test_kinds_and_parts_are_all_described(forge: Forge) -> None:
    assert re.findall(r"^\| `(\w+)` \|", TEXT.split("## Prometheus")[0], re.MULTILINE) == list(KINDS)
    assert set(_first_column("Readiness")) == {
        *watch.readiness_checks(forge.server.app[SERVICES]),
        "event_loop",
    }


def test_lines_that_are_described_are_written_somewhere() -> None:
    root = DOCS.parent
    source = "".join(
        file.read_text() for part in ("api_server", "common") for file in (root / part).rglob("*.py")
    )
    events: list[Any] = re.findall(r"`([^`]+)`", " ".join(_first_column_cells("The log")))
    assert len(events) > 8
    assert [event for event in events if f'"{event}"' not in source] == []


def _first_column_cells(title: str) -> list[str]:
    section = TEXT.split(f"## {title}\n")[1].split("\n## ")[0]
    return [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
