"""What the configuration language consists of, as tables: every keyword, and what its value may be.

A keyword that is missing here does not exist: it is refused by name wherever it is used.
"""

from collections.abc import Iterator
from typing import Any

from api_server.ci.config.checks import (
    Check,
    boolean,
    by_type,
    condition,
    duration,
    each,
    each_value,
    flatten,
    glob,
    integer,
    mapping,
    one_of,
    regex,
    scalar,
    script,
    text,
)

WEEK = 604_800
#: Nearly a thousand years: what ends before the year 9999, the last one that dates have.
LONGEST_KEPT = 52_000 * WEEK
MONTH = 2_592_000
MAX_PARALLEL = 200

#: `artifacts:reports` kinds: the file name the runner gives the upload, and the format it uploads in.
REPORTS = {
    "junit": ("junit.xml", "gzip"),
    "codequality": ("gl-code-quality-report.json", "raw"),
    "cobertura": ("cobertura-coverage.xml", "gzip"),
    "jacoco": ("jacoco-coverage.xml", "gzip"),
    "metrics": ("metrics.txt", "gzip"),
    "terraform": ("tfplan.json", "raw"),
    "accessibility": ("gl-accessibility.json", "raw"),
    "annotations": ("gl-annotations.json", "gzip"),
    "dotenv": (".env", "gzip"),
    "sast": ("gl-sast-report.json", "raw"),
    "secret_detection": ("gl-secret-detection-report.json", "raw"),
    "dependency_scanning": ("gl-dependency-scanning-report.json", "raw"),
    "container_scanning": ("gl-container-scanning-report.json", "raw"),
    "cyclonedx": ("gl-sbom.cdx.json", "gzip"),
}

RETRY_WHEN = (
    "always", "unknown_failure", "script_failure", "api_failure", "stuck_or_timeout_failure",
    "runner_system_failure", "runner_unsupported", "stale_schedule", "job_execution_timeout",
    "archived_failure", "unmet_prerequisites", "scheduler_failure", "data_integrity_failure",
)  # fmt: skip

_texts = each(text)
_text_or_texts = by_type({str: text, list: _texts})
_globs = each(glob, at_most=50)
_paths = by_type({list: _globs, dict: mapping({"paths": _globs}, required=["paths"])})
_variable = {"value": scalar, "expand": boolean}
_job_variable = mapping(_variable, required=["value"])


def _listed(at: str, value: Any) -> Iterator[str]:
    """A variable of the top level in its long form; its value is one of its options when it has any."""
    yield from mapping({**_variable, "description": text, "options": _texts})(at, value)
    if value.get("options") and value.get("value") not in value["options"]:
        yield f"{at} config value should be one of its options"


def _variables(long_form: Check) -> Check:
    return each_value(by_type({str: text, int: scalar, dict: long_form}))


_pull_policy_name = one_of("always", "never", "if-not-present")
_pull_policy = by_type({str: _pull_policy_name, list: each(_pull_policy_name)})
_image = {
    "name": text,
    "entrypoint": _text_or_texts,
    "pull_policy": _pull_policy,
    "docker": mapping({"platform": text, "user": text}),
}
_service = {**_image, "alias": text, "command": _text_or_texts, "variables": _variables(_job_variable)}

_reports_paths = {kind: _text_or_texts for kind in REPORTS if kind not in {"cobertura", "jacoco"}}
_artifacts = {
    "name": text,
    "paths": _texts,
    "exclude": _texts,
    "untracked": boolean,
    "when": one_of("on_success", "on_failure", "always"),
    "expire_in": duration(at_most=LONGEST_KEPT, never=True),
    "public": boolean,
    "reports": mapping(
        {
            **_reports_paths,
            "coverage_report": mapping(
                {"coverage_format": one_of("cobertura", "jacoco"), "path": text},
                required=["coverage_format", "path"],
            ),
        }
    ),
}

_cache = mapping(
    {
        "key": by_type(
            {
                str: text,
                int: scalar,
                dict: mapping({"files": each(text, at_most=2), "prefix": text}, required=["files"]),
            }
        ),
        "paths": _texts,
        "untracked": boolean,
        "unprotect": boolean,
        "when": one_of("on_success", "on_failure", "always"),
        "policy": text,
        "fallback_keys": each(text, at_most=5),
    }
)

_need = by_type(
    {
        str: text,
        dict: mapping({"job": text, "artifacts": boolean, "optional": boolean}, required=["job"]),
    }
)
_needs = by_type({str: text, list: each(_need, at_most=50)})

_local: dict[type, Check] = {str: text, dict: mapping({"local": text}, required=["local"])}
_trigger = by_type(
    {
        str: text,
        dict: mapping(
            {
                "project": text,
                "branch": text,
                "include": by_type({**_local, list: each(by_type(_local), at_most=3)}),
                "strategy": one_of("depend"),
                "forward": mapping({"yaml_variables": boolean, "pipeline_variables": boolean}),
            }
        ),
    }
)

_rule_conditions = {"if": condition, "changes": _paths, "exists": _paths}
_start_in = duration(at_most=WEEK)


def _rules(rule: dict[str, Check]) -> Check:
    item = mapping(rule)

    def check(at: str, value: Any) -> Iterator[str]:
        rules = flatten(value) if isinstance(value, list) else None
        if rules is None:
            yield f"{at} config should be an array of hashes"
            return
        for one in rules:
            yield from item(f"{at}:rule", one)
            if isinstance(one, dict) and (one.get("when") == "delayed") != (one.get("start_in") is not None):
                yield f"{at}:rule start_in should be given with when: delayed, and only there"

    return check


_conditions = each(condition)
_only_hash = mapping({"refs": each(text), "variables": _conditions, "changes": _globs})
_only = by_type({str: text, list: _texts, dict: _only_hash})

_JOB_WHEN = ("on_success", "on_failure", "always", "manual", "delayed", "never")
_BRIDGE_WHEN = ("on_success", "on_failure", "always", "manual", "never")
_rule = {
    **_rule_conditions,
    "when": one_of(*_JOB_WHEN),
    "start_in": _start_in,
    "allow_failure": boolean,
    "interruptible": boolean,
    "variables": _variables(_job_variable),
    "needs": _needs,
}
_axis = by_type({str: text, int: scalar, list: each(scalar, at_most=MAX_PARALLEL)})
_matrix = mapping({"matrix": each(each_value(_axis), at_most=MAX_PARALLEL)}, required=["matrix"])

#: Keywords that `default:` may set for all jobs.
DEFAULT: dict[str, Check] = {
    "before_script": script,
    "after_script": script,
    "image": by_type({str: text, dict: mapping(_image, required=["name"])}),
    "services": each(by_type({str: text, dict: mapping(_service, required=["name"])})),
    "cache": by_type({dict: _cache, list: each(_cache, at_most=4)}),
    "artifacts": mapping(_artifacts),
    "interruptible": boolean,
    "retry": by_type(
        {
            int: integer(0, 2),
            dict: mapping(
                {
                    "max": integer(0, 2),
                    "when": by_type({str: one_of(*RETRY_WHEN), list: each(one_of(*RETRY_WHEN))}),
                }
            ),
        }
    ),
    "tags": each(text, at_most=50),
    "timeout": duration(at_most=MONTH),
}

#: Those of them that may also stand at the top level, as in the language's first years.
TOP_LEVEL_DEFAULTS = ("before_script", "after_script", "image", "services", "cache")

_ANY_JOB: dict[str, Check] = {
    "stage": text,
    "only": _only,
    "except": _only,
    "rules": _rules(_rule),
    "variables": _variables(_job_variable),
    "inherit": mapping(
        {
            "default": by_type({bool: boolean, list: each(one_of(*DEFAULT))}),
            "variables": by_type({bool: boolean, list: _texts}),
        }
    ),
    "needs": _needs,
    "resource_group": text,
    "parallel": by_type({int: integer(1, MAX_PARALLEL), dict: _matrix}),
}

#: Keywords of a job that a runner runs.
BUILD: dict[str, Check] = {
    **_ANY_JOB,
    **DEFAULT,
    "script": script,
    "when": one_of(*_JOB_WHEN),
    "start_in": _start_in,
    "allow_failure": by_type(
        {
            bool: boolean,
            dict: mapping(
                {"exit_codes": by_type({int: integer(0, 255), list: each(integer(0, 255))})},
                required=["exit_codes"],
            ),
        }
    ),
    "coverage": regex,
    "dependencies": _texts,
    "environment": by_type(
        {
            str: text,
            dict: mapping(
                {
                    "name": text,
                    "url": text,
                    "action": one_of("start", "stop", "prepare", "verify", "access"),
                    "deployment_tier": one_of("production", "staging", "testing", "development", "other"),
                },
                required=["name"],
            ),
        }
    ),
}

#: Keywords of a job that starts another pipeline.
BRIDGE: dict[str, Check] = {
    **_ANY_JOB,
    "trigger": _trigger,
    "when": one_of(*_BRIDGE_WHEN),
    "rules": _rules({**_rule, "when": one_of(*_BRIDGE_WHEN)}),
    "allow_failure": boolean,
    "interruptible": boolean,
}

#: Keywords of the top level; every other key there is a job.
GLOBAL: dict[str, Check] = {
    **{name: DEFAULT[name] for name in TOP_LEVEL_DEFAULTS},
    "default": mapping(DEFAULT),
    "stages": each(text),
    "variables": _variables(_listed),
    "workflow": mapping(
        {
            "name": text,
            "rules": _rules(
                {
                    **_rule_conditions,
                    "when": one_of("always", "never"),
                    "variables": _variables(_job_variable),
                }
            ),
        }
    ),
}

#: One entry of `include:` in its long form.
INCLUDE = mapping(
    {"local": text, "rules": _rules({**_rule_conditions, "when": one_of("always", "never")})}, ["local"]
)
