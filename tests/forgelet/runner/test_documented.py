"""What docs/testing.md shows of rules and failures is what is taken."""

import json
import re
from pathlib import Path

from api_server.testing.failures import _FIELDS, ordered
from api_server.testing.journal import MOST_BYTES, MOST_OF_BODY, MOST_REQUESTS
from forgelet.runner.built_in import MOST_JOBS
from forgelet.runner.rules import FIELDS, PREFIX, read_rules
from tests.support.checkout import CHECKOUT

PAGE = (CHECKOUT / "docs/testing.md").read_text()


def shown(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_rules(tmp_path: Path) -> None:
    (example,) = [block for block in shown("yaml") if "exit_code" in block]
    file = tmp_path / "rules.yml"
    file.write_text(example)
    assert len(read_rules(file).rules) == 2
    for name in FIELDS:
        assert f"`{PREFIX}{name.upper()}`, `{name}`" in PAGE
    assert f"up to {MOST_JOBS} side by side" in PAGE


def test_the_failures() -> None:
    (example,) = [json.loads(block) for block in shown("json") if '"cut"' in block]
    assert [ordered(one)["times"] for one in example] == [1, 3, 1, 1]
    for name in _FIELDS:
        assert f"`{name}`" in PAGE


def test_the_bounds_of_the_journal() -> None:
    said = " ".join(PAGE.split())
    assert f"The last {MOST_REQUESTS:,} requests are kept, of {MOST_BYTES >> 20} MiB" in said
    assert f"more than {MOST_OF_BODY >> 10} KiB" in said
