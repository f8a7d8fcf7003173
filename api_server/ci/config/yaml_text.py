"""Parsing of YAML text to plain values (dict, list, str, int, float, bool, None, Reference), limited against
hostile text, and the text for such values.

It follows Ruby's Psych, with which GitLab loads YAML: unquoted scalars of YAML 1.1; merge keys, whose
position matters; and tags, of which only Ruby's classes are refused. Keys are always text; those that Ruby
reads as symbols (`:job`) lose the colon. Of duplicate keys the last one counts.
"""

import base64
import math
import re
from collections.abc import Callable
from typing import Any

import yaml
from attrs import frozen
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.cyaml import CParser, CSafeDumper  # type: ignore[attr-defined]  # the stubs do not re-export it
from yaml.resolver import BaseResolver

from api_server.ci.config.errors import MAX_DEPTH, Budget, CiConfigError, too_deep

#: Maximum digits of a number; a longer one stays text, since parsing it takes quadratic time.
MAX_DIGITS = 100

Scalar = str | int | float | bool | None

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("~", "null"), None),
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
}
_DATE = r"\d{4}-(?:1[0-2]|0?\d)-(?:3[01]|[0-2]?\d)"
_TIME = r"-?\d{4}-\d{1,2}-\d{1,2}(?:[Tt]|\s+)\d{1,2}:\d\d:\d\d(?:\.\d*)?(?:\s*(?:Z|[-+]\d{1,2}:?(?:\d\d)?))?"
_SIXTIES = r"[-+]?\d[\d_]*(?::[0-5]?\d){1,2}"
#: `1_000` is a thousand; the rest after `__` (`1__000`) or a trailing underscore is ignored.
_NUMBER = re.compile(r"[-+]?\d+(?:_\d+)*(?:\.\d+(?:_\d+)*)?", re.ASCII)


class DateFound(ValueError):
    """A date or time without quotes, which GitLab refuses."""


def _unspecified_class(name: str) -> Callable[[str], Scalar]:
    def refuse(_: str) -> Scalar:
        raise DateFound(f"Tried to load unspecified class: {name}")

    return refuse


def symbol_name(text: str) -> str:
    """Return the name of a symbol, `:job` or `:"job"`; other texts unchanged."""
    quoted = re.match(r""":(["'])(.*)\1""", text)
    if quoted:
        return quoted[2].removeprefix(":")
    return text.removeprefix(":") if len(text) > 1 else text


def _of_sixties(number: Callable[[str], int | float]) -> Callable[[str], Scalar]:
    """Return a function that reads hours, minutes and seconds, or hours and minutes; the sign is that of the
    first number."""

    def read(text: str) -> Scalar:
        parts = [_NUMBER.match(part) for part in text.split(":")]
        total: int | float = sum(
            number(part[0]) * 60**power for part, power in zip(parts, (2, 1, 0), strict=False) if part
        )
        return total

    return read


def _float(text: str) -> Scalar:
    return float(re.sub("[,_]", "", text))


def _integer(text: str) -> Scalar:
    digits = re.sub("[,_]", "", text)
    bare = digits.lstrip("+-")
    number = int(digits, 0 if bare[1:2] in ("b", "x") else 8 if bare.startswith("0") else 10)
    return number if abs(number) < 2**63 else str(number)


#: Tried in this order.
_FORMS: list[tuple[re.Pattern[str], Callable[[str], Scalar]]] = [
    (re.compile(form, re.ASCII), read)
    for form, read in (
        (_TIME, _unspecified_class("Time")),
        (_DATE, _unspecified_class("Date")),
        (r"\+?\.(?i:inf)", lambda _: math.inf),
        (r"-\.(?i:inf)", lambda _: -math.inf),
        (r"\.(?i:nan)", lambda _: math.nan),
        (_SIXTIES, _of_sixties(int)),
        (_SIXTIES + r"\.[\d_]*", _of_sixties(float)),
        (r"[-+]?(?:\d[\d_,]*\.\d*|\.\d+)(?:[eE][-+]\d+)?", _float),
        (r"[-+]?(?:0b[01_,]+|0[0-7_,]+|0|[1-9](?:[,_]?\d)*|0x[\da-fA-F_,]+)", _integer),
    )
]


def read_scalar(text: str) -> Scalar:
    """Return the value; numbers beyond 64 bits as their digits, symbols as their names.

    Raise DateFound, and another ValueError for text that only begins like a number (`0x_`).
    """
    if not text:
        return None
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if text[0] == ":":
        return symbol_name(text)
    if text[0] not in "+-.0123456789" or len(text) > MAX_DIGITS:
        return text
    return next((meaning(text) for form, meaning in _FORMS if form.fullmatch(text)), text)


def spell_scalar(value: Scalar) -> str:
    """Return the value as GitLab writes it as text: `3.10` becomes 3.1."""
    if isinstance(value, float):
        mantissa, e, exponent = repr(value).partition("e")
        if not math.isfinite(value):
            return {"inf": "Infinity", "-inf": "-Infinity"}.get(mantissa, "NaN")
        return mantissa + ("" if "." in mantissa else ".0") + e + exponent
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


MAX_BYTES = 1024 * 1024
MAX_DIRECTIVES = 100

#: A directive follows one of YAML's line breaks.
_DIRECTIVE = re.compile("(?:^|[\n\r\x85\u2028\u2029])%TAG")
_PREFIX = "tag:yaml.org,2002:"
_MERGE = "<<"
_PLAIN, _TEXT = "plain", _PREFIX + "str"
_TAGS = {
    str: _TEXT,
    int: _PREFIX + "int",
    float: _PREFIX + "float",
    bool: _PREFIX + "bool",
    type(None): _PREFIX + "null",
}
#: Tags that Ruby refuses in a file that it does not trust.
_REFUSED = re.compile(r"!ruby/(?!sym(bol)?$|string$)|tag:yaml.org,2002:set$")


@frozen
class Reference:
    """`!reference [job, key, ...]`, not yet replaced by its target."""

    path: tuple[str, ...]

    def __str__(self) -> str:
        return "!reference [" + ", ".join(f'"{part}"' for part in self.path) + "]"


def load(
    text: str, budget: Budget, warn: Callable[[str], None] = lambda _: None, *, max_bytes: int = MAX_BYTES
) -> dict[str, Any]:
    """Return the mapping in `text`. Raise CiConfigError for anything else, and for text beyond the limits
    (`max_bytes`).

    `warn` is called with sentences about valid but probably unintended input.
    """
    return load_file(text, budget, warn, max_bytes=max_bytes)[1]


def load_file(
    text: str, budget: Budget, warn: Callable[[str], None] = lambda _: None, *, max_bytes: int = MAX_BYTES
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Load like `load`, for a text that may have a header document before its content: return both.

    The first document is the header if it has the key `spec` and another document follows.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise CiConfigError("Invalid configuration format: the text is not valid UTF-8") from None
    if size > max_bytes:
        raise CiConfigError(too_big(size, max_bytes))
    if len(_DIRECTIVE.findall(text)) > MAX_DIRECTIVES:  # libyaml compares each with all others at once
        raise CiConfigError(f"The YAML file has more than {MAX_DIRECTIVES} directives")
    loader: Any = _Loader(text, budget, warn)
    try:
        header, content = None, _next_document(loader)
        if isinstance(content, dict) and "spec" in content:
            following = _next_document(loader)
            if following is not None:
                header, content = content, following
        if loader.check_event() and not loader.check_event(yaml.StreamEndEvent):
            warn("Only the first document of a file is read" + " after its header" * (header is not None))
    except yaml.YAMLError as error:
        raise CiConfigError("Invalid configuration format: " + _one_line(error)) from None
    except (ValueError, OverflowError) as error:  # such as `!!float many`
        raise CiConfigError(f"Invalid configuration format: a value does not fit its tag: {error}") from None
    finally:
        loader.dispose()
    if not isinstance(content, dict):
        raise CiConfigError("Invalid configuration format")  # GitLab gives no details if it is no hash
    return header, content


def _next_document(loader: Any) -> Any:
    """Return the next document that is not empty, or None."""
    while loader.check_data():
        if (value := loader.get_data()) is not None:
            return value
    return None


def too_big(size: int, max_bytes: int) -> str:
    """Return the error for a text of that many bytes."""
    return f"The YAML file is too big: {size} bytes of at most {max_bytes}"


def _one_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    return f"{problem} at line {mark.line + 1} column {mark.column + 1}" if mark else problem


class _Loader(Composer, SafeConstructor, BaseResolver, CParser):
    """A loader that composes nodes in Python from libyaml's events: libyaml's own composer can be neither
    limited nor overridden."""

    def __init__(self, text: str, budget: Budget, warn: Callable[[str], None]) -> None:
        CParser.__init__(self, text)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        BaseResolver.__init__(self)
        self._budget = budget
        self._warn = warn
        self._depth = 0
        self._sizes: dict[str, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            return self._compose_alias(str(event.anchor), parent, index)
        # YAML lets a later anchor redefine a name; the composer would refuse it.
        self.anchors.pop(event.anchor, None)
        self._sizes.pop(event.anchor, None)
        before = self._budget.remaining
        self._budget.spend()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise too_deep()
        node = super().compose_node(parent, index)
        self._depth -= 1
        if event.anchor is not None:
            self._sizes[event.anchor] = before - self._budget.remaining
        if node is not None and _REFUSED.match(node.tag):
            raise CiConfigError(f"Unknown tag in the YAML: {node.tag}")
        if isinstance(node, yaml.ScalarNode) and "\0" in node.value:  # no text column can store it
            raise CiConfigError(f"A NUL character at line {node.start_mark.line + 1}")
        return node

    def resolve(self, kind: type[yaml.Node], _value: Any, implicit: Any) -> str:
        """Return the tag of a node that has none."""
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _TEXT
        return "collection"

    def _compose_alias(self, anchor: str, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if anchor in self.anchors and anchor not in self._sizes:
            raise CiConfigError(f"The YAML anchor {anchor} contains itself")
        self._budget.spend(self._sizes.get(anchor, 0))
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise CiConfigError(f"A key should be text at line {key.start_mark.line + 1}")
            if not key.style:
                key.value = symbol_name(key.value)
            if key.value in keys and key.value != _MERGE:
                self._warn(
                    f"The key {key.value} is given twice, again at line {key.start_mark.line + 1}: "
                    "the last one counts"
                )
            keys.add(key.value)
        return node

    def _value(self, node: Any) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._map(node)
        if isinstance(node, yaml.SequenceNode):
            return self.construct_sequence(node, deep=True)
        try:
            return self._scalar(node)
        except DateFound as error:
            raise CiConfigError(
                f"Invalid configuration format: {error} at line {node.start_mark.line + 1}: "
                f"{node.value} has to be in quotes"
            ) from None

    def _map(self, node: yaml.MappingNode) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, value_node in node.value:
            value = self.construct_object(value_node, deep=True)
            bases = value if isinstance(value, list) else [value]
            if key.value == _MERGE and all(isinstance(base, dict) for base in bases):
                # The first base takes precedence, and all of them over the keys above them.
                for base in reversed(bases):
                    mapping.update(base)
            else:
                mapping[key.value] = value
        return mapping

    def _scalar(self, node: yaml.ScalarNode) -> Scalar:
        match node.tag.removeprefix(_PREFIX).removeprefix("!"):
            case "str" | "ruby/sym" | "ruby/symbol" | "ruby/string":
                return str(node.value)
            case "float":
                return float(read_scalar(node.value) or 0)
            case "binary":
                return self._binary(node)
        value = read_scalar(node.value)
        if type(value) in {int, float} and spell_scalar(value) != node.value:
            self._warn(
                f"{node.value} at line {node.start_mark.line + 1} is read as the number {spell_scalar(value)}: "
                "a text has to be in quotes"
            )
        return value

    def _binary(self, node: yaml.ScalarNode) -> str:
        text = base64.b64decode(node.value).decode()
        if "\0" in text:
            raise CiConfigError(f"A NUL character at line {node.start_mark.line + 1}")
        return text

    def _reference(self, node: yaml.Node) -> Reference:
        path = self.construct_sequence(node, deep=True) if isinstance(node, yaml.SequenceNode) else []
        if not path or not all(isinstance(part, str) for part in path):
            raise CiConfigError(f"!reference should be a list of keys at line {node.start_mark.line + 1}")
        return Reference(tuple(path))


class _Dumper(CSafeDumper):
    """A dumper that quotes each text that this module would read as something else, or as another text."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """Return the tag that an unquoted scalar has when it is read."""
        if kind is not yaml.ScalarNode or not implicit[0]:
            return str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]
        try:
            meaning = read_scalar(value)
        except ValueError:
            return "unreadable"
        return "other" if isinstance(meaning, str) and meaning != value else _TAGS[type(meaning)]


def dump(value: Any) -> str:
    """Return YAML that is read as `value` again."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True))


_Loader.yaml_constructors = {"!reference": _Loader._reference, None: _Loader._value}
