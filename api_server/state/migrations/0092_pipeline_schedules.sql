-- depends: 0090_merge_request_pipelines
-- Pipelines that are run at the moments of a cron expression, with the rights of their owners.

CREATE TABLE pipeline_schedules (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    owner_id bigint REFERENCES users ON DELETE SET NULL,
    description text NOT NULL,
    ref text NOT NULL, -- in full: refs/heads/main
    cron text NOT NULL,
    cron_timezone text NOT NULL, -- as it was given: Berlin, Europe/Berlin
    active boolean NOT NULL,
    next_run_at timestamptz NOT NULL, -- also of inactive ones
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
CREATE INDEX pipeline_schedules_project ON pipeline_schedules (project_id, id); -- lists
CREATE INDEX pipeline_schedules_owner ON pipeline_schedules (owner_id);
CREATE INDEX pipeline_schedules_due ON pipeline_schedules (next_run_at) WHERE active; -- whose moment has come

CREATE TABLE pipeline_schedule_variables (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    schedule_id bigint NOT NULL REFERENCES pipeline_schedules ON DELETE CASCADE,
    key text NOT NULL,
    value bytea NOT NULL, -- encrypted
    variable_type text NOT NULL CHECK (variable_type IN ('env_var', 'file'))
);
CREATE UNIQUE INDEX pipeline_schedule_variables_key ON pipeline_schedule_variables (schedule_id, key);

ALTER TABLE pipelines ADD COLUMN schedule_id bigint REFERENCES pipeline_schedules ON DELETE SET NULL;
CREATE INDEX pipelines_schedule ON pipelines (schedule_id, id) WHERE schedule_id IS NOT NULL; -- lists, the last one
