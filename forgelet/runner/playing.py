"""How a job is to be played: what its variables say, then what the first rule says that fits it."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from api_server.ci.runners.job_response import FAILURE_REASONS

#: A variable is one of these in capitals, behind this.
PREFIX = "FORGELET_"
RESULTS = ("success", "failed", *sorted(FAILURE_REASONS))
LONGEST = 7 * 86_400
MOST_EXIT_CODE = 255


@attrs.frozen(kw_only=True)
class Played:
    """What becomes of a job. Artifacts are texts by their paths in the job's folder."""

    #: `success`, `failed`, or the reason for which it fails.
    result: str = "success"
    #: Of a job that fails by its script; 1 where nothing else is said.
    exit_code: int | None = None
    #: The whole log; without one, that which a runner would begin with.
    log: str | None = None
    #: Seconds of the service's clock.
    duration: float = 0.0
    artifacts: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def failure_reason(self) -> str | None:
        """None for success."""
        if self.result == "failed":
            return "script_failure"
        return None if self.result == "success" else self.result

    @property
    def script_exit_code(self) -> int | None:
        """None where no script has failed."""
        if self.failure_reason != "script_failure":
            return None
        return 1 if self.exit_code is None else self.exit_code


def played(variables: Mapping[str, str], otherwise: Mapping[str, Any]) -> Played:
    """`otherwise` are the values of a rule. Raises ValueError with a sentence about a variable."""
    values = dict(otherwise)
    for name, check in FIELDS.items():
        variable = PREFIX + name.upper()
        if text := variables.get(variable):
            values[name] = check(variable, _READ.get(name, _as_it_is)(variable, text))
    return Played(**values)


def _result(name: str, value: Any) -> str:
    if value not in RESULTS:
        raise ValueError(f"{name} has to be success, failed or a reason to fail: {', '.join(RESULTS[2:])}")
    return str(value)


def _exit_code(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST_EXIT_CODE:
        raise ValueError(f"{name} has to be a whole number from 0 to {MOST_EXIT_CODE}")
    return value


def _log(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} has to be a text")  # noqa: TRY004 - of what somebody has written
    return value


def _duration(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= LONGEST:
        raise ValueError(f"{name} has to be a number of seconds from 0 to {LONGEST}")
    return float(value)


def _artifacts(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError(f'{name} has to be texts by their paths, such as {{"report.xml": "<testsuite/>"}}')
    for path in value:
        if not isinstance(path, str) or path.startswith("/") or {"", ".", ".."} & set(path.split("/")):
            raise ValueError(f"{name}: {str(path)[:100]!r} is no path of a file in the job's folder")
    return value


def _as_it_is(_name: str, text: str) -> str:
    return text


def _integer(_name: str, text: str) -> Any:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text


def _number(_name: str, text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f"{name} is not valid JSON") from None


#: What may be said of a job, and what looks at it; and how the texts of variables are read before that.
FIELDS: Mapping[str, Callable[[str, Any], Any]] = {
    "result": _result,
    "exit_code": _exit_code,
    "log": _log,
    "duration": _duration,
    "artifacts": _artifacts,
}
_READ: Mapping[str, Callable[[str, str], Any]] = {
    "exit_code": _integer,
    "duration": _number,
    "artifacts": _json,
}
