-- What runs by itself: statuses of other systems may say for ever that they do, and nobody looks at them.
-- depends: 0100_commit_statuses

DROP INDEX jobs_running;
CREATE INDEX jobs_running ON jobs (contacted_at)
    WHERE status IN ('running', 'canceling') AND kind = 'build'; -- whose runner is silent
CREATE INDEX jobs_running_bridges ON jobs (id) WHERE status = 'running' AND kind = 'bridge'; -- whose pipeline is gone
