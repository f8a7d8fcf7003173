"""The map of docs/security.md: no cell is empty, and its settings, attacks and places exist. The test of links checks
its tests."""

import re

import attrs
import pytest

from api_server.settings import Settings as ApiSettings
from scripts.abuse.attacks import ATTACKS
from scripts.abuse.inputs import INPUTS
from storage_edge.settings import Settings as EdgeSettings
from tests.support.checkout import CHECKOUT

PAGE = (CHECKOUT / "docs/security.md").read_text()
MAP = PAGE.split("### Bounds on input\n")[1]
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in MAP.splitlines()
    if line.startswith("| ") and not line.startswith("| Where")
]
COLUMNS = 9
_TEST = re.compile(r"`tests/[\w/]+(?:\.py)?(?:::\w+)?`")
#: Paths of code that a cell describes.
_PATH = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)`")


@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]}: {row[1]}" for row in ROWS])
def test_a_row_of_the_map_is_complete(row: list[str]) -> None:
    assert len(row) == COLUMNS
    assert all(row), row
    assert _TEST.search(row[-1]), "a test holds it"
    assert [cell for cell in row if cell == "-"] == [], "a reason follows"


def test_settings_and_attacks_of_the_map_are_there() -> None:
    settings = {field.name for kind in (ApiSettings, EdgeSettings) for field in attrs.fields(kind)}
    words = {
        word for row in ROWS for cell in row[2:-1] for word in re.findall(r"`([a-z]+(?:_[a-z]+)+)`", cell)
    }
    assert len(words) > 40
    assert sorted(words - settings - {"suite_error"}) == []
    attacks = {word for row in ROWS for word in re.findall(r"`([a-z]+(?:-[a-z]+)*)`", row[-1])}
    assert sorted(attacks - set(ATTACKS)) == []
    assert sorted(set(INPUTS) - attacks) == []


def test_places_of_the_map_are_there() -> None:
    named = {path for row in ROWS for path in _PATH.findall(row[0])}
    roots = (CHECKOUT, CHECKOUT / "api_server", CHECKOUT / "storage_edge")
    assert sorted(path for path in named if not any((root / path).exists() for root in roots)) == []
