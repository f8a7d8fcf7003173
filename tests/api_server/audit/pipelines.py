"""Changes to what starts pipelines, and the audit events that they write."""

from tests.api_server.audit.change import Change

_SCHEDULES = "/projects/{project}/pipeline_schedules"
_SCHEDULE = f"{_SCHEDULES}/{{schedule}}"

PIPELINES = [
    Change("POST /projects/{project}/triggers", "pipeline_trigger_created", {"description": "nightly"}),
    Change("PUT /projects/{project}/triggers/{trigger}", "pipeline_trigger_updated", {"description": "new"}),
    Change("DELETE /projects/{project}/triggers/{trigger}", "pipeline_trigger_destroyed"),
    Change(
        f"POST {_SCHEDULES}",
        "pipeline_schedule_created",
        {"description": "nightly", "ref": "main", "cron": "0 4 * * *"},
    ),
    Change(
        f"PUT {_SCHEDULE}",
        "pipeline_schedule_updated pipeline_schedule_updated",
        {"cron": "1 * * * *", "active": False},
    ),
    Change(f"POST {_SCHEDULE}/take_ownership", "pipeline_schedule_updated", by="maintainer"),
    Change(f"DELETE {_SCHEDULE}", "pipeline_schedule_destroyed"),
    Change(f"POST {_SCHEDULE}/variables", "pipeline_schedule_updated", {"key": "KEY", "value": "x"}),
    Change(f"PUT {_SCHEDULE}/variables/{{schedule_variable}}", "pipeline_schedule_updated", {"value": "y"}),
    Change(f"DELETE {_SCHEDULE}/variables/{{schedule_variable}}", "pipeline_schedule_updated"),
]
