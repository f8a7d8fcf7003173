"""How a job gets keywords that are written elsewhere: `extends`, then `!reference`, then `default`."""

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import define, field

from api_server.ci.config.errors import Budget, ConfigError
from api_server.ci.config.execution import DEFAULT
from api_server.ci.config.includes import deep_merge
from api_server.ci.config.keywords import TOP_LEVEL_DEFAULTS
from api_server.ci.config.yaml_text import MAX_DEPTH, Reference

MAX_REFERENCE_NESTING = 10
MAX_EXTENDS_NESTING = 10


def resolve_references(config: dict[str, Any], budget: Budget) -> dict[str, Any]:
    """`config` with each `!reference` replaced by what it points at, references in there included."""

    def resolve(value: Any, chain: tuple[Reference, ...], depth: int) -> Any:
        budget.spend()
        if depth > MAX_DEPTH:
            raise ConfigError(f"The parsed YAML is too big: nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, Reference):
            if value in chain:
                raise ConfigError(f"{value} is part of a circular chain")
            if len(chain) >= MAX_REFERENCE_NESTING:
                raise ConfigError(f"{value} is nested deeper than {MAX_REFERENCE_NESTING} levels")
            return resolve(_look_up(config, value), (*chain, value), depth)
        if isinstance(value, dict):
            return {key: resolve(inner, chain, depth + 1) for key, inner in value.items()}
        return [resolve(inner, chain, depth + 1) for inner in value] if isinstance(value, list) else value

    resolved = resolve(config, (), 0)
    return dict(resolved)


def _look_up(config: dict[str, Any], reference: Reference) -> Any:
    value: Any = config
    for part in reference.path:
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        raise ConfigError(f"{reference} could not be found")
    return value


@define
class _Extender:
    config: dict[str, Any]
    budget: Budget
    done: dict[str, dict[str, Any]] = field(factory=dict)

    def extended(self, name: str, chain: tuple[str, ...] = ()) -> dict[str, Any]:
        """The entry with all it extends merged below it; of several bases the later ones win."""
        if name in self.done:
            return self.done[name]
        entry = self.config[name]
        if name in chain:
            raise ConfigError(f"{name}: circular dependency detected in `extends`")
        if len(chain) > MAX_EXTENDS_NESTING:
            raise ConfigError(f"{name}: nesting too deep in `extends`")
        merged: dict[str, Any] = {}
        for base in _bases(name, entry):
            if base not in self.config:
                raise ConfigError(f"{name}: unknown keys in `extends` ({base})")
            if not isinstance(self.config[base], dict):
                raise ConfigError(f"{name}: invalid base hash in `extends` ({base})")
            merged = deep_merge(merged, self.extended(base, (*chain, name)), self.budget)
        own = {key: value for key, value in entry.items() if key != "extends"}
        self.done[name] = deep_merge(merged, own, self.budget)
        return self.done[name]


def _bases(name: str, entry: dict[str, Any]) -> list[str]:
    bases = entry.get("extends") or []
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ConfigError(f"jobs:{name}:extends config should be an array of strings or a string")
    return bases


def resolve_extends(config: dict[str, Any], budget: Budget) -> dict[str, Any]:
    """`config` with `extends` of every entry carried out."""
    extender = _Extender(config, budget)
    return {
        name: extender.extended(name) if isinstance(entry, dict) and "extends" in entry else entry
        for name, entry in config.items()
    }


def defaults_of(config: dict[str, Any]) -> dict[str, Any]:
    """Keywords for all jobs: `default`, and the few that may stand at the top level instead."""
    defaults = {key: value for key, value in (config.get("default") or {}).items() if value is not None}
    for name in TOP_LEVEL_DEFAULTS:
        if config.get(name) is not None:
            if name in defaults:
                raise ConfigError(f"default config {name} is defined in top-level and `default:` entry")
            defaults[name] = config[name]
    return defaults


def apply_defaults(job: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The job with the defaults that it neither sets itself nor keeps out by `inherit:default`."""
    if "trigger" in job:
        defaults = {key: value for key, value in defaults.items() if key == "interruptible"}
    taken = inherits(job, "default", DEFAULT)
    return {**{key: value for key, value in defaults.items() if key in taken}, **job}


def inherits(job: Mapping[str, Any], what: str, names: Iterable[str]) -> set[str]:
    """Those of `names` that the job's `inherit:<what>` lets in: all of them unless it says otherwise."""
    choice = (job.get("inherit") or {}).get(what)
    if choice is None or choice is True:
        return set(names)
    return set(names) & set(choice or ())
