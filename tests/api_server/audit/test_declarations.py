"""Every call that records an audit event says what the table of event types declares."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import api_server
from api_server.state.audit_event_types import EVENT_TYPES

_OWN = {"author", "entity", "target_id", "target_details", "message"}


def _calls() -> Iterator[tuple[str, ast.Call]]:
    root = Path(api_server.__file__).parent
    for file in sorted(root.rglob("*.py")):
        if "audit_trail.record" not in (text := file.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "audit_trail.record":
                yield f"{file.relative_to(root)}:{node.lineno}", node


def _literal(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


@pytest.mark.parametrize("call", [pytest.param(call, id=place) for place, call in _calls()])
def test_a_recorded_event_is_declared_with_its_details(call: ast.Call) -> None:
    keywords = {keyword.arg for keyword in call.keywords if keyword.arg}
    event_type = _literal(call.args[1])
    if event_type is None:  # composed names are met by the tests of what composes them
        return
    assert keywords - _OWN <= EVENT_TYPES[event_type].details
