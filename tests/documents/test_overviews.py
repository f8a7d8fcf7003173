"""Documents for newcomers: ARCHITECTURE.md has every folder, CHANGELOG.md each change once."""

import re
from collections import Counter

import pytest

from tests.support.checkout import CHECKOUT

#: Parts of the tree whose folders are all described.
PARTS = ("api_server", "storage_edge", "forgelet", "scripts")


@pytest.mark.parametrize("part", PARTS)
def test_every_folder_of_code_is_in_the_architecture(part: str) -> None:
    told = (CHECKOUT / "ARCHITECTURE.md").read_text()
    folders = {file.parent.name for file in (CHECKOUT / part).glob("*/*.py")}
    assert folders
    assert sorted(name for name in folders if not re.search(rf"\b{name}/", told)) == []


def test_each_change_is_told_once() -> None:
    text = (CHECKOUT / "CHANGELOG.md").read_text()
    entries = re.findall(r"^- .+(?:\n  .+)*", text, re.MULTILINE)
    changes = Counter(" ".join(entry.split()) for entry in entries)
    assert changes
    assert [change for change, times in changes.items() if times > 1] == []
