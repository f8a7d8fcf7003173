"""CI variables: their class, precedence, and the expansion of `$NAME` and `${NAME}` in each other."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attrs import asdict, evolve, frozen

#: Maximum characters that expanding all variables of a job may produce; values beyond it are not expanded.
MAX_EXPANDED = 1024 * 1024

_REFERENCE = re.compile(r"\$\$|\$(?P<plain>[A-Za-z_]\w*)|\$\{(?P<braced>[A-Za-z_]\w*)\}", re.ASCII)


@frozen
class Variable:
    """One variable in the runner's terms. The value of a `raw` one is never expanded, that of a `file` one
    becomes a path."""

    key: str
    value: str
    public: bool = True
    masked: bool = False
    file: bool = False
    raw: bool = False

    def for_runner(self) -> dict[str, Any]:
        return asdict(self)


def overlay(*layers: Iterable[Variable]) -> list[Variable]:
    """Return all layers, weakest first, as one list; of each key the last value counts, at the position of
    the first."""
    merged: dict[str, Variable] = {}
    for layer in layers:
        merged.update((variable.key, variable) for variable in layer)
    return list(merged.values())


def values(variables: Iterable[Variable]) -> dict[str, str]:
    return {variable.key: variable.value for variable in variables}


def expand(text: str, values: Mapping[str, str]) -> str:
    """Return `text` with `$NAME` and `${NAME}` replaced, unknown names by nothing, and `$$` by one dollar
    sign.

    Text that would grow beyond MAX_EXPANDED is returned unchanged.
    """
    return _expanded(text, values, lambda name, _: "" if name else "$")


def expand_known(text: str, values: Mapping[str, str]) -> str:
    """Expand like `expand`, but leave unknown names and `$$` unchanged."""
    return _expanded(text, values, lambda _, written: written)


def _expanded(text: str, values: Mapping[str, str], unknown: Callable[[str | None, str], str]) -> str:
    if _size(text, values) > MAX_EXPANDED:
        return text

    def replace(match: re.Match[str]) -> str:
        name = match["plain"] or match["braced"]
        return values[name] if name and name in values else unknown(name, match[0])

    return _REFERENCE.sub(replace, text)


def expand_all(variables: Iterable[Variable]) -> list[Variable]:
    """Return the variables with references between them replaced, as far as the server does this for a
    runner.

    Unknown names, `$$`, and references to raw and file variables are left to the runner. Variables that refer
    to each other in a cycle are not expanded.
    """
    by_key = {variable.key: variable for variable in variables}
    templates = {
        key: variable for key, variable in by_key.items() if "$" in variable.value and not variable.raw
    }
    if not templates:
        return list(by_key.values())
    expanded = {key: variable.value for key, variable in by_key.items() if key not in templates}
    remaining = MAX_EXPANDED
    for key in _dependencies_first(templates):
        value = templates[key].value
        size = _size(value, expanded)
        expanded[key] = value if size > remaining else _expand_done(value, by_key, expanded)
        remaining -= min(size, remaining)
    return [
        evolve(variable, value=expanded[key]) if key in templates and key in expanded else variable
        for key, variable in by_key.items()
    ]


def forwarded(
    own: Iterable[Variable], weaker: Iterable[Variable], stronger: Iterable[Variable]
) -> list[Variable]:
    """Return a bridge's `own` variables for the pipeline that it starts, with references replaced by their
    values here. References to file variables and unknown names are left to that pipeline.

    Text that would grow beyond MAX_EXPANDED is returned unchanged.
    """
    variables = list(own)
    values = {
        variable.key: variable.value
        for variable in expand_all(overlay(weaker, variables, stronger))
        if not variable.file
    }
    remaining = MAX_EXPANDED
    expanded = []
    for variable in variables:
        size = _size(variable.value, values)
        expanded.append(
            variable
            if variable.raw or size > remaining
            else evolve(variable, value=expand_known(variable.value, values))
        )
        remaining -= min(size, remaining)
    return expanded


def _size(text: str, values: Mapping[str, str]) -> int:
    return len(text) + sum(len(values.get(name, "")) for name in references(text))


def references(text: str) -> Iterator[str]:
    for match in _REFERENCE.finditer(text):
        if name := match["plain"] or match["braced"]:
            yield name


def _expand_done(text: str, by_key: Mapping[str, Variable], expanded: Mapping[str, str]) -> str:
    def replace(match: re.Match[str]) -> str:
        target = by_key.get(match["plain"] or match["braced"] or "")
        if target is None or target.raw or target.file:
            return match[0]
        return expanded.get(target.key, match[0])

    return _REFERENCE.sub(replace, text)


def _dependencies_first(templates: Mapping[str, Variable]) -> Iterator[str]:
    """Yield the keys in an order in which each comes after those it refers to, without the members of
    cycles."""
    waiting = {
        key: {name for name in references(variable.value) if name in templates}
        for key, variable in templates.items()
    }
    users: dict[str, list[str]] = {}
    for key, names in waiting.items():
        for name in names:
            users.setdefault(name, []).append(key)
    ready = [key for key, names in waiting.items() if not names]
    while ready:
        key = ready.pop()
        yield key
        for user in users.get(key, ()):
            waiting[user].discard(key)
            if not waiting[user]:
                ready.append(user)
