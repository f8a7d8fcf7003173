"""A copy of the checkout, for tests of commands."""

from pathlib import Path

import pytest

from tests.scripts.copied import Copy


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    path = tmp_path / "check out"
    path.mkdir()
    return Copy(path)
