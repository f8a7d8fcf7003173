-- Inputs that schedules give to their pipelines.
-- depends: 0005_operations

CREATE TABLE pipeline_schedule_inputs (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    schedule_id bigint NOT NULL REFERENCES pipeline_schedules ON DELETE CASCADE,
    name text NOT NULL,
    value bytea NOT NULL -- JSON, encrypted
);
CREATE UNIQUE INDEX pipeline_schedule_inputs_name ON pipeline_schedule_inputs (schedule_id, name);
