"""The keywords that tell a runner what to do; these are the ones that `default:` may set for all jobs."""

from collections.abc import Iterator
from types import NoneType
from typing import Any
from urllib.parse import unquote

from api_server.ci.config.checks import (
    ANY_NESTING,
    ByType,
    Check,
    Each,
    EachValue,
    Fields,
    anything,
    boolean,
    duration,
    integer,
    matching,
    of_type,
    one_of,
    scalar,
    script,
    text,
)

WEEK = 604_800
#: Nearly a thousand years, so that expiry dates stay before the year 9999, the last one that dates can have.
LONGEST_KEPT = 52_000 * WEEK
MONTH = 2_592_000
MAX_SERVICES = 100
#: Each token is signed when a runner gets the job.
MAX_ID_TOKENS = 20
MAX_AUDIENCES = 20

#: Kinds of `artifacts:reports`: the file name that the runner gives the upload, and its format.
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
    "api_fuzzing": ("gl-api-fuzzing-report.json", "raw"),
    "browser_performance": ("browser-performance.json", "raw"),
    "cluster_image_scanning": ("gl-cluster-image-scanning-report.json", "raw"),
    "coverage_fuzzing": ("gl-coverage-fuzzing.json", "raw"),
    "dast": ("gl-dast-report.json", "raw"),
    "license_scanning": ("gl-license-scanning-report.json", "raw"),
    "load_performance": ("load-performance.json", "raw"),
    "lsif": ("lsif.json", "zip"),
    "performance": ("performance.json", "raw"),
    "repository_xray": ("gl-repository-xray.json", "gzip"),
    "requirements": ("requirements.json", "raw"),
    "requirements_v2": ("requirements_v2.json", "raw"),
}
#: Kinds of reports that this service reads.
READ_REPORTS = frozenset({"dotenv", "junit"})
#: Who may download artifacts; `plan.Artifacts.access`.
ACCESS = ("all", "developer", "maintainer", "none")

RETRY_WHEN = (
    "always", "unknown_failure", "script_failure", "api_failure", "stuck_or_timeout_failure",
    "runner_system_failure", "runner_unsupported", "stale_schedule", "job_execution_timeout",
    "archived_failure", "unmet_prerequisites", "scheduler_failure", "data_integrity_failure",
    # reasons of later versions
    "no_updates_canceling", "no_updates_running", "runner_configuration_error", "runner_external_dependency_failure",
    "runner_interrupted", "server_timeout_canceling", "server_timeout_running", "stuck_pending_no_matching_runners",
    "stuck_pending_with_matching_runners",
)  # fmt: skip

texts = Each(text)
text_or_texts = ByType({str: text, list: texts}, "config should be an array of strings or a string")
exit_codes = ByType(
    {int: anything, list: Each(anything, types=(int,), of="integers")},
    "config should be an array of integers or an integer",
)
#: The value of a variable in its short form, without a hash.
plain = of_type(str, int, float, bool)
job_variable = Fields({"value": plain, "expand": boolean})


def variables(long_form: Fields) -> EachValue:
    """Return the check for a hash of variables. The short form is the value alone; null stands for an empty
    value."""
    short: dict[type, Check] = dict.fromkeys((str, int, float, bool, NoneType), anything)
    complaint = "variable definition must be either a string or a hash"
    return EachValue(ByType({**short, dict: long_form}, complaint))


_pull_policy_name = one_of("always", "never", "if-not-present")
_pull_policy = ByType({str: _pull_policy_name, list: Each(_pull_policy_name)})
_image: dict[str, Check] = {
    "name": text,
    "entrypoint": text_or_texts,
    "pull_policy": _pull_policy,
    "docker": Fields({"platform": text, "user": text}),
    "kubernetes": Fields({"user": scalar}),
}
_service: dict[str, Check] = {
    **_image,
    "alias": text,
    "command": text_or_texts,
    "variables": variables(job_variable),
}
_OF_IMAGES = ("name", "entrypoint", "alias", "command")

_WHEN = one_of("on_success", "on_failure", "always")
_artifacts: dict[str, Check] = {
    "name": text,
    "paths": texts,
    "exclude": texts,
    "untracked": boolean,
    "when": _WHEN,
    "expire_in": duration(at_most=LONGEST_KEPT, never=True),
    "expose_as": matching(r"[\w -]+", "can contain only letters, digits, '-', '_' and spaces", at_most=100),
    "access": one_of(*ACCESS),
    "public": boolean,
    "reports": Fields(
        {
            **{kind: text_or_texts for kind in REPORTS if kind not in {"cobertura", "jacoco"}},
            "coverage_report": Fields(
                {"coverage_format": one_of("cobertura", "jacoco"), "path": text},
                required=["coverage_format", "path"],
                attributes=["coverage_format", "path"],
            ),
        },
        beyond=("license_management", "sarif"),
    ),
}


def _artifacts_check(location: str, value: Any) -> Iterator[str]:
    """Check the rules of `artifacts` that involve several keys."""
    if value.get("public") is not None and value.get("access") is not None:
        yield f"{location} config these keys cannot be used together: public, access"
    if value.get("expose_as") is not None and value.get("paths") is None:
        yield f"{location} paths can't be blank"
    if value.get("expose_as") is not None and any("*" in str(path) for path in value.get("paths") or ()):
        yield f"{location} paths can't contain '*' when used with 'expose_as'"


def _key(at: str, value: str) -> Iterator[str]:
    """Check a part of the name of a cache, which runners use as the name of a file."""
    name = unquote(value)
    if "/" in name:
        yield f'{at} config cannot contain the "/" character'
    elif name in {".", ".."}:
        yield f'{at} config cannot be "." or ".."'


_cache = Fields(
    {
        "key": ByType(
            {
                str: _key,
                int: scalar,
                dict: Fields(
                    {
                        "files": Each(text, at_most=2, too_many="config has too many items (maximum is {})"),
                        "prefix": ByType({str: _key}),
                    },
                    required=["files"],
                    beyond=["files_commits"],
                ),
            }
        ),
        "paths": texts,
        "untracked": boolean,
        "unprotect": boolean,
        "when": _WHEN,
        "policy": text,
        "fallback_keys": Each(text, at_most=5),
    },
    attributes=["policy", "when"],
)

_id_token = Fields(
    {
        "aud": ByType(
            {str: text, list: Each(text, at_most=MAX_AUDIENCES)},
            "config should be an array of strings or a string",
        )
    },
    required=["aud"],
    attributes=["aud"],
)

#: Keywords that `default:` may set for all jobs.
DEFAULT: dict[str, Check] = {
    "before_script": script,
    "after_script": script,
    "hooks": Fields({"pre_get_sources_script": script}),
    "id_tokens": EachValue(_id_token, at_most=MAX_ID_TOKENS),
    "image": ByType({str: text, dict: Fields(_image, ["name"], attributes=_OF_IMAGES)}),
    "services": Each(
        ByType({str: text, dict: Fields(_service, ["name"], attributes=_OF_IMAGES)}),
        types=(str, dict),
        of="hashes or strings",
        at_most=MAX_SERVICES,
        levels=ANY_NESTING,
    ),
    "cache": ByType(
        {
            dict: _cache,
            list: Each(
                _cache,
                types=(dict,),
                of="hashes",
                at_most=4,
                too_many="config no more than {} caches can be created",
                levels=ANY_NESTING,
            ),
        },
        "config can only be a Hash or an Array",
    ),
    "artifacts": Fields(
        _artifacts, together=_artifacts_check, attributes=[key for key in _artifacts if key != "reports"]
    ),
    "interruptible": boolean,
    "retry": ByType(
        {
            int: integer(0, 2),
            dict: Fields(
                {
                    "max": integer(0, 2),
                    "when": ByType({str: one_of(*RETRY_WHEN), list: Each(one_of(*RETRY_WHEN))}),
                    "exit_codes": exit_codes,
                },
                attributes=["max", "when", "exit_codes"],
            ),
        }
    ),
    "tags": Each(
        text,
        at_most=49,
        too_many="config must be less than the limit of 50 tags",
        levels=ANY_NESTING,
    ),
    "timeout": duration(at_most=MONTH),
}
#: GitLab keywords that are not supported here, neither in `default:` nor in jobs.
BEYOND_DEFAULT = ("identity",)
