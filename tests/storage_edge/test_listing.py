"""What a page of what is stored costs, by the steps that SQLite takes for it."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_edge.storage import store
from storage_edge.storage.index import _connect


@pytest.fixture
def index(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(_connect(tmp_path / "index", schema=True)) as index:
        yield index


def test_a_page_in_the_midst_of_many_costs_as_much_as_the_first(index: sqlite3.Connection) -> None:
    index.execute("BEGIN")
    for number in range(3000):
        index.execute("INSERT INTO bodies VALUES (?, 5, 1.0)", (str(number),))
        index.execute(
            "INSERT INTO responses (target, selected, digest, epoch, response, checksum)"
            " VALUES (?, '[]', ?, 0, '{}', 0)",
            (f"http://o/{number:04}", str(number)),
        )
    index.execute("COMMIT")
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    def cost(prefix: str, after: str) -> int:
        nonlocal steps
        steps = 0
        assert len(store.index_page(index, prefix, (after, "[]" if after else ""), 10)) == 10
        return steps

    index.set_progress_handler(step, 10)
    first = cost("", "")
    for prefix, after in (
        ("http://o/29", ""),
        ("http://o/", "http://o/2900"),
        ("http://o/29", "http://o/2950"),
    ):
        assert cost(prefix, after) <= 2 * first


def test_targets_in_memory_come_in_order_from_the_last_one_on() -> None:
    targets = ["b", "a/2", "a/1", "a/4", "a/3"]
    assert store.first_targets(targets, "a/", ("a/2", "[]"), 1) == ["a/2", "a/3"]
