"""Names of the background work of pipelines, for those who queue it; `tasks` has what it does."""

CREATE_PUSHED_PIPELINE = "create_pushed_pipeline"
START_DOWNSTREAM = "start_downstream_pipeline"
FOLLOW_DOWNSTREAM = "follow_downstream_pipeline"
CANCEL_DOWNSTREAM = "cancel_downstream_pipeline"
START_DELAYED = "start_delayed_job"
ASSIGN_RESOURCE = "assign_resource"
