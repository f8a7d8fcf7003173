"""All rows, by their names."""

import importlib

from scripts.bench.runs import Row

#: Modules of `rows/`, in the order in which the table shows them, with their titles.
GROUPS = {
    "lists": "Lists of the API",
    "single_reads": "Single resources",
    "edge": "The edge",
    "git": "git over HTTP",
    "runners": "Runners",
    "audit": "Audit trail",
    "deliveries": "Deliveries of status checks",
    "mirrors": "Push mirrors",
    "processes": "Start-up and memory",
    "resets": "Resets of a server for tests",
}


def all_rows() -> dict[str, tuple[str, Row]]:
    """Name -> (title of its group, row)."""
    return {
        row.name: (title, row)
        for module, title in GROUPS.items()
        for row in importlib.import_module(f"scripts.bench.rows.{module}").ROWS
    }
