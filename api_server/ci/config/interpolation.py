"""Interpolation of `$[[ inputs.name ]]` in the content of a file.

As in GitLab 17, blocks are replaced in the keys and values of the parsed file, before its includes are read.
A block that is a whole value keeps the type of the inserted value; inside a longer text it becomes text. An
array inserted as an item of an array becomes several items. Inserted values are never searched for further
blocks.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import re2
from attrs import define, field

from api_server.ci.config.errors import Budget, CiConfigError
from api_server.ci.config.inputs import declared, refused, resolve, spelled
from api_server.ci.config.variables import MAX_EXPANDED, Variable

NOT_DECLARED = "Given inputs not defined in the `spec` section of the included configuration file"
MAX_BLOCKS = 10_000
MAX_FUNCTIONS = 3
#: Maximum characters of a text with blocks, and maximum bytes of the name of a value in a block.
MAX_TEXT = 1024 * 1024
MAX_ACCESS = 1024
MAX_ACCESS_PARTS = 5
#: An input, or what is in one, with the numbers of items: `list[0][1]`.
_ITEM = re.compile(r"([^\[\]]+)((?:\[\d{1,9}\]){1,5})", re.ASCII)
_START = "$[["
_BLOCK = re2.compile(rb"\$\[\[\s*(\S.*?\S)\s*\]\]")
#: Blocks that are left for a later step: those of `parallel:matrix`.
_LATER = "matrix"

_TRUNCATE = re.compile(r"truncate\(\s*(\d+)\s*,\s*(\d+)\s*\)?", re.ASCII)
_REFERENCE = re.compile(r"\$([A-Za-z_]\w*)|\$\{([A-Za-z_]\w*)\}|%([A-Za-z_]\w*)%", re.ASCII)
_UNSAFE = re.compile(r"[^A-Za-z0-9_\-.,:+/@\n]")
#: The digits of the numbers of `truncate` that are read.
_MAX_DIGITS = 9


def posix_escape(text: str) -> str:
    """Return the text as one word of a POSIX shell, like Ruby's `Shellwords`."""
    return _UNSAFE.sub(r"\\\g<0>", text).replace("\n", "'\n'") if text else "''"


def _truncate(text: str, offset: str, length: str) -> str:
    start, size = (
        int(number[-_MAX_DIGITS:]) if len(number) <= _MAX_DIGITS else 10**_MAX_DIGITS
        for number in (offset, length)
    )
    return text[start : start + size]


def _inner(value: Any, name: str) -> Any:
    if not isinstance(value, Mapping) or name not in value:
        raise CiConfigError(f"unknown interpolation key: `{name}`")
    return value[name]


def _item(value: Any, index: int, access: str) -> Any:
    if not isinstance(value, list):
        raise CiConfigError(f"cannot index into non-array value at [{index}] in `{access}`")
    if index >= len(value):
        raise CiConfigError(f"array index {index} out of bounds (size: {len(value)}) in `{access}`")
    return value[index]


@define
class Interpolation:
    """Replaces the blocks of one file. `values` are the values that they may name, by context: `inputs`,
    `component`.

    `variables` are for `expand_vars`; the values of masked ones never appear, not even in errors.
    """

    values: Mapping[str, Mapping[str, Any]]
    variables: Mapping[str, Variable]
    budget: Budget
    _cache: dict[bytes, Any] = field(factory=dict)

    def replaced(self, value: Any) -> Any:
        """Return a copy of the value with all blocks replaced, also those in keys. Raise CiConfigError."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {spelled(self.replaced(key)): self.replaced(inner) for key, inner in value.items()}
        if isinstance(value, list):
            items: list[Any] = []
            for item in value:
                new = self.replaced(item)
                items += new if isinstance(item, str) and isinstance(new, list) else [new]
            return items
        return value

    def _text(self, text: str) -> Any:
        if _START not in text:
            return text
        if len(text) > MAX_TEXT:
            raise CiConfigError("config node too large")
        data = text.encode()
        parts: list[str] = []
        position = 0
        for match in _BLOCK.finditer(data):
            value = self._block(match[0], match[1].decode())
            if match.span() == (0, len(data)):
                self.budget.spend_on(value)
                return value
            parts += (data[position : match.start()].decode(), self._part(value))
            position = match.end()
        return "".join((*parts, data[position:].decode()))

    def _part(self, value: Any) -> str:
        self.budget.spend_on(value)
        return spelled(value)

    def _block(self, block: bytes, data: str) -> Any:
        if block not in self._cache:
            if len(self._cache) >= MAX_BLOCKS:
                raise CiConfigError("too many interpolation blocks")
            parts = data.split("|")
            while len(parts) > 1 and not parts[-1]:
                parts.pop()
            access, *functions = (part.strip() for part in parts)
            later = access.split(".")[0] == _LATER
            self._cache[block] = block.decode() if later else self._evaluated(access, functions)
        return self._cache[block]

    def _evaluated(self, access: str, functions: list[str]) -> Any:
        value = self._value_of(access)
        if len(functions) > MAX_FUNCTIONS:
            raise CiConfigError("too many functions in interpolation block")
        applied = [self._function(function) for function in functions]
        if unknown := [text for text, called in zip(functions, applied, strict=True) if called is None]:
            hint = "check that the function name, arguments, and types are correct"
            raise refused([f"no function matching `{text}`: {hint}" for text in unknown])
        for called in applied:
            if called is not None:
                value = called(value)
        return value

    def _value_of(self, access: str) -> Any:
        names = access.split(".", MAX_ACCESS_PARTS - 1)
        errors = []
        if len(names) <= 1:
            errors.append("invalid interpolation access pattern")
        if len(access.encode()) > MAX_ACCESS:
            errors.append("maximum interpolation expression size exceeded")
        if errors:
            raise refused(errors)
        value: Any = self.values
        for name in names:
            item = _ITEM.fullmatch(name)
            value = _inner(value, name if item is None else item[1])
            for index in re.findall(r"\d+", item[2]) if item is not None else ():
                value = _item(value, int(index), access)
        return value

    def _function(self, text: str) -> Callable[[Any], Any] | None:
        """Return the function that `text` calls, or None if it is unknown."""
        if truncate := _TRUNCATE.fullmatch(text):
            return self._of_text("truncate", lambda value: _truncate(value, truncate[1], truncate[2]))
        if text == "expand_vars":
            return self._of_text(text, self._expanded)
        return self._of_text(text, posix_escape) if text == "posix_escape" else None

    def _of_text(self, name: str, function: Callable[[str], str]) -> Callable[[Any], str]:
        def called(value: Any) -> str:
            if not isinstance(value, str):
                problem = f"invalid input type: {name} can only be used with string inputs"
                raise CiConfigError(f"error in `{name}` function: {problem}")
            self.budget.spend(characters=len(value))
            return function(value)

        return called

    def _expanded(self, text: str) -> str:
        """Return the text with its variables replaced. References in their values are not expanded."""
        size = len(text)

        def replace(match: re.Match[str]) -> str:
            nonlocal size
            variable = self.variables.get(match[1] or match[2] or match[3])
            if variable is None:
                return match[0]
            size += len(variable.value)
            problem = (
                "masked variables cannot be expanded"
                if variable.masked
                else f"more than {MAX_EXPANDED} characters"
                if size > MAX_EXPANDED
                else None
            )
            if problem is not None:
                raise CiConfigError(f"error in `expand_vars` function: variable expansion error: {problem}")
            return variable.value

        return _REFERENCE.sub(replace, text)


def interpolated(
    header: Mapping[str, Any] | None,
    content: dict[str, Any],
    arguments: Mapping[str, Any],
    variables: Mapping[str, Variable],
    component: Mapping[str, str | None],
    budget: Budget,
) -> dict[str, Any]:
    """Return the content of a file with its inputs replaced; `header` is None for a file without one. Raise
    CiConfigError.

    `component` holds the values that a component may request about itself; it is empty for other files.
    """
    if header is None:
        if arguments:
            raise CiConfigError(NOT_DECLARED)
        return content
    inputs = resolve(declared(header), arguments, budget)
    requested = (header.get("spec") or {}).get("component") or ()
    values = {
        "inputs": inputs,
        "component": {name: value for name, value in component.items() if name in requested},
    }
    replaced: dict[str, Any] = Interpolation(values, variables, budget).replaced(content)
    return replaced
