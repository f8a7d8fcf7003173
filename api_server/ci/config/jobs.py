"""Conversion of checked job hashes to values of the plan."""

import hashlib
from collections.abc import Mapping
from typing import Any

from attrs import evolve

from api_server.ci.config import checks, yaml_text
from api_server.ci.config.checks import MAX_NAME, flatten
from api_server.ci.config.context import Context
from api_server.ci.config.errors import CiConfigError
from api_server.ci.config.needs import cross_dependencies_of, upstream_of
from api_server.ci.config.patterns import parse_delimited
from api_server.ci.config.plan import (
    Artifacts,
    Cache,
    Environment,
    IdToken,
    Image,
    PlannedJob,
    Release,
    ReleaseLink,
    Retry,
    Service,
    Trigger,
)
from api_server.ci.config.variables import Variable, expand, expand_known

Hash = Mapping[str, Any]
Values = Mapping[str, str]

#: Maximum number of files that an item of `cache:key:files` may stand for.
MAX_KEY_FILES = 10_000

_ARTIFACTS_AS_GIVEN = ("name", "untracked", "when", "public", "access", "expose_as")


def variables_of(value: Hash | None) -> tuple[Variable, ...]:
    """Return the variables of a `variables` hash; those with `expand: false` are raw."""
    variables = []
    for key, inner in (value or {}).items():
        definition = inner if isinstance(inner, dict) else {"value": inner}
        raw = definition.get("expand") is False
        variables.append(Variable(key, yaml_text.spell_scalar(definition.get("value")), raw=raw))
    return tuple(variables)


def _without_nulls(value: Hash) -> dict[str, Any]:
    """Return the keys that have a value: a key with null counts as absent."""
    return {key: inner for key, inner in value.items() if inner is not None}


def build_job(
    name: str, job: Hash, variables: tuple[Variable, ...], values: Values, context: Context
) -> PlannedJob:
    """Return the job without the values that depend on its rules and on other jobs (stage index, when, needs,
    dependencies).

    `values` are those of all variables, for the names that are expanded here: tags, environment, ...
    """
    allowed = job.get("allow_failure")
    upstream = upstream_of(job.get("needs"))
    plan = PlannedJob(
        name=name,
        stage=job["stage"],
        stage_index=0,
        kind="bridge" if "trigger" in job or upstream is not None else "build",
        variables=variables,
        tags=tuple(dict.fromkeys(expand_known(tag, values) for tag in _texts(job.get("tags")))),
        allow_failure=_allow_failure(job),
        allow_failure_exit_codes=_codes(allowed["exit_codes"]) if isinstance(allowed, dict) else (),
        resource_group=_resource_group(name, job.get("resource_group"), values),
        interruptible=bool(job.get("interruptible")),
        environment=_environment(name, job.get("environment"), values),
        manual_confirmation=job.get("manual_confirmation"),
        trigger=_trigger(job.get("trigger"), values),
        upstream=None if upstream is None else expand(upstream, values),
        cross_dependencies=cross_dependencies_of(job.get("needs")),
    )
    return plan if plan.kind == "bridge" else _with_execution(plan, job, context)


def _with_execution(plan: PlannedJob, job: Hash, context: Context) -> PlannedJob:
    """Return the job with the keywords that only a runner needs."""
    return evolve(
        plan,
        script=_texts(job.get("script")),
        before_script=_texts(job.get("before_script")),
        after_script=_texts(job.get("after_script")),
        pre_get_sources_script=_texts((job.get("hooks") or {}).get("pre_get_sources_script")),
        retry=_retry(job.get("retry")),
        timeout=checks.parse_duration(job["timeout"]) if job.get("timeout") is not None else None,
        coverage=_coverage(job.get("coverage")),
        artifacts=_artifacts(_with_pages(job)),
        cache=tuple(
            _cache(cache, index, context)
            for index, cache in enumerate(flatten(job.get("cache")) or ())
            if cache
        ),
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
    """Return whether the job may fail: a manual job may (and so blocks nothing) unless the file says
    otherwise."""
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


def _with_pages(job: Hash) -> Hash | None:
    """Return the job's `artifacts`, with the folder that `pages` would publish among their paths."""
    artifacts: Hash | None = job.get("artifacts")
    if not (pages := job.get("pages")):
        return artifacts
    fields = artifacts or {}
    published = (pages.get("publish") if isinstance(pages, dict) else None) or job.get("publish") or "public"
    return {**fields, "paths": list(dict.fromkeys((*_texts(fields.get("paths")), published)))}


def _artifacts(value: Hash | None) -> Artifacts | None:
    if not value:
        return None
    fields = _without_nulls(value)
    reports = dict(fields.get("reports") or {})
    if covered := reports.pop("coverage_report", None):
        reports[covered["coverage_format"]] = covered["path"]
    expire_in = fields.get("expire_in")
    return Artifacts(
        **{key: fields[key] for key in _ARTIFACTS_AS_GIVEN if key in fields},
        paths=_texts(fields.get("paths")),
        exclude=_texts(fields.get("exclude")),
        expire_in=checks.parse_duration(expire_in) if expire_in is not None else None,
        reports={kind: _texts(paths) for kind, paths in reports.items() if paths is not None},
    )


def _cache(value: Hash, index: int, context: Context) -> Cache:
    fields = _without_nulls(value)
    for name in ("paths", "fallback_keys"):
        fields[name] = _texts(fields.get(name))
    key = fields.pop("key", "default")
    return Cache(**fields, key=_files_key(key, index, context) if isinstance(key, dict) else str(key))


def _files_key(key: Hash, index: int, context: Context) -> str:
    """Return a key that changes exactly when one of the files does; `default` as long as none of them
    exists. Without a prefix, the position of the cache keeps it apart from others for the same files."""
    paths = (path for item in key["files"] for path in _matching(item.lstrip("/"), context))
    ids = [context.repository.content_id(path) for path in paths]
    digest = hashlib.sha256("\0".join(content_id or "" for content_id in ids).encode()).hexdigest()[:40]
    return f"{key.get('prefix') or index}-{digest if any(ids) else 'default'}"


def _matching(item: str, context: Context) -> list[str]:
    """Return the paths that an item of `cache:key:files` stands for. Raise CiConfigError if there are too
    many."""
    paths = context.paths.included(item) if "*" in item else [item]
    if len(paths) > MAX_KEY_FILES:
        raise CiConfigError(f"cache:key:files `{item}` stands for more than {MAX_KEY_FILES} files")
    return paths


def _image(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"name": value}
    fields = _without_nulls(value)
    for key in ("entrypoint", "pull_policy", "command"):
        if key in fields:
            fields[key] = _texts(fields[key])
    if "kubernetes" in fields:
        fields["kubernetes"] = {
            key: str(inner) for key, inner in _without_nulls(fields["kubernetes"]).items()
        }
    return fields


def _service(value: Any) -> Service:
    fields = _image(value)
    return Service(**{**fields, "variables": variables_of(fields.get("variables"))})


def _resource_group(job: str, value: str | None, values: Values) -> str | None:
    return _name(f"{job} job: resource_group", value, values) if value else None


def _name(kind: str, value: str, values: Values) -> str:
    """Return the name with its variables replaced. Raise CiConfigError if it is too long to be stored."""
    name = expand(value, values)
    if len(name) > MAX_NAME:
        raise CiConfigError(f"{kind} is too long (maximum is {MAX_NAME} characters)")
    return name


def _environment(job: str, value: Any, values: Values) -> Environment | None:
    if value is None:
        return None
    fields: Hash = {"name": value} if isinstance(value, str) else value
    return Environment(
        name=_name(f"{job} job: environment name", fields["name"], values),
        url=fields.get("url"),
        action=fields.get("action") or "start",
        tier=fields.get("deployment_tier"),
        on_stop=fields.get("on_stop"),
        auto_stop_in=expand(str(fields["auto_stop_in"]), values) if fields.get("auto_stop_in") else None,
    )


def _release(value: Hash | None) -> Release | None:
    if not value:
        return None
    fields = _without_nulls(value)
    links = (fields.pop("assets", None) or {}).get("links") or ()
    return Release(
        **{**fields, "milestones": _texts(fields.get("milestones"))},
        links=tuple(ReleaseLink(**_without_nulls(link)) for link in links),
    )


def _trigger(value: Any, values: Values) -> Trigger | None:
    if value is None:
        return None
    fields: Hash = {"project": value} if isinstance(value, str) else value
    include = fields.get("include") or []
    files = include if isinstance(include, list) else [include]
    forward = fields.get("forward") or {}
    return Trigger(
        project=expand(fields["project"], values) if fields.get("project") else None,
        branch=expand(fields["branch"], values) if fields.get("branch") else None,
        include=tuple(_included(file, values) for file in files),
        depend=fields.get("strategy") == "depend",
        mirror=fields.get("strategy") == "mirror",
        forward_yaml_variables=forward.get("yaml_variables") is not False,
        forward_pipeline_variables=bool(forward.get("pipeline_variables")),
        inputs=fields.get("inputs") or {},
    )


def _included(value: Any, values: Values) -> Any:
    if isinstance(value, str):
        return expand(value, values)
    fields = _without_nulls(value)
    if list(fields) == ["local"]:
        return expand(fields["local"], values)
    return {
        key: inner
        if key == "inputs"
        else [expand(item, values) for item in inner]
        if isinstance(inner, list)
        else expand(inner, values)
        for key, inner in fields.items()
    }
