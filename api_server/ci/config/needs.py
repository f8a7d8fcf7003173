"""`needs` and `dependencies`: the jobs of its pipeline that a job waits for, and the jobs, also of other
pipelines, whose artifacts it gets."""

import graphlib
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from attrs import evolve, frozen

from api_server.ci.config.checks import Check, Fields, boolean, flatten, text
from api_server.ci.config.errors import Budget, CiConfigError
from api_server.ci.config.parallel import Instance, has_expressions, instances, matrix
from api_server.ci.config.plan import CrossDependency, Need, PlannedJob

#: Maximum number of jobs that one job may wait for, counting each instance of a parallel job.
MAX_NEEDS = 50
#: Maximum number of jobs of other projects, and of jobs of other pipelines, whose artifacts one job may get.
MAX_CROSS_DEPENDENCIES = 5
#: Maximum number of jobs of a file with all instances of parallel ones, before rules are applied.
MAX_INSTANCES = 50_000

Hash = Mapping[str, Any]
Hashes = Mapping[str, Hash]
#: GitLab's words for a job of the same pipeline, a job of another pipeline, and a pipeline whose status is
#: mirrored.
Kind = Literal["job", "cross_dependency", "bridge"]


@frozen
class _Present:
    """A hash in which some texts must be present; the errors are in GitLab's words."""

    fields: Fields
    present: Sequence[str]

    def __call__(self, path: str, value: Any) -> Iterator[str]:
        yield from self.fields(path, value)
        for key in self.present:
            if value.get(key) is None:
                yield f"{path} {key} should be a string"
            if value.get(key) in (None, ""):
                yield f"{path} {key} can't be blank"


def _texts(*names: str) -> dict[str, Check]:
    return dict.fromkeys(names, text)


_JOB = _Present(
    Fields(
        {**_texts("job"), "artifacts": boolean, "optional": boolean, "parallel": matrix},
        attributes=["job", "artifacts", "optional"],
    ),
    ["job"],
)
_OF_PIPELINE = _Present(
    Fields(
        {**_texts("pipeline", "job"), "artifacts": boolean},
        attributes=["pipeline", "job", "artifacts"],
    ),
    ["pipeline", "job"],
)
_OF_PROJECT = _Present(
    Fields(
        {**_texts("project", "ref", "job"), "artifacts": boolean},
        attributes=["project", "ref", "job", "artifacts"],
    ),
    ["project", "ref", "job"],
)
_STATUS = _Present(Fields(_texts("pipeline"), attributes=["pipeline"]), ["pipeline"])
_FORMS: dict[Kind, tuple[_Present, ...]] = {
    "job": (_JOB,),
    "cross_dependency": (_OF_PIPELINE, _OF_PROJECT),
    "bridge": (_STATUS,),
}


def _form(need: Hash) -> tuple[Kind, _Present]:
    """Return the kind of a hash, determined by its keys alone, and the check for it."""
    if "project" in need or "ref" in need:
        return "cross_dependency", _OF_PROJECT
    if "job" not in need:
        return "bridge", _STATUS
    return ("cross_dependency", _OF_PIPELINE) if "pipeline" in need else ("job", _JOB)


def _kind(need: str | Hash) -> Kind:
    return "job" if isinstance(need, str) else _form(need)[0]


@frozen
class Needs:
    """A check of `needs` that accepts only needs of some kinds."""

    kinds: Collection[Kind]

    @property
    def forms(self) -> list[Fields]:
        """The forms of a need, for the reference of keywords."""
        return [form.fields for kind in self.kinds for form in _FORMS[kind]]

    def __call__(self, path: str, value: Any) -> Iterator[str]:
        if not isinstance(value, dict | list):
            yield f"{path} config can only be a Hash or an Array"
        elif value == {}:
            yield f"{path} config can not be an empty Hash"
        else:
            needs = _flat_needs(value)
            wrong = [error for need in needs for error in _errors_of_need(path, need)]
            yield from wrong or self._errors_together(path, needs)

    def _errors_together(self, path: str, needs: list[Any]) -> Iterator[str]:
        used = dict.fromkeys(map(_kind, needs))
        if others := [kind for kind in used if kind not in self.kinds]:
            yield f"{path} config uses invalid types: {', '.join(others)}"
        counts = Counter("project" in need for need in needs if _kind(need) == "cross_dependency")
        if any(number > MAX_CROSS_DEPENDENCIES for number in counts.values()):
            yield f"{path} config must be less than or equal to {MAX_CROSS_DEPENDENCIES}"


def _errors_of_need(path: str, need: Any) -> Iterator[str]:
    if isinstance(need, dict):
        if "parallel" in need and type(need["parallel"]) is int:
            yield f'{path} config cannot use "parallel: <number>".'
        else:
            yield from _form(need)[1](f"{path}:need", need)
    elif not isinstance(need, str):
        yield f"{path}:need has an unsupported type"
    elif not need:
        yield f"{path}:need config can't be blank"


def _without_nulls(value: Hash) -> dict[str, Any]:
    """Return the keys that have a value: a key with null counts as absent."""
    return {key: inner for key, inner in value.items() if inner is not None}


def _flat_needs(value: Any) -> list[Any]:
    """Return all needs, ignoring nulls at every level."""
    return [need for need in flatten(value) or () if need is not None]


def _of_kind(value: Any, kind: Kind) -> list[Any]:
    """Return the checked needs of a kind; an empty list if there are none."""
    return [need for need in _flat_needs(value) if _kind(need) == kind]


def needs_of(value: Any) -> tuple[Need, ...] | None:
    """Return the needs of the same pipeline, at most one beyond MAX_NEEDS, because a few lines may stand for
    many."""
    if value is None:
        return None
    every = (need for item in _of_kind(value, "job") for need in _needs(item))
    return tuple(itertools.islice(every, MAX_NEEDS + 1))


def _needs(item: str | Hash) -> list[Need]:
    """Return the need, or one for each row of its matrix."""
    if isinstance(item, str):
        return [Need(job=item)]
    need = _without_nulls(item)
    parallel = need.pop("parallel", None)
    return [Need(**need | {"job": row.name}) for row in instances(need["job"], parallel)]


def cross_dependencies_of(value: Any) -> tuple[CrossDependency, ...]:
    """Return the jobs of other pipelines whose artifacts are needed, with variables not yet replaced."""
    needs = map(_without_nulls, _of_kind(value, "cross_dependency"))
    return tuple(
        CrossDependency(**{key: text for key, text in need.items() if key != "artifacts"})
        for need in needs
        if need.get("artifacts") is not False
    )


def upstream_of(value: Any) -> str | None:
    """Return the path of the project whose pipeline's status a bridge mirrors, or None."""
    return next((str(need["pipeline"]) for need in _of_kind(value, "bridge")), None)


def upstreams(value: Any) -> int:
    """Return the number of pipelines to mirror that `needs`, which is unchecked, names."""
    needs = flatten(value) or () if isinstance(value, dict | list) else ()
    return sum(isinstance(need, dict) and _kind(need) == "bridge" for need in needs)


def errors_of_needs(jobs: Hashes, stages: tuple[str, ...], budget: Budget) -> list[str]:
    """Return the errors of `needs` and `dependencies` in the file itself, independently of the jobs that a
    pipeline has."""
    index_of = {stage: index for index, stage in enumerate(stages)}
    stage_of: dict[str, int] = {}
    for name, job in jobs.items():
        for job_name in (name, *(other.name for other in instances(name, job.get("parallel")))):
            stage_of[job_name] = index_of[job["stage"]]
        if len(stage_of) > MAX_INSTANCES:
            raise CiConfigError(
                f"The number of jobs, with all that `parallel` makes, exceeds {MAX_INSTANCES}"
            )
    errors: list[str] = []
    graph: dict[str, list[str]] = {}
    for name, job in jobs.items():
        for instance in _differing(name, job):
            try:
                needs = needs_of(instance.written_out(job.get("needs")))
            except CiConfigError as error:
                errors += error.errors
                continue
            budget.spend(len(needs or ()))
            errors += _errors_of_job(instance.name, job, needs, stage_of)
            graph[instance.name] = [need.job for need in needs or ()]
    if not errors:
        check_acyclic(graph)
    return errors


def _differing(name: str, job: Hash) -> list[Instance]:
    """Return the instances of a job that may need different jobs, or the job as a whole if they need the
    same."""
    if has_expressions(job.get("needs")):
        return instances(name, job.get("parallel"))
    return [Instance(family=name, name=name)]


def _errors_of_job(
    name: str, job: Hash, needs: tuple[Need, ...] | None, stage_of: Mapping[str, int]
) -> list[str]:
    errors = []
    if len(needs or ()) > MAX_NEEDS:
        return [_too_many_needs(name)]
    names = [need.job for need in needs or ()]
    if doubled := sorted({need_name for need_name in names if names.count(need_name) > 1}):
        errors.append(f"{name} has the following needs duplicated: {', '.join(doubled)}.")
    for need in needs or ():
        errors += _errors_of_target(
            name, "need", need.job, stage_of, last=stage_of[name], optional=need.optional
        )
    for target in job.get("dependencies") or ():
        errors += _errors_of_target(name, "dependency", target, stage_of, last=stage_of[name])
    if needs and (
        missing := [dependency for dependency in job.get("dependencies") or () if dependency not in names]
    ):
        errors.append(f"jobs:{name} dependencies the {', '.join(missing)} should be part of needs")
    return errors


def _too_many_needs(name: str) -> str:
    return f"{name} job: one job can only need {MAX_NEEDS} others"


def _errors_of_target(
    name: str, what: str, target: str, stage_of: Mapping[str, int], *, last: int, optional: bool = False
) -> list[str]:
    """Return the errors of a reference to another job, which must not come after the stage `last`."""
    if target not in stage_of:
        return [] if optional else [f"{name} job: undefined {what}: {target}"]
    if stage_of[target] > last:
        stages = "current or prior" if last == stage_of[name] else "prior"
        return [f"{name} job: {what} {target} is not defined in {stages} stages"]
    return []


def check_acyclic(graph: Mapping[str, Iterable[str]]) -> None:
    """Raise CiConfigError, naming the cycle, if jobs wait for each other."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise CiConfigError(f"The pipeline has circular dependencies: {circle}") from None


def resolve_needs(jobs: Mapping[str, PlannedJob], families: Mapping[str, Iterable[str]]) -> list[PlannedJob]:
    """Return the planned jobs with `needs` and `dependencies` as names of jobs that the pipeline has.

    `families` has, for each job of the file, the names of its instances, planned or not.
    """
    present = {name: [job] for name, job in jobs.items()}
    targets = present | {
        name: [jobs[instance] for instance in names if instance in jobs] for name, names in families.items()
    }
    resolved: list[PlannedJob] = []
    errors: list[str] = []
    for job in jobs.values():
        needs = None if job.needs is None else _present_needs(job, targets, errors)
        downloads = _downloads(job, needs, targets)
        resolved.append(evolve(job, needs=needs, dependencies=downloads))
    if errors:
        raise CiConfigError(*errors)
    check_acyclic({job.name: [need.job for need in job.needs or ()] for job in resolved})
    return resolved


def _present_needs(
    job: PlannedJob, targets: Mapping[str, list[PlannedJob]], errors: list[str]
) -> tuple[Need, ...]:
    present: dict[str, Need] = {}
    for need in job.needs or ():
        family = targets.get(need.job, [])
        if not family and not need.optional:
            errors.append(
                f"'{job.name}' job needs '{need.job}' job, but '{need.job}' does not exist in the pipeline. "
                "This might be because of the only, except, or rules keywords. "
                "To need a job that sometimes does not exist in the pipeline, use needs:optional."
            )
        for other in family:
            if other.stage_index > job.stage_index:
                errors.append(f"{job.name} job: need {other.name} is not defined in current or prior stages")
            present[other.name] = evolve(need, job=other.name)
            if len(present) > MAX_NEEDS:
                raise CiConfigError(_too_many_needs(job.name))
    return tuple(present.values())


def _downloads(
    job: PlannedJob, needs: tuple[Need, ...] | None, targets: Mapping[str, list[PlannedJob]]
) -> tuple[str, ...] | None:
    """Return the jobs whose artifacts are downloaded: the jobs of the needs that ask for artifacts, or else
    of all earlier stages, restricted to those that `dependencies` names."""
    selected = job.dependencies
    dependencies = (
        None if selected is None else [other for name in selected for other in targets.get(name, ())]
    )
    if needs is None:
        earlier = (other.name for other in dependencies or () if other.stage_index < job.stage_index)
        return None if dependencies is None else tuple(earlier)
    names = None if dependencies is None else {other.name for other in dependencies}
    return tuple(need.job for need in needs if need.artifacts and (names is None or need.job in names))
