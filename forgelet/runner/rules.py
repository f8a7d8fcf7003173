"""The rule file: a list of rules in YAML, of which the first that fits a job says how it is played."""

import difflib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import attrs
import yaml

from common.mistakes import Mistake
from forgelet.runner.playing import FIELDS

#: What a rule may ask of a job, and the variable of the job that answers.
CONDITIONS = {
    "project": "CI_PROJECT_PATH",
    "name": "CI_JOB_NAME",
    "stage": "CI_JOB_STAGE",
    "ref": "CI_COMMIT_REF_NAME",
}
MOST_BYTES = 2**20


@attrs.frozen
class Rule:
    """`patterns` by condition, in which `*` stands for anything; `values` are those of `Played`."""

    patterns: Mapping[str, str]
    values: Mapping[str, Any]

    def fits(self, variables: Mapping[str, str]) -> bool:
        return all(
            fnmatchcase(variables.get(CONDITIONS[condition], ""), pattern)
            for condition, pattern in self.patterns.items()
        )


@attrs.frozen
class Rules:
    """All of a file, in its order."""

    rules: tuple[Rule, ...] = ()

    def values_for(self, variables: Mapping[str, str]) -> Mapping[str, Any]:
        """What the first rule says that fits a job with these variables; nothing where none does."""
        return next((rule.values for rule in self.rules if rule.fits(variables)), {})


def read_rules(file: Path) -> Rules:
    """Raises `Mistake`, which names the line."""
    try:
        text = file.read_text()
    except OSError as problem:
        raise Mistake(f"The rules of the runner cannot be read: {problem.strerror}: {file}") from None
    except UnicodeDecodeError:
        raise Mistake(f"{file}: the rules of the runner are not UTF-8") from None
    if len(text) > MOST_BYTES:
        raise Mistake(f"{file}: the rules of the runner have more than {MOST_BYTES} characters")
    try:
        return Rules(tuple(_rules(_Loader(text))))
    except _Wrong as problem:
        raise Mistake(f"{file}:{problem.line}: {problem}") from None
    except yaml.MarkedYAMLError as problem:
        line = problem.problem_mark.line + 1 if problem.problem_mark else 1
        raise Mistake(f"{file}:{line}: this is not valid YAML: {problem.problem}") from None
    except yaml.YAMLError as problem:
        raise Mistake(f"{file}: this is not valid YAML: {problem}") from None


class _Loader(yaml.SafeLoader):
    """Tells where a value stands."""


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
