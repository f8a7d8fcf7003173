"""`spec:inputs`: the declarations in the header document of a file, and the values of its inputs."""

import graphlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson
from attrs import frozen

from api_server.ci.config import rules
from api_server.ci.config.checks import Check, EachValue, Fields, anything, text
from api_server.ci.config.context import Context
from api_server.ci.config.errors import Budget, CiConfigError
from api_server.ci.config.patterns import compile_regex
from api_server.ci.config.yaml_text import Scalar, load_file, spell_scalar
from api_server.web.params import read_json

TYPES = ("array", "boolean", "number", "string")
MAX_OPTIONS = 50
#: For a pipeline; other files may have more.
MAX_ARGUMENTS = 20
#: The number of errors that GitLab names in its one sentence about a file.
MAX_NAMED = 3


def _attribute(complaint: str, holds: Callable[[Any], bool]) -> Check:
    """Return a check with GitLab's errors about attributes: `header:spec:inputs:job input type unknown
    value`."""

    def check(path: str, value: Any) -> Iterator[str]:
        if not holds(value):
            owner, _, key = path.rpartition(":")
            yield f"{owner} input {key} {complaint.format(value)}"

    return check


def _array(path: str, value: Any) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{path} config should be an array"


def _condition(path: str, value: Any) -> Iterator[str]:
    try:
        rules.parse_input_condition(value)
    except (TypeError, ValueError):
        yield f"{path} invalid expression syntax"


def _rule(path: str, rule: dict[str, Any]) -> Iterator[str]:
    options = rule.get("options")
    if not rule:
        yield f"{path} config can't be blank"
    elif options is not None and len(options) > MAX_OPTIONS:
        yield f"{path} config cannot define more than {MAX_OPTIONS} options"
    elif rule.get("if") is None and options is None:
        yield f"{path} config fallback rule must define 'options'"
    elif options is None and "default" not in rule:
        yield f"{path} config rule with 'if' must define 'options' or 'default'"


_RULE = Fields(
    {"if": _condition, "options": _array, "default": anything}, together=_rule, attributes=("if", "options")
)


@frozen
class _Rules:
    item: Fields

    def __call__(self, path: str, value: Any) -> Iterator[str]:
        yield from _array(path, value)
        for rule in value if isinstance(value, list) else ():
            yield from self.item(f"{path}:rule", rule)


def _declaration(path: str, declared: dict[str, Any]) -> Iterator[str]:
    options = declared.get("options") or ()
    if len(options) > MAX_OPTIONS:
        yield f"{path} config cannot define more than {MAX_OPTIONS} options"
    if any(option is None for option in options):
        yield f"{path} config options array cannot contain null values"
    for other in ("options", "default"):
        if "rules" in declared and other in declared:
            yield f"{path} config these keys cannot be used together: rules, {other}"


_DECLARATION = Fields(
    {
        "type": _attribute("unknown value: {}", lambda value: value in TYPES),
        "default": anything,
        "options": _attribute("should be an array", lambda value: isinstance(value, list)),
        "regex": _attribute("should be a string", lambda value: isinstance(value, str)),
        "description": _attribute("must be an alphanumeric string", lambda value: type(value) in {str, int}),
        "rules": _Rules(_RULE),
    },
    together=_declaration,
)


#: The values that a component may request about itself.
COMPONENT = ("name", "sha", "version", "reference")
MAX_DESCRIPTION = 256


def _component(path: str, value: Any) -> Iterator[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        yield f"{path} config should be an array of strings"
    elif unknown := [name for name in value if name not in COMPONENT]:
        yield f"{path} config contains unknown values: {', '.join(unknown)}"


def _description(path: str, value: Any) -> Iterator[str]:
    yield from text(path, value)
    if isinstance(value, str) and len(value) > MAX_DESCRIPTION:
        yield f"{path} config is too long (maximum is {MAX_DESCRIPTION} characters)"


#: The header document of a file.
HEADER = Fields(
    {
        "spec": Fields(
            {
                "inputs": EachValue(_DECLARATION, optional=True),
                "component": _component,
                "description": _description,
            },
            beyond=("include",),
        )
    }
)

_NONE: Any = object()


@frozen(kw_only=True)
class Input:
    """One declared input. It has no `default` if a value is required or if `rules` provide defaults."""

    name: str
    type: str = "string"
    description: str = ""
    regex: str | None = None
    options: list[Any] | None = None
    default: Any = _NONE
    rules: tuple[Mapping[str, Any], ...] = ()

    @property
    def has_default(self) -> bool:
        return self.default is not _NONE

    @property
    def required(self) -> bool:
        by_rules = any("default" in rule or rule.get("if") is None for rule in self.rules)
        return not self.has_default and not by_rules

    @property
    def choices(self) -> list[str]:
        """The values that a form offers, of all rules; none if other values are possible."""
        if self.type == "boolean":
            return ["true", "false"]
        if self.type == "array" or any(rule.get("options") is None for rule in self.rules):
            return []
        options = self.options or [option for rule in self.rules for option in rule["options"]]
        return list(dict.fromkeys(map(spelled, options)))

    @property
    def default_text(self) -> str:
        """The default as a form shows it."""
        return spelled(self.default) if self.has_default else ""

    def value(self, argument: Any, others: Mapping[str, str | bool]) -> Any:
        """Return the given value or the default. Raise CiConfigError.

        `others` are the inputs that rules compare, as returned by `_compared`.
        """
        rule = next((rule for rule in self.rules if _holds(rule, others)), {})
        default = rule.get("default", self.default)
        undecided = "default" in rule and default is None
        if argument is None and (self.required or undecided):
            raise CiConfigError(self._error("required value has not been provided"))
        options = rule.get("options", self.options)
        errors = []
        if self.has_default or rule.get("default") is not None:
            errors += self._errors(_coerced(self.type, default), "default", options)
        if argument is not None:
            errors += self._errors(_coerced(self.type, argument), "provided", options)
        if errors:
            raise CiConfigError(*errors)
        chosen = default if argument is None else argument
        return _coerced(self.type, None if chosen is _NONE else chosen)

    def _error(self, what: str) -> str:
        return f"`{self.name}` input: {what}"

    def _errors(self, value: Any, which: str, options: list[Any] | None) -> list[str]:
        errors = []
        if not _is_of_type(self.type, value):
            article = "an" if self.type == "array" else "a"
            errors.append(self._error(f"{which} value is not {article} {self.type}"))
        if options is not None:
            errors += self._errors_by_options(value, options)
        if self.regex is not None:
            errors += self._errors_by_regex(value, which, self.regex)
        return errors

    def _errors_by_options(self, value: Any, options: list[Any]) -> list[str]:
        if self.type == "boolean":
            return [self._error("Options can only be used with string and number inputs")]
        if self.type == "string":
            options = [spelled(option) for option in options]
        chosen = value if self.type == "array" and isinstance(value, list) else [value]
        wrong = [spelled(item) for item in chosen if item not in options]
        allowed = "the allowed options" if self.type == "number" else "allowed options"
        return [
            self._error(f"`{item}` cannot be used because it is not in the list of {allowed}")
            for item in wrong
        ]

    def _errors_by_regex(self, value: Any, which: str, regex: str) -> list[str]:
        if self.type != "string":
            return [self._error("RegEx validation can only be used with string inputs")]
        try:
            expression = compile_regex(regex)
        except ValueError:
            return [self._error("invalid regular expression")]
        if isinstance(value, str) and expression.search(value) is None:
            return [self._error(f"{which} value does not match required RegEx pattern")]
        return []


def _holds(rule: Mapping[str, Any], others: Mapping[str, str | bool]) -> bool:
    return rule.get("if") is None or rules.parse_input_condition(rule["if"]).holds(others)


def _compared(value: Any) -> str | bool:
    """Return the value in the form that the rules of other inputs compare."""
    return value if isinstance(value, bool) else spelled(value)


def _coerced(kind: str, value: Any) -> Any:
    """Return the value converted to the type: numbers, booleans and arrays may be given as JSON, a string as
    a number or a boolean."""
    if kind == "string":
        return spell_scalar(value) if isinstance(value, Scalar) else value
    if not isinstance(value, str):
        return value
    try:
        return read_json(value)
    except ValueError:
        return value


def _is_of_type(kind: str, value: Any) -> bool:
    types: dict[str, set[type]] = {
        "array": {list},
        "boolean": {bool},
        "number": {int, float},
        "string": {str},
    }
    return type(value) in types[kind]


def spelled(value: Any) -> str:
    """Return the text for a value inside a longer text; arrays and hashes become JSON."""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return spell_scalar(value)


def declared(header: Mapping[str, Any]) -> dict[str, Input]:
    """Return the inputs of a header document by name. Raise CiConfigError."""
    if errors := list(HEADER("header", header)):
        raise refused(errors)
    inputs = (header.get("spec") or {}).get("inputs") or {}
    by_name = {}
    for name, keys in inputs.items():
        fields = {key: value for key, value in (keys or {}).items() if value is not None or key == "default"}
        fields["rules"] = tuple(fields.get("rules", ()))
        fields["description"] = spelled(fields.get("description", ""))
        by_name[name] = Input(name=name, **fields)
    if errors := list(_errors_of_references(by_name)):
        raise refused(errors)
    return by_name


def declared_in(text: str, _context: Context) -> dict[str, Input]:
    """Return the inputs of a file. Raise CiConfigError."""
    header, _ = load_file(text, Budget())
    return {} if header is None else declared(header)


def refused(errors: list[str]) -> CiConfigError:
    return CiConfigError(", ".join(errors[:MAX_NAMED]))


def _names_in(input_: Input) -> list[list[str]]:
    """Return the inputs that each rule refers to."""
    return [
        [] if rule.get("if") is None else rules.parse_input_condition(rule["if"]).inputs
        for rule in input_.rules
    ]


def _errors_of_references(declarations: Mapping[str, Input]) -> Iterator[str]:
    for name, input_ in declarations.items():
        for number, names in enumerate(_names_in(input_)):
            if unknown := [other for other in names if other not in declarations]:
                path = f"header:spec:inputs:{name} config rule[{number}]"
                yield f"{path} references undefined inputs: {', '.join(dict.fromkeys(unknown))}"
    try:
        _in_order(declarations)
    except graphlib.CycleError:
        yield f"header:spec:inputs:{next(iter(declarations))} config circular dependency detected"


def _in_order(declarations: Mapping[str, Input]) -> list[str]:
    """Return the names in an order in which each comes after those that its rules refer to."""
    if not any(input_.rules for input_ in declarations.values()):
        return list(declarations)
    graph = {
        name: [other for names in _names_in(input_) for other in names]
        for name, input_ in declarations.items()
    }
    return [name for name in graphlib.TopologicalSorter(graph).static_order() if name in declarations]


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise CiConfigError if these cannot be the inputs of a pipeline."""
    if len(arguments) > MAX_ARGUMENTS:
        raise CiConfigError(f"A pipeline can take up to {MAX_ARGUMENTS} inputs")
    if "\\u0000" in orjson.dumps(arguments).decode().replace("\\\\", ""):  # no text column can store it
        raise CiConfigError("Inputs cannot have a NUL character")


def resolve(
    declarations: Mapping[str, Input], arguments: Mapping[str, Any], budget: Budget
) -> dict[str, Any]:
    """Return the value of each declared input. Raise CiConfigError with the first few errors."""
    budget.spend_on(dict(arguments))
    errors: list[str] = []
    values: dict[str, Any] = {}
    others: dict[str, str | bool] = {}
    if unknown := [name for name in arguments if name not in declarations]:
        errors.append(f"unknown input arguments: {', '.join(unknown)}")
    for name in _in_order(declarations):
        try:
            values[name] = declarations[name].value(arguments.get(name), others)
            others[name] = _compared(values[name])
        except CiConfigError as error:
            errors += error.errors
    if errors:
        raise refused(errors)
    return values
