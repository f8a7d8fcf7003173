"""Words for the states, reasons and durations of jobs and pipelines."""

from typing import Final

#: States of pipelines that go on by themselves, or as soon as a runner takes their jobs.
GOING_ON: Final = frozenset(
    {"created", "waiting_for_resource", "preparing", "waiting_for_callback", "pending", "running"}
)

#: Sentences about why a job failed, by the reason that its runner or the service has given.
FAILURES: Final = {
    "unknown_failure": "Unknown failure.",
    "script_failure": "Script failure: a command exited with a status other than 0.",
    "api_failure": "API failure: the runner could not reach the service.",
    "stuck_or_timeout_failure": "The job got stuck or timed out: no runner picked it up in time, or its runner"
    " stopped responding. Check that a runner with the job's tags is online.",
    "runner_system_failure": "Runner system failure. Retry the job; if it fails again, contact the runner's owner.",
    "missing_dependency_failure": "Required artifacts are missing, or the user who ran the job may not read them. Jobs"
    " of other pipelines must succeed first, and other projects must have this project in their job token allowlist.",
    "runner_unsupported": "The runner is outdated and does not support a feature that the job needs.",
    "stale_schedule": "The delayed job could not be started at its scheduled time.",
    "job_execution_timeout": "The job exceeded its timeout. See `timeout` in the CI/CD configuration file and the"
    " runner's maximum job timeout.",
    "archived_failure": "The job is archived and cannot be run.",
    "unmet_prerequisites": "The job's prerequisites could not be prepared.",
    "scheduler_failure": "Scheduler failure: the job could not be assigned to a runner.",
    "data_integrity_failure": "Data integrity failure: the job's stored data is damaged, or its variables and tokens"
    " are too large.",
    "user_blocked": "The user who ran the job has been blocked.",
    "image_pull_failure": "The runner could not pull the image. Check its name and the runner's access to it.",
    "trace_size_exceeded": "The job log exceeded its size limit.",
    "environment_creation_failure": "The environment could not be created. Check that its name is valid.",
    "job_token_expired": "The job token expired.",
    "downstream_pipeline_failed": "The downstream pipeline failed.",
    "downstream_bridge_project_not_found": "The downstream project does not exist, or the user who ran the job has no"
    " access to it.",
    "insufficient_bridge_permissions": "The user who ran the job may not run pipelines in the downstream project.",
    "downstream_pipeline_creation_failed": "The downstream pipeline could not be created.",
    "invalid_bridge_trigger": "The trigger configuration of the job is invalid.",
    "reached_max_descendant_pipelines_depth": "The maximum depth of child pipelines is reached.",
    "reached_max_pipeline_hierarchy_size": "The maximum size of the pipeline hierarchy is reached.",
    "pipeline_loop_detected": "Pipeline loop detected: the pipelines would trigger or wait for each other endlessly.",
    "upstream_bridge_project_not_found": "The upstream project does not exist, or the user who ran the job has no"
    " access to it.",
    "insufficient_upstream_permissions": "The user who ran the job may not read pipelines of the upstream project.",
}
#: Sentences about why a job has not begun, by its status.
WAITS: Final = {
    "created": "Waiting for earlier jobs.",
    "waiting_for_resource": "Waiting for the resource group to be free.",
    "preparing": "Preparing the job's prerequisites.",
    "waiting_for_callback": "Waiting for a callback from an external system.",
    "pending": "Waiting for a runner.",
    "manual": "Manual job: waiting to be run.",
    "scheduled": "Delayed job: waiting for its start time.",
    "skipped": "Skipped because of the result of earlier jobs.",
}
#: The names of what started a pipeline, by its source.
SOURCES: Final = {
    "push": "push",
    "web": "web",
    "api": "API",
    "trigger": "trigger token",
    "schedule": "schedule",
    "pipeline": "upstream pipeline",
    "parent_pipeline": "parent pipeline",
    "merge_request_event": "merge request",
    "external": "external system",
}


def failure(reason: str | None) -> str:
    """Return a sentence about why a job failed."""
    return FAILURES.get(reason or "", f"Failed: {(reason or 'unknown failure').replace('_', ' ')}.")


def duration(seconds: float | None) -> str:
    """Return a duration such as `1 h 2 min`, `5 min 3 s` or `12 s`, or a dash for None."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
