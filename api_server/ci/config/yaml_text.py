"""YAML text to plain values (dict, list, str, int, bool, None, Reference), bounded against hostile text.

What differs from a plain safe loader: numbers with a fraction and dates stay the text that the author wrote
(`1.10` is a version, not 1.1), keys are always text, those that Ruby reads as symbols (`:job`) without the colon; of a
key that is given twice the last one counts, foreign tags are refused.
"""

import re
from collections.abc import Callable
from typing import Any

import yaml
from attrs import frozen
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.cyaml import CParser  # type: ignore[attr-defined]  # the stubs do not re-export it
from yaml.resolver import Resolver

from api_server.ci.config.errors import Budget, ConfigError

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 100
MAX_DIGITS = 100
MAX_DIRECTIVES = 100

#: Behind any of YAML's line breaks.
_DIRECTIVE = re.compile("(?:^|[\n\r\x85\u2028\u2029])%TAG")
_PREFIX = "tag:yaml.org,2002:"
_TAGS = {"!reference"} | {_PREFIX + name for name in ("null", "bool", "int", "str", "seq", "map", "merge")}
_LEFT_AS_TEXT = {_PREFIX + name for name in ("float", "timestamp", "value")}


@frozen
class Reference:
    """`!reference [job, key, ...]`, still to be replaced by what it points at."""

    path: tuple[str, ...]

    def __str__(self) -> str:
        return "!reference [" + ", ".join(f'"{part}"' for part in self.path) + "]"


def load(
    text: str, budget: Budget, warn: Callable[[str], None] = lambda _: None, *, most: int = MAX_BYTES
) -> dict[str, Any]:
    """The mapping that `text` is; ConfigError for anything else, and for text beyond the bounds, `most` bytes first.

    `warn` hears sentences about what is probably not meant.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ConfigError("Invalid configuration format: the text is not valid UTF-8") from None
    if size > most:
        raise ConfigError(f"The YAML file is too big: {size} bytes of at most {most}")
    if len(_DIRECTIVE.findall(text)) > MAX_DIRECTIVES:  # libyaml compares each with all others, all at once
        raise ConfigError(f"The YAML file has more than {MAX_DIRECTIVES} directives")
    loader: Any = _Loader(text, budget, warn)
    try:
        value = loader.get_data() if loader.check_data() else None
        if loader.check_event() and not loader.check_event(yaml.StreamEndEvent):
            warn("Only the first document of a file is read")
    except yaml.YAMLError as error:
        raise ConfigError("Invalid configuration format: " + _one_line(error)) from None
    except (KeyError, ValueError) as error:  # `!!bool maybe`, `!!int many`
        raise ConfigError(f"Invalid configuration format: a value does not fit its tag: {error}") from None
    finally:
        loader.dispose()
    if not isinstance(value, dict):
        raise ConfigError("Invalid configuration format")  # all that GitLab says of what is no hash
    return value


def _one_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    return f"{problem} at line {mark.line + 1} column {mark.column + 1}" if mark else problem


class _Loader(Composer, SafeConstructor, Resolver, CParser):
    """libyaml reads, but nodes are composed here: its own composer can be neither bounded nor overridden."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _LEFT_AS_TEXT]
        for first, resolvers in Resolver.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str, budget: Budget, warn: Callable[[str], None]) -> None:
        CParser.__init__(self, text)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._budget = budget
        self._warn = warn
        self._depth = 0
        self._sizes: dict[str, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            return self._compose_alias(str(event.anchor), parent, index)
        # YAML lets a later anchor take over a name; the composer would refuse it.
        self.anchors.pop(event.anchor, None)
        self._sizes.pop(event.anchor, None)
        before = self._budget.left
        self._budget.spend()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ConfigError(f"The parsed YAML is too big: nested deeper than {MAX_DEPTH} levels")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if event.anchor is not None:
            self._sizes[event.anchor] = before - self._budget.left
        if node is not None and node.tag not in _TAGS:
            raise ConfigError(f"Unknown tag in the YAML: {node.tag}")
        if isinstance(node, yaml.ScalarNode) and "\0" in node.value:  # which no column of text can hold
            raise ConfigError(f"A NUL character at line {node.start_mark.line + 1}")
        return node

    def _compose_alias(self, anchor: str, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if anchor in self.anchors and anchor not in self._sizes:
            raise ConfigError(f"The YAML anchor {anchor} contains itself")
        self._budget.spend(self._sizes.get(anchor, 0))
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"A key should be text at line {key.start_mark.line + 1}")
            if not key.style and len(key.value) > 1:  # `:job`, a symbol of Ruby's, is the name `job`
                key.value = key.value.removeprefix(":")
            if key.value in seen and key.tag != _PREFIX + "merge":
                self._warn(
                    f"The key {key.value} is given twice, again at line {key.start_mark.line + 1}: "
                    "the last one counts"
                )
            seen.add(key.value)
        return node

    def _map(self, node: Any) -> dict[str, Any]:
        self.flatten_mapping(node)
        return {key.value: self.construct_object(value, deep=True) for key, value in node.value}

    def _seq(self, node: Any) -> list[Any]:
        return self.construct_sequence(node, deep=True)

    def _int(self, node: Any) -> int | str:
        if len(node.value) > MAX_DIGITS:  # to read `1:2:3...` takes the square of its length
            return str(node.value)
        number = self.construct_yaml_int(node)
        return number if abs(number) < 2**63 else str(node.value)

    def _reference(self, node: yaml.Node) -> Reference:
        path = self.construct_sequence(node, deep=True) if isinstance(node, yaml.SequenceNode) else []
        if not path or not all(isinstance(part, str) for part in path):
            raise ConfigError(f"!reference should be a list of keys at line {node.start_mark.line + 1}")
        return Reference(tuple(path))


_Loader.yaml_constructors = {
    **SafeConstructor.yaml_constructors,
    _PREFIX + "map": _Loader._map,
    _PREFIX + "seq": _Loader._seq,
    _PREFIX + "int": _Loader._int,
    "!reference": _Loader._reference,
}
