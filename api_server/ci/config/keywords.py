"""The configuration language as tables: every keyword, and the check of its value.

A GitLab keyword that is missing here is listed in the `beyond` of its hash and refused as not supported; a
keyword in neither list is unknown. `reference` returns all keywords as one list.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from attrs import frozen

from api_server.ci.config import inputs
from api_server.ci.config.checks import (
    MAX_LIST_NESTING,
    ByType,
    Check,
    Each,
    Fields,
    boolean,
    condition,
    duration,
    flatten,
    glob,
    integer,
    matching,
    moment,
    one_of,
    ref,
    regex,
    script,
    text,
)
from api_server.ci.config.execution import (
    BEYOND_DEFAULT,
    DEFAULT,
    READ_REPORTS,
    REPORTS,
    WEEK,
    exit_codes,
    job_variable,
    plain,
    text_or_texts,
    texts,
    variables,
)
from api_server.ci.config.needs import Needs
from api_server.ci.config.parallel import MAX_PARALLEL, matrix

_globs = Each(glob, at_most=50)
_changes = ByType(
    {
        list: _globs,
        dict: Fields(
            {"paths": _globs, "compare_to": text}, ["paths"], ["regexp"], attributes=["paths", "compare_to"]
        ),
    }
)


def _in_project(path: str, value: Any) -> Iterator[str]:
    if value.get("ref") is not None and value.get("project") is None:
        yield f"{path} config missing required keys: project"


_exists = ByType(
    {
        str: glob,
        list: _globs,
        dict: Fields(
            {"paths": _globs, "project": text, "ref": text},
            ["paths"],
            ["regexp"],
            _in_project,
            attributes=["paths", "project", "ref"],
        ),
    }
)


def _with_options(path: str, value: Any) -> Iterator[str]:
    """Check a variable of the top level in its long form; if it has options, its value has to be one of
    them."""
    if value.get("options") and value.get("value") not in value["options"]:
        yield f"{path} config value must be present in options"


_global_variable = Fields(
    {"value": plain, "expand": boolean, "description": text, "options": texts}, together=_with_options
)


@frozen
class ByKind:
    """One entry of an `include`, of the kind whose key it has, or `local` if it has none of them."""

    kinds: Mapping[str, Fields]

    def __call__(self, path: str, value: Any) -> Iterator[str]:
        kinds = [kind for kind in self.kinds if isinstance(value, dict) and value.get(kind) is not None]
        if len(kinds) > 1:
            yield f"{path} config is of one kind only: {', '.join(kinds)}"
        else:
            yield from self.kinds[kinds[0] if kinds else "local"](path, value)


def _inputs(path: str, value: Any) -> Iterator[str]:
    """Check that these are values by name. The file that declares the inputs checks the values."""
    if not isinstance(value, dict):
        yield f"{path} config should be a hash"


def _include(beyond: Sequence[str], shared: Mapping[str, Check]) -> ByKind:
    shared = {"inputs": _inputs, **shared}
    return ByKind(
        {
            "local": Fields({"local": text, **shared}, ["local"], beyond),
            "project": Fields(
                {"project": text, "file": text_or_texts, "ref": text, **shared}, ["project", "file"], beyond
            ),
            "remote": Fields({"remote": text, "integrity": text, **shared}, ["remote"], beyond),
            "component": Fields({"component": text, **shared}, ["component"], beyond),
            "template": Fields({"template": text, **shared}, ["template"], beyond),
            "artifact": Fields({"artifact": text, "job": text, **shared}, ["artifact"], beyond, _of_job),
        }
    )


def _of_job(path: str, value: Any) -> Iterator[str]:
    if not value.get("job"):
        yield f"{path} config must specify the job where to fetch the artifact from"


_child: dict[type, Check] = {
    str: text,
    dict: _include([], {}),
}
_children = Each(
    ByType(_child),
    types=(str, dict),
    of="hashes or strings",
    at_most=3,
    too_many="config is too long (maximum is {})",
)
_forward: dict[str, Check] = {"yaml_variables": boolean, "pipeline_variables": boolean}
_trigger = ByType(
    {
        str: text,
        dict: Fields(
            {
                "project": text,
                "branch": text,
                "include": ByType({**_child, list: _children}),
                "strategy": one_of("depend", "mirror"),
                "forward": Fields(_forward, attributes=list(_forward)),
                "inputs": _inputs,
            },
            attributes=["project", "branch", "strategy"],
        ),
    }
)

_rule_conditions: dict[str, Check] = {"if": condition, "changes": _changes, "exists": _exists}
_start_in = duration(at_most=WEEK)


@frozen
class Rules:
    """A list of rules, each a hash of `item`; the list may be nested because of anchors and references."""

    item: Fields

    def __call__(self, path: str, value: Any) -> Iterator[str]:
        rules = flatten(value, MAX_LIST_NESTING) if isinstance(value, list) else None
        if rules is None or not all(isinstance(rule, dict) for rule in rules):
            parent = path.removesuffix(":rules")
            yield f"{parent} rules should be an array containing hashes and arrays of hashes"
            return
        for rule in rules:
            if not rule:
                yield f"{path}:rule config can't be blank"
            yield from self.item(f"{path}:rule", rule)
            if (rule.get("when") == "delayed") != (rule.get("start_in") is not None):
                yield f"{path}:rule start_in should be given with when: delayed, and only there"


_conditions = Each(condition)
_refs = Each(ref, of="strings or regular expressions using re2 syntax")
_only_hash = Fields(
    {"refs": _refs, "kubernetes": one_of("active"), "variables": _conditions, "changes": _globs},
    attributes=["refs", "kubernetes", "variables", "changes"],
)
_only = ByType({str: ref, list: _refs, dict: _only_hash})

_BRIDGE_WHEN = ("on_success", "on_failure", "always", "manual")
_JOB_WHEN = (*_BRIDGE_WHEN, "delayed")
_rule: dict[str, Check] = {
    **_rule_conditions,
    "when": one_of(*_JOB_WHEN, "never"),
    "start_in": _start_in,
    "allow_failure": boolean,
    "interruptible": boolean,
    "variables": variables(job_variable),
    "needs": Needs(["job"]),
}


_OF_RULES = ("if", "when", "start_in", "allow_failure", "interruptible")
_OF_JOBS = ("when", "start_in", "allow_failure", "dependencies", "resource_group", "manual_confirmation")


def _auto_stop_in(path: str, value: Any) -> Iterator[str]:
    """Check a duration. Text with variables is not checked, since their values are not known yet."""
    if not (isinstance(value, str) and "$" in value):
        yield from duration(never=True)(path, value)


_OF_DASHBOARDS: dict[str, Check] = {"namespace": text, "flux_resource_path": text}
_environment_name = matching(
    r"(?!/)[\w/${}. -]+(?<!/)",
    "can contain only letters, digits, '-', '_', '/', '$', '{', '}', '.', and spaces, "
    "but it cannot start or end with '/'",
)
_environment = Fields(
    {
        "name": _environment_name,
        "url": text,
        "action": one_of("start", "stop", "prepare", "verify", "access"),
        "on_stop": text,
        "auto_stop_in": _auto_stop_in,
        "deployment_tier": one_of("production", "staging", "testing", "development", "other"),
        "kubernetes": Fields(
            {
                "agent": text,
                **_OF_DASHBOARDS,
                "managed_resources": Fields({"enabled": boolean}),
                "dashboard": Fields(_OF_DASHBOARDS),
            }
        ),
    },
    required=["name"],
    attributes=["name", "url", "action", "on_stop", "auto_stop_in", "deployment_tier"],
)
_release_link = Fields(
    {
        "name": text,
        "url": text,
        "filepath": text,
        "link_type": one_of("other", "runbook", "image", "package"),
    },
    required=["name", "url"],
    attributes=["name", "url", "filepath", "link_type"],
)
_release = Fields(
    {
        "tag_name": text,
        "tag_message": text,
        "name": text,
        "description": text,
        "ref": text,
        "milestones": text_or_texts,
        "released_at": moment,
        "assets": Fields({"links": Each(_release_link, types=(dict,), of="hashes")}, required=["links"]),
    },
    required=["tag_name", "description"],
    attributes=["tag_name", "tag_message", "name", "description", "ref", "milestones", "released_at"],
)
_pages = Fields(
    {"publish": text, "path_prefix": text, "expire_in": duration(never=True)},
    attributes=["publish", "path_prefix", "expire_in"],
)

_ANY_JOB: dict[str, Check] = {
    "stage": text,
    "only": _only,
    "except": _only,
    "rules": Rules(Fields(_rule, attributes=_OF_RULES)),
    "variables": variables(job_variable),
    "inherit": Fields(
        {
            "default": ByType({bool: boolean, list: Each(one_of(*DEFAULT, *BEYOND_DEFAULT))}),
            "variables": ByType({bool: boolean, list: texts}),
        }
    ),
    "environment": ByType({str: lambda at, value: _environment(at, {"name": value}), dict: _environment}),
    "resource_group": text,
    "parallel": ByType({int: integer(1, MAX_PARALLEL), dict: matrix}),
}

#: Keywords of a job that a runner runs.
BUILD = Fields(
    {
        **_ANY_JOB,
        **DEFAULT,
        "needs": Needs(["job", "cross_dependency"]),
        "script": script,
        "when": one_of(*_JOB_WHEN),
        "start_in": _start_in,
        "allow_failure": ByType(
            {bool: boolean, dict: Fields({"exit_codes": exit_codes}, required=["exit_codes"])}
        ),
        "coverage": regex,
        "dependencies": texts,
        "manual_confirmation": text,
        "release": _release,
        "pages": ByType({bool: boolean, dict: _pages}),
        "publish": text,
    },
    beyond=(*BEYOND_DEFAULT, "secrets", "run", "dast_configuration", "inputs"),
    attributes=_OF_JOBS,
)

#: Keywords of a job that starts another pipeline, or mirrors the status of one.
BRIDGE = Fields(
    {
        **_ANY_JOB,
        "needs": Needs(["job", "bridge"]),
        "trigger": _trigger,
        "when": one_of(*_BRIDGE_WHEN),
        "allow_failure": boolean,
        "interruptible": boolean,
    },
    attributes=_OF_JOBS,
)

#: Keywords of `default:` that may also stand at the top level, as in early versions of the language.
TOP_LEVEL_DEFAULTS = ("before_script", "after_script", "image", "services", "cache")

_auto_cancel = Fields(
    {
        "on_new_commit": one_of("conservative", "interruptible", "none"),
        "on_job_failure": one_of("none", "all"),
    },
    attributes=["on_new_commit", "on_job_failure"],
)
_filter: dict[str, Check] = {**_rule_conditions, "when": one_of("always", "never")}

#: Keywords of the top level; every other key there is a job.
GLOBAL: dict[str, Check] = {
    **{name: DEFAULT[name] for name in TOP_LEVEL_DEFAULTS},
    "default": Fields(DEFAULT, beyond=BEYOND_DEFAULT),
    "stages": Each(text, levels=MAX_LIST_NESTING),
    "variables": variables(_global_variable),
    "workflow": Fields(
        {
            "name": text,
            "auto_cancel": _auto_cancel,
            "rules": Rules(
                Fields(
                    {**_filter, "variables": variables(job_variable), "auto_cancel": _auto_cancel},
                    attributes=_OF_RULES,
                )
            ),
        },
        attributes=["name"],
    ),
}
#: One entry of `include:` in its long form.
INCLUDE = _include(
    ["cache"],
    {"rules": Rules(Fields(_filter, attributes=_OF_RULES))},
)


#: Differences of supported keywords from GitLab.
DIFFERS = {
    **{
        f"artifacts:reports:{kind}": "kept as an artifact, but not read"
        for kind in ("coverage_report", *REPORTS)
        if kind not in {*READ_REPORTS, "cobertura", "jacoco"}
    },
    "environment": "used for variables and the rights of agents; there are no environments",
    "environment:action": "passed to the job; does nothing to an environment",
    "id_tokens": "at most 20; [what tokens say](identity-tokens.md)",
    "include": "at most 20 levels deep",
    "include:component": "by the releases or tags of a project; there is no catalog",
    "include:template": "files of the operator's folder (`ci_templates_dir`); none are shipped",
    "include:remote": "at most 1 MiB, 3 redirects, 10 s, and 30 s for all; the URL may contain masked variables",
    "manual_confirmation": "shown by the page of the job, beside the button",
    "needs:parallel:matrix": "also `$[[ matrix.NAME ]]`, which GitLab has since version 18.6",
    "needs:project": "looked for in the 1,000 newest pipelines of the ref; the job's token has to open the artifacts",
    "release": "a step that calls `release-cli`, which the image must contain",
    "only:kubernetes": "never true: projects have no clusters",
    "pages": "nothing is published; `publish`, or else `public`, becomes a path of the artifacts",
    "publish": "as `pages:publish`, in a job with `pages`",
    "rules:changes:compare_to": "at most 20 different refs in one configuration",
    "spec:inputs": "inside a longer text, arrays become JSON; what is inserted is not searched for blocks again",
    "spec:inputs:options": "also of arrays, as in later versions",
    "spec:inputs:rules": "those of GitLab 18; the inputs that they ask about may be declared later",
    "trigger:strategy": "also `mirror`, which GitLab has since version 18",
    "variables": "also numbers with a fraction and booleans, as in later versions of GitLab 17",
}
#: The treatment of keywords that are accepted and have no effect.
IGNORED = {
    "artifacts:expose_as": "kept, but merge requests do not show it",
    "environment:auto_stop_in": "checked and kept; nothing stops by itself",
    **{
        f"environment:kubernetes{key}": "checked; there are no dashboards of clusters"
        for key in (
            "",
            ":agent",
            ":namespace",
            ":flux_resource_path",
            ":managed_resources",
            ":managed_resources:enabled",
            ":dashboard",
            ":dashboard:namespace",
            ":dashboard:flux_resource_path",
        )
    },
    "environment:on_stop": "checked and kept; nothing stops by itself",
    "except:kubernetes": "never true: projects have no clusters",
    "pages:expire_in": "checked; nothing is published",
    "pages:path_prefix": "checked; nothing is published",
    "spec:description": "checked; nothing shows it",
    "variables:description": "checked; there is no page that shows it",
    "variables:options": "checked; there is no page that shows them",
}
#: Keywords that are resolved before anything is checked.
_STRUCTURE = ("extends", "!reference", "include", "default")


@frozen
class Keyword:
    """A keyword. `name` is GitLab's notation, `artifacts:reports:junit`; `note` describes differences."""

    name: str
    support: Literal["as GitLab", "differs", "ignored", "not supported"]
    note: str = ""


def reference() -> list[Keyword]:
    """Return all keywords, sorted by name."""
    keywords = {name: _supported(name) for name in _STRUCTURE}
    for name, supported in _all():
        if supported:
            keywords[name] = _supported(name)
        else:
            keywords.setdefault(name, Keyword(name, "not supported"))
    return sorted(keywords.values(), key=lambda keyword: keyword.name)


def _supported(name: str) -> Keyword:
    if name in IGNORED:
        return Keyword(name, "ignored", IGNORED[name])
    return Keyword(name, "differs", DIFFERS[name]) if name in DIFFERS else Keyword(name, "as GitLab")


def _all() -> Iterator[tuple[str, bool]]:
    """Yield each keyword, some more than once, and whether it is supported there."""
    yield from _names(INCLUDE, "include")
    for fields in (BUILD, BRIDGE):
        yield from _names(fields, "")
    for name, check in GLOBAL.items():
        if name != "default":
            yield name, True
            yield from _names(check, name)
    yield from _names(inputs.HEADER, "")


def _names(check: Check, prefix: str) -> Iterator[tuple[str, bool]]:
    match check:
        case Fields():
            for key, inner in check.keys.items():
                name = f"{prefix}:{key}" if prefix else key
                yield name, True
                yield from _names(inner, name)
            for key in check.beyond:
                yield f"{prefix}:{key}" if prefix else key, False
        case Needs():
            for form in check.forms:
                yield from _names(form, prefix)
        case ByType(inners) | ByKind(inners):
            for inner in inners.values():
                yield from _names(inner, prefix)
        case object(item=inner):
            yield from _names(inner, prefix)
