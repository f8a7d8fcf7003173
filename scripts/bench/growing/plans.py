"""What PostgreSQL did for a request: its plans, by auto_explain, and what they read."""

import re
from collections.abc import Callable
from pathlib import Path

import attrs

from forgelet.local.embedded_postgres import DATABASE, Cluster
from scripts.bench.growing.filling import superuser
from scripts.bench.harness.rows import NotMeasured

#: Tables that grow, partitions of events among them.
GROWING = r"(?:jobs|pipelines|job_logs|job_artifacts|audit_chain|audit_events\w*)"
#: A node, and how many rows it has left out. Tables, and partitions, that are small are read so with reason.
_WHOLE = re.compile(
    rf"Seq Scan on ({GROWING})\b.*\(actual rows=(\d+)(?:.*\n(?:\t +Filter.*\n)?\t +Rows Removed by Filter: (\d+))?"
)
_SMALL = 1_000
_BUFFERS = re.compile(r"Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?")


@attrs.frozen
class Plan:
    """`pages`: of 8 KiB, read from memory or disk; `whole`: tables that grow, and that it read from end to end."""

    text: str
    pages: int

    @property
    def whole(self) -> list[str]:
        return [
            table
            for table, given, left_out in _WHOLE.findall(self.text)
            if int(given) + int(left_out or 0) > _SMALL
        ]


def explain(cluster: Cluster, *, on: bool) -> None:
    """Whether connections from now on write the plans of all that they run to PostgreSQL's log."""
    with superuser(cluster) as cursor:
        if not on:
            cursor.execute(f"ALTER DATABASE {DATABASE} RESET ALL")
            return
        try:
            cursor.execute("LOAD 'auto_explain'")
        except Exception as problem:
            raise NotMeasured(
                f"auto_explain does not belong to the PostgreSQL that is used: {problem}"
            ) from None
        for setting, value in (
            ("session_preload_libraries", "auto_explain"),
            ("auto_explain.log_min_duration", "0"),
            ("auto_explain.log_analyze", "on"),
            ("auto_explain.log_buffers", "on"),
            ("auto_explain.log_timing", "off"),
            ("auto_explain.log_nested_statements", "on"),
        ):
            cursor.execute(f"ALTER DATABASE {DATABASE} SET {setting} = '{value}'")


def of(log: Path, work: Callable[[], object]) -> list[Plan]:
    """Of all that was run meanwhile."""
    before = log.stat().st_size
    work()
    with log.open("rb") as file:
        file.seek(before)
        text = file.read().decode(errors="replace")
    return read(text)


def read(log: str) -> list[Plan]:
    """Plans in PostgreSQL's log, statement included."""
    found = re.findall(r"LOG:  duration: [\d.]+ ms  plan:\n((?:\t.*\n)*)", log)
    return [Plan(text, _pages(text)) for text in found]


def _pages(text: str) -> int:
    """The first line about buffers is that of the uppermost node, with all below it."""
    first = _BUFFERS.search(text)
    return sum(int(number or 0) for number in first.groups()) if first else 0
