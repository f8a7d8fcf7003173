-- depends: 0020_pipelines_and_jobs 0035_deliveries_in_order 0040_remote_mirrors 0072_edges
-- What operators see: failures of parts that have no state of their own, and figures over time.

-- What failed last, for as long as it does; whoever succeeds takes it away.
CREATE TABLE operations_failures (
    part text NOT NULL, -- mail, store, disk, edge, background, task
    subject text NOT NULL, -- which: a host, a folder, a URL, the id of a task
    source text NOT NULL, -- the process that it fails for; empty: for all
    first_at timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    times bigint NOT NULL,
    reason text NOT NULL,
    PRIMARY KEY (part, subject, source)
);

CREATE TABLE operations_samples (
    name text NOT NULL,
    at timestamptz NOT NULL,
    value double precision NOT NULL,
    PRIMARY KEY (name, at)
);
CREATE INDEX operations_samples_at ON operations_samples (at); -- what is old enough to go

ALTER TABLE edges ADD COLUMN problem text; -- why it could not be told
ALTER TABLE external_status_checks ADD COLUMN problem text; -- why its last attempt failed

CREATE INDEX external_status_checks_failing ON external_status_checks (id)
    WHERE failing_since IS NOT NULL OR paused_at IS NOT NULL;
CREATE INDEX remote_mirrors_failing ON remote_mirrors (id) WHERE last_error IS NOT NULL AND enabled;
CREATE INDEX remote_mirrors_status ON remote_mirrors (update_status, last_successful_update_at) WHERE enabled;
CREATE INDEX runners_of_instance ON runners (contacted_at) WHERE runner_type = 'instance_type';
CREATE INDEX runners_contacted ON runners (contacted_at) WHERE active; -- which of them are alive
CREATE INDEX jobs_unfinished ON jobs (status) WHERE kind = 'build'
    AND status NOT IN ('success', 'failed', 'canceled', 'skipped', 'manual');
CREATE INDEX jobs_finished ON jobs (finished_at, status) WHERE finished_at IS NOT NULL AND kind = 'build';

CREATE INDEX procrastinate_jobs_failed ON procrastinate_jobs (task_name, id) WHERE status = 'failed';
CREATE INDEX procrastinate_jobs_waiting ON procrastinate_jobs (task_name, id) INCLUDE (scheduled_at)
    WHERE status = 'todo';
CREATE INDEX procrastinate_jobs_not_waiting ON procrastinate_jobs (status, id) WHERE status <> 'todo';
