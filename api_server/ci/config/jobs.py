"""Checked hashes of jobs as values of the plan: `parallel`, each job's keywords, `needs` and `dependencies`."""

import graphlib
import hashlib
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import evolve, frozen

from api_server.ci.config import checks, yaml_text
from api_server.ci.config.checks import MAX_NAME, flatten
from api_server.ci.config.context import Context
from api_server.ci.config.errors import CiConfigError
from api_server.ci.config.keywords import MAX_PARALLEL
from api_server.ci.config.patterns import parse_delimited
from api_server.ci.config.plan import (
    Artifacts,
    Cache,
    Environment,
    IdToken,
    Image,
    Need,
    PlannedJob,
    Release,
    ReleaseLink,
    Retry,
    Service,
    Trigger,
)
from api_server.ci.config.variables import Variable, expand


@frozen(kw_only=True)
class Instance:
    """One of the jobs that `parallel` makes; `index` counts from 1 and is None for a job without `parallel`."""

    name: str
    variables: tuple[Variable, ...] = ()
    index: int | None = None
    total: int = 1


def instances(name: str, parallel: Any) -> list[Instance]:
    """Return `test` alone, or `test 1/3`..., or `test: [aws, small]`... for each row of a matrix.

    Names may come twice; of each name the last instance counts.
    """
    if parallel is None:
        return [Instance(name=name)]
    if isinstance(parallel, int):
        return [
            Instance(name=_named(name, f" {index}/{parallel}"), index=index, total=parallel)
            for index in range(1, parallel + 1)
        ]
    rows = _rows(name, parallel["matrix"])
    return [
        Instance(
            name=_named(name, f": [{', '.join(row.values())}]"),
            variables=tuple(Variable(key, value) for key, value in row.items()),
            index=index,
            total=len(rows),
        )
        for index, row in enumerate(rows, start=1)
    ]


def _named(name: str, suffix: str) -> str:
    if len(name) + len(suffix) > MAX_NAME:
        raise CiConfigError(_name_too_long(name))
    return name + suffix


def _name_too_long(name: str) -> str:
    return f"jobs:{name}:parallel config gives a job a name of more than {MAX_NAME} characters"


def _rows(name: str, matrix: list[dict[str, Any]]) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for block in matrix:
        if len(block) > MAX_NAME:  # and so would be each job's name
            raise CiConfigError(_name_too_long(name))
        axes = [
            [str(item) for item in (axis if isinstance(axis, list) else [axis])] for axis in block.values()
        ]
        combinations = itertools.islice(itertools.product(*axes), MAX_PARALLEL + 1)
        rows += [dict(zip(block, combination, strict=True)) for combination in combinations]
        if len(rows) > MAX_PARALLEL:
            raise CiConfigError(
                f"jobs:{name}:parallel config generates too many jobs (maximum is {MAX_PARALLEL})"
            )
    return rows


Hash = Mapping[str, Any]
Known = Mapping[str, str]

#: Jobs that one job may wait for, each instance of a parallel job counted.
MAX_NEEDS = 50

_ARTIFACTS_AS_GIVEN = ("name", "untracked", "when", "public", "access", "expose_as")


def variables_of(value: Hash | None) -> tuple[Variable, ...]:
    """Return the variables of a `variables` hash; those with `expand: false` are raw."""
    found = []
    for key, inner in (value or {}).items():
        definition = inner if isinstance(inner, dict) else {"value": inner}
        raw = definition.get("expand") is False
        found.append(Variable(key, yaml_text.spell_scalar(definition.get("value")), raw=raw))
    return tuple(found)


def _given(value: Hash) -> dict[str, Any]:
    """Return the keys that are really given: a key with null counts as absent."""
    return {key: inner for key, inner in value.items() if inner is not None}


def needs_of(value: Any) -> tuple[Need, ...] | None:
    """Return the needs, no more than one beyond MAX_NEEDS of them: a few lines may stand for many."""
    if value is None:
        return None
    every = (need for item in flatten(value) or () for need in _needs(item))
    return tuple(itertools.islice(every, MAX_NEEDS + 1))


def _needs(item: str | Hash) -> list[Need]:
    """Return the need, or one for each row of its matrix."""
    if isinstance(item, str):
        return [Need(job=item)]
    need = _given(item)
    parallel = need.pop("parallel", None)
    return [Need(**need | {"job": instance.name}) for instance in instances(need["job"], parallel)]


def build_job(
    name: str, job: Hash, variables: tuple[Variable, ...], known: Known, context: Context
) -> PlannedJob:
    """Return the job without what its rules and the other jobs decide (stage index, when, needs, dependencies).

    `known` are the values of all variables, for the names that are expanded here: tags, environment, ...
    """
    allowed = job.get("allow_failure")
    planned = PlannedJob(
        name=name,
        stage=job["stage"],
        stage_index=0,
        kind="bridge" if "trigger" in job else "build",
        variables=variables,
        tags=tuple(dict.fromkeys(expand(tag, known) for tag in _texts(job.get("tags")))),
        allow_failure=_allow_failure(job),
        allow_failure_exit_codes=_codes(allowed["exit_codes"]) if isinstance(allowed, dict) else (),
        resource_group=_resource_group(name, job.get("resource_group"), known),
        interruptible=bool(job.get("interruptible")),
        environment=_environment(name, job.get("environment"), known),
        manual_confirmation=job.get("manual_confirmation"),
        trigger=_trigger(job.get("trigger"), known),
    )
    return planned if planned.kind == "bridge" else _with_execution(planned, job, context)


def _with_execution(planned: PlannedJob, job: Hash, context: Context) -> PlannedJob:
    """Return the job with the keywords that only a runner needs."""
    return evolve(
        planned,
        script=_texts(job.get("script")),
        before_script=_texts(job.get("before_script")),
        after_script=_texts(job.get("after_script")),
        pre_get_sources_script=_texts((job.get("hooks") or {}).get("pre_get_sources_script")),
        retry=_retry(job.get("retry")),
        timeout=checks.parse_duration(job["timeout"]) if job.get("timeout") is not None else None,
        coverage=_coverage(job.get("coverage")),
        artifacts=_artifacts(job.get("artifacts")),
        cache=tuple(_cache(cache, context) for cache in flatten(job.get("cache")) or () if cache),
        image=Image(**_image(job["image"])) if job.get("image") else None,
        services=tuple(_service(service) for service in flatten(job.get("services") or []) or ()),
        release=_release(job.get("release")),
        id_tokens={
            name: IdToken(aud=_texts(token["aud"]), listed=isinstance(token["aud"], list))
            for name, token in (job.get("id_tokens") or {}).items()
        },
    )


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(flatten(value) or ()) if value is not None else ()


def _allow_failure(job: Hash) -> bool:
    """Return whether the job may fail: a manual one may (and so blocks nothing) unless the file says otherwise."""
    value = job.get("allow_failure")
    return value if isinstance(value, bool) else value is None and job.get("when") == "manual"


def _codes(value: int | list[int] | None) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value or ())


def _retry(value: Any) -> Retry:
    if not isinstance(value, dict):
        return Retry(max=value or 0)
    codes = _codes(value.get("exit_codes"))
    when = _texts(value.get("when")) or (() if codes else Retry().when)
    return Retry(max=value.get("max") or 0, when=when, exit_codes=codes)


def _coverage(value: str | None) -> str | None:
    return parse_delimited(value).pattern if value is not None else None


def _artifacts(value: Hash | None) -> Artifacts | None:
    if not value:
        return None
    given = _given(value)
    reports = dict(given.get("reports") or {})
    if covered := reports.pop("coverage_report", None):
        reports[covered["coverage_format"]] = covered["path"]
    expire_in = given.get("expire_in")
    return Artifacts(
        **{key: given[key] for key in _ARTIFACTS_AS_GIVEN if key in given},
        paths=_texts(given.get("paths")),
        exclude=_texts(given.get("exclude")),
        expire_in=checks.parse_duration(expire_in) if expire_in is not None else None,
        reports={kind: _texts(paths) for kind, paths in reports.items() if paths is not None},
    )


def _cache(value: Hash, context: Context) -> Cache:
    given = _given(value)
    for name in ("paths", "fallback_keys"):
        given[name] = _texts(given.get(name))
    key = given.pop("key", "default")
    return Cache(**given, key=_files_key(key, context) if isinstance(key, dict) else str(key))


def _files_key(key: Hash, context: Context) -> str:
    """Return a key that changes exactly when one of the files does; `default` as long as none of them exists."""
    ids = [context.repository.blob_id(path.lstrip("/")) for path in key["files"]]
    digest = hashlib.sha256("\0".join(blob_id or "" for blob_id in ids).encode()).hexdigest()[:40]
    if not any(ids):
        digest = "default"
    return f"{key['prefix']}-{digest}" if key.get("prefix") else digest


def _image(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"name": value}
    given = _given(value)
    for key in ("entrypoint", "pull_policy", "command"):
        if key in given:
            given[key] = _texts(given[key])
    return given


def _service(value: Any) -> Service:
    given = _image(value)
    return Service(**{**given, "variables": variables_of(given.get("variables"))})


def _resource_group(job: str, value: str | None, known: Known) -> str | None:
    return _name(f"{job} job: resource_group", value, known) if value else None


def _name(what: str, value: str, known: Known) -> str:
    """Return the name with its variables replaced. Raises ConfigError where it is too long to be kept."""
    name = expand(value, known)
    if len(name) > MAX_NAME:
        raise CiConfigError(f"{what} is too long (maximum is {MAX_NAME} characters)")
    return name


def _environment(job: str, value: Any, known: Known) -> Environment | None:
    if value is None:
        return None
    given: Hash = {"name": value} if isinstance(value, str) else value
    return Environment(
        name=_name(f"{job} job: environment name", given["name"], known),
        url=given.get("url"),
        action=given.get("action") or "start",
        tier=given.get("deployment_tier"),
        on_stop=given.get("on_stop"),
        auto_stop_in=expand(str(given["auto_stop_in"]), known) if given.get("auto_stop_in") else None,
    )


def _release(value: Hash | None) -> Release | None:
    if not value:
        return None
    given = _given(value)
    links = (given.pop("assets", None) or {}).get("links") or ()
    return Release(
        **{**given, "milestones": _texts(given.get("milestones"))},
        links=tuple(ReleaseLink(**_given(link)) for link in links),
    )


def _trigger(value: Any, known: Known) -> Trigger | None:
    if value is None:
        return None
    given: Hash = {"project": value} if isinstance(value, str) else value
    include = given.get("include") or []
    files = include if isinstance(include, list) else [include]
    forward = given.get("forward") or {}
    return Trigger(
        project=expand(given["project"], known) if given.get("project") else None,
        branch=expand(given["branch"], known) if given.get("branch") else None,
        include=tuple(_included(file, known) for file in files),
        depend=given.get("strategy") == "depend",
        mirror=given.get("strategy") == "mirror",
        forward_yaml_variables=forward.get("yaml_variables") is not False,
        forward_pipeline_variables=bool(forward.get("pipeline_variables")),
    )


def _included(value: Any, known: Known) -> Any:
    if isinstance(value, str):
        return expand(value, known)
    if "local" in value:
        return expand(value["local"], known)
    return {
        key: [expand(item, known) for item in inner] if isinstance(inner, list) else expand(inner, known)
        for key, inner in _given(value).items()
    }


#: Jobs of a file with all instances of parallel ones, before rules are applied.
MAX_INSTANCES = 50_000

Hashes = Mapping[str, Mapping[str, Any]]


def errors_of_needs(jobs: Hashes, stages: tuple[str, ...]) -> list[str]:
    """Return what is wrong with `needs` and `dependencies` in the file itself, whichever jobs a pipeline then has."""
    index_of = {stage: index for index, stage in enumerate(stages)}
    stage_of: dict[str, int] = {}
    for name, job in jobs.items():
        for instance in (name, *(other.name for other in instances(name, job.get("parallel")))):
            stage_of[instance] = index_of[job["stage"]]
        if len(stage_of) > MAX_INSTANCES:
            raise CiConfigError(
                f"The number of jobs, with all that `parallel` makes, exceeds {MAX_INSTANCES}"
            )
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
        return [_too_many_needs(name)]
    named = [need.job for need in needs or ()]
    if doubled := sorted({need_name for need_name in named if named.count(need_name) > 1}):
        errors.append(f"{name} has the following needs duplicated: {', '.join(doubled)}.")
    for need in needs or ():
        errors += _errors_of_target(
            name, "need", need.job, stage_of, last=stage_of[name], optional=need.optional
        )
    for target in job.get("dependencies") or ():
        errors += _errors_of_target(name, "dependency", target, stage_of, last=stage_of[name])
    if needs and (
        missing := [dependency for dependency in job.get("dependencies") or () if dependency not in named]
    ):
        errors.append(f"jobs:{name} dependencies the {', '.join(missing)} should be part of needs")
    return errors


def _too_many_needs(name: str) -> str:
    return f"{name} job: one job can only need {MAX_NEEDS} others"


def _errors_of_target(
    name: str, what: str, target: str, stage_of: Mapping[str, int], *, last: int, optional: bool = False
) -> list[str]:
    """Return what is wrong with a reference to another job, which must not come after the stage `last`."""
    if target not in stage_of:
        return [] if optional else [f"{name} job: undefined {what}: {target}"]
    if stage_of[target] > last:
        stages = "current or prior" if last == stage_of[name] else "prior"
        return [f"{name} job: {what} {target} is not defined in {stages} stages"]
    return []


def check_acyclic(graph: Mapping[str, Iterable[str]]) -> None:
    """Raise ConfigError, which names the cycle, if jobs wait for each other."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise CiConfigError(f"The pipeline has circular dependencies: {circle}") from None


def resolve_needs(
    planned: Mapping[str, PlannedJob], families: Mapping[str, Iterable[str]]
) -> list[PlannedJob]:
    """Return the planned jobs with `needs` and `dependencies` as names of jobs that the pipeline has.

    `families` has, for each job of the file, the names of its instances, planned or not.
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
        raise CiConfigError(*errors)
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
                raise CiConfigError(_too_many_needs(job.name))
    return tuple(found.values())


def _downloads(
    job: PlannedJob, needs: tuple[Need, ...] | None, targets: Mapping[str, list[PlannedJob]]
) -> tuple[str, ...] | None:
    """Return the jobs whose artifacts are downloaded: of the needs that ask for artifacts, or else of all earlier
    stages, those that `dependencies` names."""
    named = job.dependencies
    wanted = None if named is None else [other for name in named for other in targets.get(name, ())]
    if needs is None:
        earlier = (other.name for other in wanted or () if other.stage_index < job.stage_index)
        return None if wanted is None else tuple(earlier)
    names = None if wanted is None else {other.name for other in wanted}
    return tuple(need.job for need in needs if need.artifacts and (names is None or need.job in names))
