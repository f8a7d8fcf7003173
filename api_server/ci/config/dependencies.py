"""`needs` and `dependencies`: which other jobs a job waits for, and whose artifacts it downloads."""

import graphlib
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import evolve

from api_server.ci.config.errors import ConfigError
from api_server.ci.config.jobs import MAX_NEEDS, needs_of
from api_server.ci.config.parallel import instances
from api_server.ci.config.plan import Need, PlannedJob

#: Jobs of a file, and all instances of parallel ones, whichever its rules then leave.
MAX_INSTANCES = 50_000

Hashes = Mapping[str, Mapping[str, Any]]


def errors_of(jobs: Hashes, stages: tuple[str, ...]) -> list[str]:
    """What is wrong with them in the file itself, whichever jobs a pipeline then has."""
    index_of = {stage: index for index, stage in enumerate(stages)}
    stage_of: dict[str, int] = {}
    for name, job in jobs.items():
        for instance in (name, *(one.name for one in instances(name, job.get("parallel")))):
            stage_of[instance] = index_of[job["stage"]]
        if len(stage_of) > MAX_INSTANCES:
            raise ConfigError(f"The number of jobs, with all that `parallel` makes, exceeds {MAX_INSTANCES}")
    errors: list[str] = []
    for name, job in jobs.items():
        errors += _errors_of_job(name, job, stage_of)
    if not errors:
        check_acyclic(
            {name: [need.job for need in needs_of(job.get("needs")) or ()] for name, job in jobs.items()}
        )
    return errors


def _errors_of_job(name: str, job: Mapping[str, Any], stage_of: Mapping[str, int]) -> list[str]:
    errors = []
    needs = needs_of(job.get("needs"))
    if len(needs or ()) > MAX_NEEDS:
        return [_too_many(name)]
    named = [need.job for need in needs or ()]
    if doubled := sorted({one for one in named if named.count(one) > 1}):
        errors.append(f"{name} has the following needs duplicated: {', '.join(doubled)}.")
    for need in needs or ():
        errors += _errors_of_target(
            name, "need", need.job, stage_of, last=stage_of[name], optional=need.optional
        )
    for target in job.get("dependencies") or ():
        errors += _errors_of_target(name, "dependency", target, stage_of, last=stage_of[name])
    if needs and (missing := [one for one in job.get("dependencies") or () if one not in named]):
        errors.append(f"jobs:{name} dependencies the {', '.join(missing)} should be part of needs")
    return errors


def _too_many(name: str) -> str:
    return f"{name} job: one job can only need {MAX_NEEDS} others"


def _errors_of_target(
    name: str, what: str, target: str, stage_of: Mapping[str, int], *, last: int, optional: bool = False
) -> list[str]:
    """What is wrong with a job's pointing at another, which must not come after the stage `last`."""
    if target not in stage_of:
        return [] if optional else [f"{name} job: undefined {what}: {target}"]
    if stage_of[target] > last:
        stages = "current or prior" if last == stage_of[name] else "prior"
        return [f"{name} job: {what} {target} is not defined in {stages} stages"]
    return []


def check_acyclic(graph: Mapping[str, Iterable[str]]) -> None:
    """ConfigError that names a circle, when jobs wait for each other."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise ConfigError(f"The pipeline has circular dependencies: {circle}") from None


def resolve(planned: Mapping[str, PlannedJob], families: Mapping[str, Iterable[str]]) -> list[PlannedJob]:
    """The planned jobs, by name, with `needs` and `dependencies` as names of jobs that the pipeline has.

    `families` has, for each job of the file, the names that it stands for, planned or not.
    """
    present = {name: [job] for name, job in planned.items()}
    targets = present | {
        name: [planned[instance] for instance in names if instance in planned]
        for name, names in families.items()
    }
    resolved: list[PlannedJob] = []
    errors: list[str] = []
    for job in planned.values():
        needs = None if job.needs is None else _present_needs(job, targets, errors)
        downloads = _downloads(job, needs, targets)
        resolved.append(evolve(job, needs=needs, dependencies=downloads))
    if errors:
        raise ConfigError(*errors)
    check_acyclic({job.name: [need.job for need in job.needs or ()] for job in resolved})
    return resolved


def _present_needs(
    job: PlannedJob, targets: Mapping[str, list[PlannedJob]], errors: list[str]
) -> tuple[Need, ...]:
    found: dict[str, Need] = {}
    for need in job.needs or ():
        family = targets.get(need.job, [])
        if not family and not need.optional:
            errors.append(
                f"'{job.name}' job needs '{need.job}' job, but '{need.job}' does not exist in the pipeline"
            )
        for other in family:
            if other.stage_index > job.stage_index:
                errors.append(f"{job.name} job: need {other.name} is not defined in current or prior stages")
            found[other.name] = evolve(need, job=other.name)
            if len(found) > MAX_NEEDS:
                raise ConfigError(_too_many(job.name))
    return tuple(found.values())


def _downloads(
    job: PlannedJob, needs: tuple[Need, ...] | None, targets: Mapping[str, list[PlannedJob]]
) -> tuple[str, ...] | None:
    """Of the needs that ask for artifacts, or else of all earlier stages, those that `dependencies` names."""
    named = job.dependencies
    wanted = None if named is None else [other for name in named for other in targets.get(name, ())]
    if needs is None:
        earlier = (other.name for other in wanted or () if other.stage_index < job.stage_index)
        return None if wanted is None else tuple(earlier)
    names = None if wanted is None else {other.name for other in wanted}
    return tuple(need.job for need in needs if need.artifacts and (names is None or need.job in names))
