"""Time, randomness and outgoing HTTP come in through the application: ARCHITECTURE.md, held by the source itself."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path for part in ("common", "storage_edge") for path in (ROOT / part).rglob("*.py"))
#: What tells the time or makes something up, and where that may stand. Time-outs go by the event loop's clock, and in
#: threads by the monotonic one, which do not tell it.
TELLS_TIME = {f"time.{name}" for name in ("time", "time_ns", "localtime", "gmtime", "ctime", "strftime")}
SOURCES = TELLS_TIME | {"datetime", "random", "secrets", "uuid", "os.urandom", "os.getrandom"}
HANDED_IN_BY = {
    "storage_edge/app.py": {"time.time", "os.urandom"},
    # a line says when it was written, whatever clock an application is given
    "common/logs.py": {"datetime", "time.time_ns", "time.gmtime", "time.strftime"},
    "common/workers.py": {"os.urandom"},  # by the supervisor, which is no application
    "storage_edge/client/operators.py": {"time.gmtime", "time.strftime"},  # writes moments that it is given
}
#: Where the one session for outgoing requests is made.
SESSIONS = "storage_edge/cache/origin.py"


def _names(tree: ast.Module) -> Iterator[str]:
    """All modules that are imported, and all names with one dot that are imported or used."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{name.name}" for name in names)
            case ast.Attribute(value=ast.Name(id=owner), attr=attribute):
                yield f"{owner}.{attribute}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_only_the_application_asks_for_time_and_randomness(file: Path) -> None:
    place = str(file.relative_to(ROOT))
    names = set(_names(ast.parse(file.read_text())))
    assert names & SOURCES <= HANDED_IN_BY.get(place, set())
    assert "aiohttp.ClientSession" not in names or place == SESSIONS


@pytest.mark.parametrize(
    "source",
    ["import time\nnow = time.time()", "import datetime as dt", "from time import time_ns",
     "from secrets import token_hex", "import os\ndef f(): return os.urandom(4)", "from os import urandom"],
)  # fmt: skip
def test_the_rule_finds_what_breaks_it(source: str) -> None:
    assert set(_names(ast.parse(source))) & SOURCES
