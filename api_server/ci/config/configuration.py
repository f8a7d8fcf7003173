"""A configuration read and checked on its own, before any pipeline: text in, stages and job hashes out."""

from typing import Any

from attrs import frozen

from api_server.ci.config import dependencies, keywords
from api_server.ci.config.checks import flatten, not_supported
from api_server.ci.config.context import Context
from api_server.ci.config.errors import Budget, ConfigError
from api_server.ci.config.includes import Included, Reader
from api_server.ci.config.inheritance import (
    apply_defaults,
    defaults_of,
    resolve_extends,
    resolve_references,
)
from api_server.ci.config.names import MAX_NAME

DEFAULT_STAGES = ("build", "test", "deploy")
#: Characters of stages that each sentence about a job of another one tells.
MAX_TOLD = 1000


@frozen(kw_only=True)
class Configuration:
    #: Everything, with includes, references and `extends` carried out (the merged YAML of CI lint).
    merged: dict[str, Any]
    stages: tuple[str, ...]
    #: Visible jobs in the order of the file, defaults applied, `stage` always set.
    jobs: dict[str, dict[str, Any]]
    #: Included files in the order in which they were read.
    includes: tuple[Included, ...]
    #: Sentences about what is probably not meant, though it can be read.
    warnings: tuple[str, ...] = ()


def read(text: str, context: Context) -> Configuration:
    """The checked configuration.

    ConfigError says all that is wrong with keywords and values, or the one thing that makes it unreadable. FilesWanted
    asks to be called again with a context that has them.
    """
    if not text.strip():
        raise ConfigError("Please provide content of .gitlab-ci.yml")
    budget = Budget()
    reader = Reader(context, budget)
    merged = resolve_references(resolve_extends(reader.read(text), budget), budget)
    _spend(merged, budget)
    named = {name: entry for name, entry in merged.items() if name not in keywords.GLOBAL}
    visible = {
        name: entry
        for name, entry in named.items()
        if not name.startswith(".") and name not in keywords.BEYOND_GLOBAL
    }
    errors = _errors_of_globals(merged)
    for name, entry in visible.items():
        errors += _errors_of_job(name, entry)
    if not visible and not errors:
        errors = ["jobs config should contain at least one visible job"]
    if errors:
        raise ConfigError(*errors)
    stages = _stages(merged.get("stages") or [])
    defaults = defaults_of(merged)
    jobs = {name: _with_defaults(entry, defaults) for name, entry in visible.items()}
    if errors := _errors_of_stages(jobs, stages) or [
        *dependencies.errors_of(jobs, stages),
        *_errors_of_environments(jobs),
    ]:
        raise ConfigError(*errors)
    return Configuration(
        merged=merged,
        stages=stages,
        jobs=jobs,
        includes=tuple(reader.included),
        warnings=tuple(reader.warnings),
    )


def _with_defaults(job: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in job.items() if value is not None}
    return {"stage": "test", **apply_defaults(given, defaults)}


def _errors_of_stages(jobs: dict[str, dict[str, Any]], stages: tuple[str, ...]) -> list[str]:
    available = ", ".join(stages)
    if len(available) > MAX_TOLD:
        available = available[:MAX_TOLD].rpartition(", ")[0] + ", ..."
    there = frozenset(stages)
    return [
        f"{name} job: chosen stage {job['stage']} does not exist; available stages are {available}"
        for name, job in jobs.items()
        if job["stage"] not in there
    ]


def _errors_of_environments(jobs: dict[str, dict[str, Any]]) -> list[str]:
    """What is wrong with the jobs that `environment:on_stop` names."""
    environments = {name: job["environment"] for name, job in jobs.items() if job.get("environment")}
    errors = []
    for name, environment in environments.items():
        stop = environment.get("on_stop") if isinstance(environment, dict) else None
        if stop is None:
            continue
        stopping = environments.get(stop)
        at = f"{name} job: on_stop job {stop}"
        if stop not in jobs:
            errors.append(f"{at} is not defined")
        elif stopping is None:
            errors.append(f"{at} does not have environment defined")
        elif not isinstance(stopping, dict) or stopping.get("action") != "stop":
            errors.append(f"{at} needs to have action stop defined")
        elif stopping["name"] != environment["name"]:
            errors.append(f"{at} have different environment name")
    return errors


def _spend(value: Any, budget: Budget) -> None:
    """Pay for the configuration as it is now, everything that is shared counted wherever it is used."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        budget.spend(characters=len(one) if isinstance(one, str) else 0)
        if isinstance(one, dict):
            budget.spend(0, characters=sum(map(len, one)))
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)


def _stages(value: Any) -> tuple[str, ...]:
    named = [stage for stage in flatten(value) or DEFAULT_STAGES if stage not in {".pre", ".post"}]
    return tuple(dict.fromkeys([".pre", *named, ".post"]))


def _errors_of_globals(merged: dict[str, Any]) -> list[str]:
    errors = [not_supported(name) for name in keywords.BEYOND_GLOBAL if name in merged]
    for name, check in keywords.GLOBAL.items():
        if merged.get(name) is not None:
            errors += check(name, merged[name])
    return errors


def _errors_of_job(name: str, job: Any) -> list[str]:
    at = f"jobs:{name}"
    if len(name) > MAX_NAME or not name.strip():
        return [f"{at[:80]} name should be between 1 and {MAX_NAME} characters long"]
    if not isinstance(job, dict) or not ("script" in job or "trigger" in job):
        if isinstance(job, dict) and "run" in job:
            return [not_supported(f"{at}:run")]
        return [f"jobs {name} config should implement a script: or a trigger: keyword"]
    fields = keywords.BRIDGE if "trigger" in job else keywords.BUILD
    return [*fields(at, job), *(f"{at} {error}" for error in _contradictions(job))]


def _contradictions(job: dict[str, Any]) -> list[str]:
    """What no single keyword's check can see."""
    errors = []
    has_rules = job.get("rules") is not None
    mixed = [key for key in ("only", "except", "start_in") if has_rules and job.get(key) is not None]
    if mixed:
        errors.append(f"config key may not be used with `rules`: {', '.join(mixed)}")
    if has_rules and job.get("when") == "delayed":
        errors.append("when: delayed should be given in `rules`, where there are some")
    if not has_rules and (job.get("when") == "delayed") != (job.get("start_in") is not None):
        errors.append("start_in should be given with when: delayed, and only there")
    if "trigger" not in job and job.get("script") in (None, [], ""):
        errors.append("script can't be blank")
    trigger = job.get("trigger")
    if isinstance(trigger, dict) and bool(trigger.get("project")) == bool(trigger.get("include")):
        errors.append("trigger config should contain either a project: or an include:")
    return errors
