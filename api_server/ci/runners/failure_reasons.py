"""Why a job failed, as runners say it."""

from typing import Final

#: What runners may report; anything else is `unknown_failure`.
FAILURE_REASONS: Final = frozenset(
    {
        "unknown_failure", "script_failure", "api_failure", "stuck_or_timeout_failure", "runner_system_failure",
        "missing_dependency_failure", "runner_unsupported", "stale_schedule", "job_execution_timeout",
        "archived_failure", "unmet_prerequisites", "scheduler_failure", "data_integrity_failure",
        "image_pull_failure", "trace_size_exceeded", "environment_creation_failure", "job_token_expired",
    }
)  # fmt: skip


def failure_reason(reported: str | None) -> str:
    """`reported` where it is known."""
    return reported if reported in FAILURE_REASONS else "unknown_failure"
