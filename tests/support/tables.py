"""Tables of cases beside their tests: `test_language.yml` has the tables of `test_language.py` by their names."""

from pathlib import Path
from typing import Any

import yaml


def tables_of(file: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of each table that belongs to the test file."""
    tables = yaml.safe_load(Path(file).with_suffix(".yml").read_text())
    return {name: [tuple(row) for row in rows] for name, rows in tables.items()}
