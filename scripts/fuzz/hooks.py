"""Hooks of schemathesis: requests are about existing entities, have the credentials that they need, and begin in the
same state. The module runs in the environment of schemathesis, so it imports only those modules of ours that import
nothing else."""

import atexit
import collections
import json
import os
import re
import urllib.request
from pathlib import Path
from typing import Any

import schemathesis
from schemathesis.core.parameters import ParameterLocation

from scripts.fuzz import leniency

_world = json.loads(Path(os.environ["FORGELET_FUZZ_WORLD"]).read_text())
_VALUES: dict[str, Any] = _world["values"]
_FIELDS: dict[str, Any] = _world["fields"]
_TOKENS: dict[str, str] = _world["tokens"]
_READS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class _Progress:
    """The state of the run so far."""

    def __init__(self) -> None:
        self.is_dirty = False
        self.cases = 0
        self.answers: collections.Counter[str] = collections.Counter()

    def begin(self, case: Any) -> None:
        is_followup = case.meta is not None and case.meta.phase.name == "stateful"
        if self.is_dirty and not is_followup:
            _restore()
            self.is_dirty = False
        self.cases += 1
        self.is_dirty |= case.method.upper() not in _READS

    def note(self, case: Any, status: int) -> None:
        self.answers[f"{case.operation.label} {status}"] += 1

    def write(self) -> None:
        operations = {label.rpartition(" ")[0] for label in self.answers}
        counts = {"cases": self.cases, "operations": len(operations), "answers": self.answers}
        Path(os.environ["FORGELET_FUZZ_COUNTS"]).write_text(json.dumps(counts))


_progress = _Progress()
atexit.register(_progress.write)


@schemathesis.hook
def before_load_schema(context: Any, raw_schema: dict[str, Any]) -> None:
    leniency.describe(raw_schema)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    _progress.begin(case)
    if case.meta is None or not case.meta.is_negative_at(ParameterLocation.PATH):
        for name, generated in (case.path_parameters or {}).items():
            value = _value(case.operation.path, name)
            if value is not None:
                case.path_parameters[name] = str(value) if isinstance(generated, str) else value
    if case.media_type == "application/json" and isinstance(case.body, (dict, list)):
        case.body = _as_written(case.body)
    for parameters, location in ((case.query, ParameterLocation.QUERY), (case.body, ParameterLocation.BODY)):
        if not isinstance(parameters, dict) or (case.meta is not None and case.meta.is_negative_at(location)):
            continue
        if "token" in parameters:
            parameters["token"] = _token_in_parameters(case.operation.path)
        for name in parameters.keys() & _FIELDS.keys() if _progress.cases % 2 else ():
            parameters[name] = _FIELDS[name]


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    _progress.note(case, response.status_code)


@schemathesis.hook
def filter_failure(context: Any, failure: Any, case: Any, response: Any) -> bool:
    return leniency.counts(type(failure).__name__, case, response.status_code, response.content)


@schemathesis.auth()
class Credentials:
    """Credentials of the first kind that the operation's description names."""

    def get(self, case: Any, context: Any) -> tuple[str, str] | None:
        security = context.operation.definition.raw.get("security") or [{}]
        kind = next(iter(security[0]), None)
        return (kind, _TOKENS[kind]) if kind else None

    def set(self, case: Any, data: tuple[str, str], context: Any) -> None:
        kind, token = data
        case.headers = {**(case.headers or {}), kind.replace("_", "-").upper(): token}


def _as_written(sent: Any) -> Any:
    """Return numbers as people write them: 20.0 is an integer in JSON Schema, but not for the service."""
    if isinstance(sent, dict):
        return {name: _as_written(value) for name, value in sent.items()}
    if isinstance(sent, list):
        return list(map(_as_written, sent))
    return int(sent) if isinstance(sent, float) and sent.is_integer() else sent


def _value(path: str, name: str) -> Any:
    """Return the value of the parameter in the path, that of the longest known piece of the path. Return None if no
    piece matches."""
    fitting = [piece for piece in _VALUES if piece in path and re.findall(r"{(\w+)}", piece)[-1] == name]
    return _VALUES[max(fitting, key=len)] if fitting else None


def _token_in_parameters(path: str) -> str:
    if "/trigger/" in path:
        return _TOKENS["trigger"]
    return _TOKENS["job_token" if path.startswith("/jobs/{id}") else "runner_token"]


def _restore() -> None:
    body = json.dumps({"id": _world["snapshot"]}).encode()
    request = urllib.request.Request(f"{_world['url']}/-/testing/restore", body, method="POST")
    with _direct.open(request, timeout=30):
        pass
