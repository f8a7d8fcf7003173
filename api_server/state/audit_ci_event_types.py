"""The types of audit events of CI: runners, agents, variables, jobs, and what starts pipelines."""

from api_server.state.audit_event_type import CHANGE, INSTANCE, EventType, says, types

CI_EVENT_TYPES: list[tuple[str, EventType]] = [
    *types(
        ("Project", "Group", INSTANCE),
        "Ci::Runner",
        runner_registered=says("Added runner", "runner_type"),
        runner_updated=says("Changed the runner", *CHANGE),
        runner_token_reset=says("Replaced the runner's token"),
        runner_unregistered=says("Removed runner", "runner_type"),
        runner_assigned_to_project=says("Gave the runner a further project", "project_id"),
        runner_unassigned_from_project=says("Took a project from the runner", "project_id"),
    ),
    *types(
        ("Project", "Group", INSTANCE),
        "RunnerRegistrationToken",
        runner_registration_token_reset=says("Replaced the registration token of runners"),
    ),
    *types(
        "Project",
        "Clusters::Agent",
        cluster_agent_created=says("Created cluster agent '*' with id *", "add"),
        cluster_agent_deleted=says("Deleted cluster agent '*' with id *", "remove"),
    ),
    *types(
        "Project",
        "Ci::Variable",
        ci_variable_created=says("Added ci variable", "add"),
        ci_variable_updated=says("Changed *", *CHANGE),
        ci_variable_deleted=says("Removed ci variable", "remove"),
    ),
    *types(
        "Group",
        "Ci::GroupVariable",
        ci_group_variable_created=says("Added ci variable", "add"),
        ci_group_variable_updated=says("Changed *", *CHANGE),
        ci_group_variable_deleted=says("Removed ci variable", "remove"),
    ),
    *types(
        INSTANCE,
        "Ci::InstanceVariable",
        ci_instance_variable_created=says("Added ci variable", "add"),
        ci_instance_variable_updated=says("Changed *", *CHANGE),
        ci_instance_variable_deleted=says("Removed ci variable", "remove"),
    ),
    *types(
        "Project",
        "Job",
        job_erased=says("Erased the log and the artifacts of job *", "pipeline_id"),
        job_artifacts_deleted=says("Deleted the artifacts of job *", "artifacts"),
    ),
    *types(
        "Project",
        "Ci::Trigger",
        pipeline_trigger_created=says("Added pipeline trigger with id *"),
        pipeline_trigger_updated=says("Changed pipeline trigger with id *", *CHANGE),
        pipeline_trigger_destroyed=says("Removed pipeline trigger with id *"),
    ),
    *types(
        "Project",
        "Ci::PipelineSchedule",
        pipeline_schedule_created=says("Added pipeline schedule with id *"),
        pipeline_schedule_updated=says("Changed pipeline schedule with id *", *CHANGE),
        pipeline_schedule_destroyed=says("Removed pipeline schedule with id *"),
    ),
    *types("Project", "Project", project_artifacts_deleted=says("Deleted the artifacts of the project")),
    *types("Project", "Ci::Pipeline", destroy_pipeline=says("Deleted pipeline", "remove")),
]
