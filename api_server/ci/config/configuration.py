"""Reading and checking a configuration independently of a pipeline: from text to stages and job hashes."""

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import define, field, frozen

from api_server.ci.config import keywords
from api_server.ci.config.checks import MAX_NAME, flatten, not_supported
from api_server.ci.config.context import Context
from api_server.ci.config.errors import MAX_DEPTH, Budget, CiConfigError, too_deep
from api_server.ci.config.execution import DEFAULT
from api_server.ci.config.includes import MAX_WARNINGS, Included, Reader, deep_merge
from api_server.ci.config.keywords import TOP_LEVEL_DEFAULTS
from api_server.ci.config.needs import errors_of_needs, upstreams
from api_server.ci.config.yaml_text import Reference

MAX_REFERENCE_NESTING = 10
MAX_EXTENDS_NESTING = 10


def resolve_references(config: dict[str, Any], budget: Budget) -> dict[str, Any]:
    """Return `config` with each `!reference` replaced by its target, which may contain references itself."""

    def resolve(value: Any, chain: tuple[Reference, ...], depth: int) -> Any:
        budget.spend()
        if depth > MAX_DEPTH:
            raise too_deep()
        if isinstance(value, Reference):
            if value in chain:
                raise CiConfigError(f"{value} is part of a circular chain")
            if len(chain) >= MAX_REFERENCE_NESTING:
                raise CiConfigError(f"{value} is nested deeper than {MAX_REFERENCE_NESTING} levels")
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
        raise CiConfigError(f"{reference} could not be found")
    return value


@define
class _Extender:
    config: dict[str, Any]
    budget: Budget
    cache: dict[str, dict[str, Any]] = field(factory=dict)

    def extended(self, name: str, chain: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return the entry merged over everything that it extends; of several bases the later ones win."""
        if name in self.cache:
            return self.cache[name]
        entry = self.config[name]
        if name in chain:
            raise CiConfigError(f"{name}: circular dependency detected in `extends`")
        if len(chain) > MAX_EXTENDS_NESTING:
            raise CiConfigError(f"{name}: nesting too deep in `extends`")
        merged: dict[str, Any] = {}
        for base in _bases(name, entry):
            if base not in self.config:
                raise CiConfigError(f"{name}: unknown keys in `extends` ({base})")
            if not isinstance(self.config[base], dict):
                raise CiConfigError(f"{name}: invalid base hash in `extends` ({base})")
            merged = deep_merge(merged, self.extended(base, (*chain, name)), self.budget)
        own = {key: value for key, value in entry.items() if key != "extends"}
        self.cache[name] = deep_merge(merged, own, self.budget)
        return self.cache[name]


def _bases(name: str, entry: dict[str, Any]) -> list[str]:
    bases = entry.get("extends") or []
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise CiConfigError(f"jobs:{name}:extends config should be an array of strings or a string")
    return bases


def resolve_extends(config: dict[str, Any], budget: Budget) -> dict[str, Any]:
    """Return `config` with the `extends` of every entry resolved."""
    extender = _Extender(config, budget)
    return {
        name: extender.extended(name) if isinstance(entry, dict) and "extends" in entry else entry
        for name, entry in config.items()
    }


def defaults_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords for all jobs: `default`, and the few that may stand at the top level instead."""
    defaults = {key: value for key, value in (config.get("default") or {}).items() if value is not None}
    for name in TOP_LEVEL_DEFAULTS:
        if config.get(name) is not None:
            if name in defaults:
                raise CiConfigError(f"default config {name} is defined in top-level and `default:` entry")
            defaults[name] = config[name]
    return defaults


def apply_defaults(job: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the job with the defaults that it neither sets itself nor excludes by `inherit:default`."""
    if _is_bridge(job):
        defaults = {key: value for key, value in defaults.items() if key == "interruptible"}
    inherited = inherits(job, "default", DEFAULT)
    return {**{key: value for key, value in defaults.items() if key in inherited}, **job}


def inherits(job: Mapping[str, Any], what: str, names: Iterable[str]) -> set[str]:
    """Return those of `names` that `inherit:<what>` of the job admits, by default all."""
    choice = (job.get("inherit") or {}).get(what)
    if choice is None or choice is True:
        return set(names)
    return set(names) & set(choice or ())


DEFAULT_STAGES = ("build", "test", "deploy")
#: Maximum characters of the list of stages in the error about an unknown stage.
MAX_STAGES_QUOTED = 1000


@frozen(kw_only=True)
class Configuration:
    #: The whole configuration with includes, references and `extends` resolved (the merged YAML of CI lint).
    merged: dict[str, Any]
    stages: tuple[str, ...]
    #: Visible jobs in the order of the file, with defaults applied and `stage` always set.
    jobs: dict[str, dict[str, Any]]
    #: Included files in the order in which they were read.
    includes: tuple[Included, ...]
    #: Sentences about valid but probably unintended input.
    warnings: tuple[str, ...] = ()


def read(text: str, context: Context) -> Configuration:
    """Return the checked configuration.

    Raise CiConfigError with all errors in keywords and values, or with the one that makes the text
    unreadable. Raise FilesNeeded if it has to be called again with a context that has these files.
    """
    if not text.strip():
        raise CiConfigError("Please provide content of .gitlab-ci.yml")
    budget = Budget()
    reader = Reader(context, budget)
    merged = resolve_references(resolve_extends(reader.read(text), budget), budget)
    budget.spend_on(merged)
    entries = {name: entry for name, entry in merged.items() if name not in keywords.GLOBAL}
    visible = {name: entry for name, entry in entries.items() if not name.startswith(".")}
    errors = _errors_of_globals(merged)
    for name, entry in visible.items():
        errors += _errors_of_job(name, entry)
    if not visible and not errors:
        errors = ["jobs config should contain at least one visible job"]
    if errors:
        raise CiConfigError(*errors)
    stages = _stages(merged.get("stages") or [])
    defaults = defaults_of(merged)
    jobs = {name: _with_defaults(entry, defaults) for name, entry in visible.items()}
    if errors := _errors_of_stages(jobs, stages) or [
        *errors_of_needs(jobs, stages, budget),
        *_errors_of_environments(jobs),
    ]:
        raise CiConfigError(*errors)
    return Configuration(
        merged=merged,
        stages=stages,
        jobs=jobs,
        includes=tuple(reader.included),
        warnings=tuple((reader.warnings + _doubled_pipelines(merged, jobs))[:MAX_WARNINGS]),
    )


def _doubled_pipelines(merged: dict[str, Any], jobs: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return a warning for each job that both the pipeline of a push and that of its merge request would
    have."""
    if (merged.get("workflow") or {}).get("rules") is not None:
        return []
    last_rules = {name: (flatten(job["rules"]) or [])[-1:] for name, job in jobs.items() if job.get("rules")}
    return [
        f"jobs:{name} may allow multiple pipelines to run for a single action due to `rules:when` clause "
        "with no `workflow:rules`"
        for name, last in last_rules.items()
        if any(list(rule) == ["when"] and rule["when"] != "never" for rule in last)
    ]


def _with_defaults(job: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    fields = {key: value for key, value in job.items() if value is not None}
    return {"stage": "test", **apply_defaults(fields, defaults)}


def _errors_of_stages(jobs: dict[str, dict[str, Any]], stages: tuple[str, ...]) -> list[str]:
    available = ", ".join(stages)
    if len(available) > MAX_STAGES_QUOTED:
        available = available[:MAX_STAGES_QUOTED].rpartition(", ")[0] + ", ..."
    existing = frozenset(stages)
    return [
        f"{name} job: chosen stage {job['stage']} does not exist; available stages are {available}"
        for name, job in jobs.items()
        if job["stage"] not in existing
    ]


def _errors_of_environments(jobs: dict[str, dict[str, Any]]) -> list[str]:
    """Return the errors of the jobs that `environment:on_stop` names."""
    environments = {name: job["environment"] for name, job in jobs.items() if job.get("environment")}
    errors = []
    for name, environment in environments.items():
        stop = environment.get("on_stop") if isinstance(environment, dict) else None
        if stop is None:
            continue
        stopping = environments.get(stop)
        prefix = f"{name} job: on_stop job {stop}"
        if stop not in jobs:
            errors.append(f"{prefix} is not defined")
        elif stopping is None:
            errors.append(f"{prefix} does not have environment defined")
        elif not isinstance(stopping, dict) or stopping.get("action") != "stop":
            errors.append(f"{prefix} needs to have action stop defined")
        elif stopping["name"] != environment["name"]:
            errors.append(f"{prefix} have different environment name")
    return errors


def _stages(value: Any) -> tuple[str, ...]:
    names = [stage for stage in flatten(value) or DEFAULT_STAGES if stage not in {".pre", ".post"}]
    return tuple(dict.fromkeys([".pre", *names, ".post"]))


def _errors_of_globals(merged: dict[str, Any]) -> list[str]:
    errors: list[str] = []
    for name, check in keywords.GLOBAL.items():
        if merged.get(name) is not None:
            errors += check(name, merged[name])
    return errors


def _errors_of_job(name: str, job: Any) -> list[str]:
    path = f"jobs:{name}"
    if len(name) > MAX_NAME or not name.strip():
        return [f"{path[:80]} name should be between 1 and {MAX_NAME} characters long"]
    if not isinstance(job, dict) or not ("script" in job or "trigger" in job or "needs" in job):
        if isinstance(job, dict) and "run" in job:
            return [not_supported(f"{path}:run")]
        return [f"jobs {name} config should implement a script: or a trigger: keyword"]
    fields = keywords.BRIDGE if _is_bridge(job) else keywords.BUILD
    return [*fields(path, job), *(f"{path} {error}" for error in _contradictions(job))]


def _is_bridge(job: Mapping[str, Any]) -> bool:
    """Return whether the job starts a pipeline or mirrors one, instead of running a script."""
    return "trigger" in job or "script" not in job


def _contradictions(job: dict[str, Any]) -> list[str]:
    """Return the errors that involve several keywords."""
    errors = []
    has_rules = job.get("rules") is not None
    mixed = [key for key in ("only", "except", "start_in") if has_rules and job.get(key) is not None]
    if mixed:
        errors.append(f"config key may not be used with `rules`: {', '.join(mixed)}")
    if has_rules and job.get("when") == "delayed":
        errors.append("when: delayed should be given in `rules`, where there are some")
    if not has_rules and (job.get("when") == "delayed") != (job.get("start_in") is not None):
        errors.append("start_in should be given with when: delayed, and only there")
    if not _is_bridge(job) and job.get("script") in (None, [], ""):
        errors.append("script can't be blank")
    mirrored = upstreams(job.get("needs"))
    if _is_bridge(job) and (job.get("trigger") is None) != bool(mirrored):
        errors.append("config should contain either a trigger or a needs:pipeline")
    elif mirrored > 1:
        errors.append("config should contain at most one bridge need")
    trigger = job.get("trigger")
    if isinstance(trigger, dict) and bool(trigger.get("project")) == bool(trigger.get("include")):
        errors.append("trigger config should contain either a project: or an include:")
    elif isinstance(trigger, dict) and trigger.get("include") and "inputs" in trigger:
        errors.append("trigger config contains unknown keys: inputs")
    return errors
