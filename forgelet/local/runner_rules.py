"""How a job is played: as its variables say, and otherwise as the first matching rule of the rule file says."""

import difflib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import attrs
import yaml

from api_server.ci.runners.job_response import FAILURE_REASONS
from common.config_errors import ConfigError

#: Prefix of the variables; a field's name in capitals follows.
PREFIX = "FORGELET_"
RESULTS = ("success", "failed", *sorted(FAILURE_REASONS))
LONGEST = 7 * 86_400
MOST_EXIT_CODE = 255


@attrs.frozen(kw_only=True)
class Played:
    """The outcome of a job. Artifacts are texts by path in the job's folder."""

    #: `success`, `failed`, or the reason for the failure.
    result: str = "success"
    #: The exit code of a job whose script fails; by default 1.
    exit_code: int | None = None
    #: The whole log. By default it is what a runner would write.
    log: str | None = None
    #: In seconds of the service's clock.
    duration: float = 0.0
    artifacts: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def failure_reason(self) -> str | None:
        """The reason for the failure, or None for success."""
        if self.result == "failed":
            return "script_failure"
        return None if self.result == "success" else self.result

    @property
    def script_exit_code(self) -> int | None:
        """The exit code of the script, or None if no script has failed."""
        if self.failure_reason != "script_failure":
            return None
        return 1 if self.exit_code is None else self.exit_code


def played(variables: Mapping[str, str], otherwise: Mapping[str, Any]) -> Played:
    """Return the outcome. Variables count more than `otherwise`, the values of a rule. Raise `ValueError` with a
    sentence about an invalid variable."""
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


#: The fields of an outcome and their checks, and how the texts of variables are read before the check.
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


#: The conditions of a rule, and the job's variable that each is compared with.
CONDITIONS = {
    "project": "CI_PROJECT_PATH",
    "name": "CI_JOB_NAME",
    "stage": "CI_JOB_STAGE",
    "ref": "CI_COMMIT_REF_NAME",
}
MOST_BYTES = 2**20


@attrs.frozen
class Rule:
    """Patterns by condition, in which `*` stands for anything, and values for fields of `Played`."""

    patterns: Mapping[str, str]
    values: Mapping[str, Any]

    def fits(self, variables: Mapping[str, str]) -> bool:
        return all(
            fnmatchcase(variables.get(CONDITIONS[condition], ""), pattern)
            for condition, pattern in self.patterns.items()
        )


@attrs.frozen
class Rules:
    """All rules of a file, in their order."""

    rules: tuple[Rule, ...] = ()

    def values_for(self, variables: Mapping[str, str]) -> Mapping[str, Any]:
        """Return the values of the first rule that fits a job with these variables; none if no rule fits."""
        return next((rule.values for rule in self.rules if rule.fits(variables)), {})


def read_rules(file: Path) -> Rules:
    """Read a rule file. Raise `ConfigError` with the number of the line."""
    try:
        text = file.read_text()
    except OSError as problem:
        raise ConfigError(f"The rules of the runner cannot be read: {problem.strerror}: {file}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: the rules of the runner are not UTF-8") from None
    if len(text) > MOST_BYTES:
        raise ConfigError(f"{file}: the rules of the runner have more than {MOST_BYTES} characters")
    try:
        return Rules(tuple(_rules(_Loader(text))))
    except _Wrong as problem:
        raise ConfigError(f"{file}:{problem.line}: {problem}") from None
    except yaml.MarkedYAMLError as problem:
        line = problem.problem_mark.line + 1 if problem.problem_mark else 1
        raise ConfigError(f"{file}:{line}: this is not valid YAML: {problem.problem}") from None
    except yaml.YAMLError as problem:
        raise ConfigError(f"{file}: this is not valid YAML: {problem}") from None


class _Loader(yaml.SafeLoader):
    """A YAML loader that keeps the position of values."""


class _Wrong(Exception):
    def __init__(self, sentence: str, node: yaml.Node) -> None:
        super().__init__(sentence)
        self.line = node.start_mark.line + 1


def _rules(loader: _Loader) -> Iterator[Rule]:
    document = loader.get_single_node()
    if document is None:
        return
    if not isinstance(document, yaml.SequenceNode):
        raise _Wrong("the rules have to be a list, each beginning with '- '", document)
    for item in document.value:
        if not isinstance(item, yaml.MappingNode):
            raise _Wrong("a rule has to be keys and values, such as 'name: deploy'", item)
        yield _rule(loader, item)


def _rule(loader: _Loader, item: yaml.MappingNode) -> Rule:
    patterns: dict[str, str] = {}
    values: dict[str, Any] = {}
    for key, node in item.value:
        name, value = str(key.value), loader.construct_object(node, deep=True)
        if name in patterns or name in values:
            raise _Wrong(f"{name} is there twice", key)
        if name in CONDITIONS:
            if not isinstance(value, str) or not value:
                raise _Wrong(
                    f"{name} has to be a text, in which * stands for anything; put it in quotes", node
                )
            patterns[name] = value
        elif name in FIELDS:
            try:
                values[name] = FIELDS[name](name, value)
            except ValueError as problem:
                raise _Wrong(str(problem), node) from None
        else:
            known = [*CONDITIONS, *FIELDS]
            near = difflib.get_close_matches(name, known, n=1) or [", ".join(known)]
            raise _Wrong(f"a rule has no {name[:50]!r}; did you mean {near[0]}?", key)
    return Rule(patterns, values)
