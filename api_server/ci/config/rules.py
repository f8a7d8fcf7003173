"""Whether a job, an include or the pipeline is wanted: `rules`, and the older `only` and `except`."""

from collections.abc import Collection, Mapping
from typing import Any

from api_server.ci.config import expressions, patterns
from api_server.ci.config.context import Context
from api_server.ci.config.patterns import PathSet
from api_server.ci.config.variables import expand_known

#: Words of `only:refs` beside branches and tags: the `CI_PIPELINE_SOURCE` that each stands for.
_SOURCES = {
    "api": "api",
    "chat": "chat",
    "external": "external",
    "external_pull_requests": "external_pull_request_event",
    "merge_requests": "merge_request_event",
    "pipelines": "pipeline",
    "pushes": "push",
    "schedules": "schedule",
    "triggers": "trigger",
    "web": "web",
}

Rule = Mapping[str, Any]


def first_match(rules: Collection[Rule], known: Mapping[str, str], context: Context) -> Rule | None:
    """The first rule all of whose conditions hold; None when there is none."""
    return next((rule for rule in rules if _holds(rule, known, context)), None)


def _holds(rule: Rule, known: Mapping[str, str], context: Context) -> bool:
    if rule.get("if") is not None and not expressions.parse(rule["if"])(known):
        return False
    if rule.get("changes") is not None and not _changed(rule["changes"], known, context):
        return False
    return rule.get("exists") is None or _match(_globs(rule["exists"]), known, context.paths)


def _globs(value: Any) -> list[str]:
    globs = value["paths"] if isinstance(value, dict) else value
    return [globs] if isinstance(globs, str) else list(globs)


def _changed(changes: Any, known: Mapping[str, str], context: Context) -> bool:
    base = changes.get("compare_to") if isinstance(changes, dict) else None
    paths = context.changed if base is None else context.changed_since(expand_known(base, known))
    return paths is None or _match(_globs(changes), known, paths)


def _match(globs: list[str], known: Mapping[str, str], paths: PathSet) -> bool:
    return any(_glob_matches(expand_known(glob, known), paths) for glob in globs)


def _glob_matches(glob: str, paths: PathSet) -> bool:
    try:
        return bool(paths.matching(glob))
    except ValueError:  # what a variable's value made of it is too large a pattern, so nothing can match
        return False


def wanted_by_refs(job: Mapping[str, Any], known: Mapping[str, str], context: Context) -> bool:
    """What `only` (`refs` are branches and tags unless it says so) and `except` say about a job without `rules`."""
    only = job.get("only", {})
    if isinstance(only, dict):
        only = {"refs": ["branches", "tags"], **{key: part for key, part in only.items() if part is not None}}
    if not all(_policy(only, known, context)):
        return False
    return not any(_policy(job.get("except", []), known, context))


def _policy(policy: Any, known: Mapping[str, str], context: Context) -> list[bool]:
    """Which parts of an `only` or `except` hold."""
    if isinstance(policy, str):
        policy = [policy]
    parts = {"refs": policy} if isinstance(policy, list) else policy
    held = []
    for kind, wanted in parts.items():
        if wanted is None:
            continue
        if kind == "refs":
            held.append(any(_ref_of_project_matches(ref, known) for ref in wanted))
        elif kind == "variables":
            held.append(any(expressions.parse(condition)(known) for condition in wanted))
        else:
            held.append(_changed(wanted, known, context))
    return held


def _ref_of_project_matches(wanted: str, known: Mapping[str, str]) -> bool:
    ref, project = patterns.ref_and_project(wanted)
    return project in (None, known.get("CI_PROJECT_PATH")) and _ref_matches(ref, known)


def _ref_matches(wanted: str, known: Mapping[str, str]) -> bool:
    source, ref = known.get("CI_PIPELINE_SOURCE"), known.get("CI_COMMIT_REF_NAME", "")
    on_merge_request = source == "merge_request_event"
    if wanted in {"branches", "tags"}:
        return not on_merge_request and ("CI_COMMIT_TAG" in known) == (wanted == "tags")
    if wanted in _SOURCES:
        return source == _SOURCES[wanted]
    if on_merge_request:
        return False
    if wanted.startswith("/"):
        return bool(patterns.parse_delimited(wanted).search(ref))
    return wanted == ref
