"""Words for the states, reasons and durations of jobs and pipelines."""

from typing import Final

#: States of pipelines that go on by themselves, or as soon as a runner takes their jobs.
GOING_ON: Final = frozenset(
    {"created", "waiting_for_resource", "preparing", "waiting_for_callback", "pending", "running"}
)

#: Sentences about why a job failed, by the reason that its runner or the service has given.
FAILURES: Final = {
    "unknown_failure": "It failed for an unknown reason.",
    "script_failure": "Its script failed: a command ended with a status other than 0.",
    "api_failure": "The runner could not reach the service.",
    "stuck_or_timeout_failure": "No runner took it in time, or the one that had it fell silent. Are there runners that"
    " are online, with its tags?",
    "runner_system_failure": "The runner's machine failed. Try again; if that does not help, ask who looks after it.",
    "missing_dependency_failure": "Artifacts that it needs are not there, or who ran it may not read them. Jobs of"
    " other pipelines have to succeed before it runs, and other projects have to let the jobs of this one in.",
    "runner_unsupported": "The runner is too old for what the job asks for.",
    "stale_schedule": "It was delayed, and its moment has passed.",
    "job_execution_timeout": "It took longer than it may. See `timeout` in the CI file and at the runner.",
    "archived_failure": "It is too old to be run.",
    "unmet_prerequisites": "What it needs could not be prepared.",
    "scheduler_failure": "The service could not hand it to a runner.",
    "data_integrity_failure": "What is stored of it is damaged, or its variables and tokens are too large.",
    "user_blocked": "Who ran it has been blocked since.",
    "image_pull_failure": "The runner could not pull its image. Is the name right, and may the runner read it?",
    "trace_size_exceeded": "Its log became longer than logs may be.",
    "environment_creation_failure": "Its environment could not be made: is the name a valid one?",
    "job_token_expired": "Its token had expired.",
    "downstream_pipeline_failed": "The pipeline that it started failed.",
    "downstream_bridge_project_not_found": "The project in which it was to start a pipeline does not exist, or may not"
    " be seen.",
    "insufficient_bridge_permissions": "Who ran it may not start pipelines there.",
    "downstream_pipeline_creation_failed": "The pipeline that it was to start could not be made.",
    "invalid_bridge_trigger": "What it was to start is not described rightly in the CI file.",
    "reached_max_descendant_pipelines_depth": "Pipelines may not start others that deep.",
    "reached_max_pipeline_hierarchy_size": "There are too many pipelines that have started each other.",
    "pipeline_loop_detected": "The pipelines would start each other, or wait for each other, without end.",
    "upstream_bridge_project_not_found": "The project whose pipeline it was to follow does not exist, or may not be"
    " seen.",
    "insufficient_upstream_permissions": "Who ran it may not read the pipelines of that project.",
}
#: Sentences about why a job has not begun, by its status.
WAITS: Final = {
    "created": "It waits for jobs before it.",
    "waiting_for_resource": "It waits until nobody else uses its resource group.",
    "preparing": "What it needs is being prepared.",
    "waiting_for_callback": "It waits for an answer from elsewhere.",
    "pending": "It waits for a runner.",
    "manual": "It waits for somebody to start it.",
    "scheduled": "It waits for its moment.",
    "skipped": "It was not run, because of how jobs before it ended.",
}
#: The names of what started a pipeline, by its source.
SOURCES: Final = {
    "push": "a push",
    "web": "the pages",
    "api": "the API",
    "trigger": "a trigger token",
    "schedule": "a schedule",
    "pipeline": "a pipeline of another project",
    "parent_pipeline": "its parent pipeline",
    "merge_request_event": "a merge request",
    "external": "another system",
}


def failure(reason: str | None) -> str:
    """Return a sentence about why a job failed."""
    return FAILURES.get(reason or "", f"It failed: {(reason or 'unknown failure').replace('_', ' ')}.")


def duration(seconds: float | None) -> str:
    """Return a duration such as `1 h 2 min`, `5 min 3 s` or `12 s`, or a dash for None."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
