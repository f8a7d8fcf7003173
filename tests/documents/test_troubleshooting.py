"""Every message with which a program refuses to start, and every logged warning or error, is in
docs/troubleshooting.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = CHECKOUT / "docs/troubleshooting.md"
_RAISED = {"ConfigError", "UnsuitableDatabase", "UnusableKey", "CannotStart"}
_LOGGED = {"warning", "error", "exception", "critical"}
#: Messages of commands about their arguments contain the remedy, and are not about a start.
_COMMANDS = ("forgelet/backup/", "forgelet/commands/", "forgelet/local/runner.py")
#: The only command that is a start.
_START = "forgelet/commands/up.py"
#: A library that tests load: its errors repeat the message and the log of the program that it has started.
_LIBRARIES = ("forgelet/testing/",)
#: Shorter parts of a sentence would be found anywhere.
_CHARACTERS = 10


def _texts(node: ast.expr) -> list[str]:
    """Return the constant parts of a text."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=values):
            return [part.value for part in values if isinstance(part, ast.Constant)]
        case ast.BinOp(left=left, right=right):
            return [*_texts(left), *_texts(right)]
    return []


def _said(file: Path) -> Iterator[tuple[str, ...]]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func)
            logs = re.fullmatch(r"_?\w*log\w*\.(\w+)|_throttled\.(\w+)", called)
            level = (logs[1] or logs[2]) if logs else None
            if called in _RAISED or level in _LOGGED:
                parts = (re.sub(r"\s+", " ", text).strip(" .:") for text in _texts(node.args[0]))
                if kept := tuple(part for part in parts if len(part) >= _CHARACTERS):
                    yield kept


def test_everything_is_explained() -> None:
    page = PAGE.read_text().replace("`", "")
    said = {
        (str(file.relative_to(CHECKOUT)), part.replace("`", ""))
        for folder in ("api_server", "common", "storage_edge", "forgelet")
        for file in (CHECKOUT / folder).rglob("*.py")
        if (name := str(file.relative_to(CHECKOUT))) == _START or not name.startswith(_COMMANDS + _LIBRARIES)
        for parts in _said(file)
        for part in parts
    }
    assert len(said) > 80
    assert sorted(one for one in said if one[1] not in page) == []
