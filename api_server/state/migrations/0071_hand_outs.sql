-- depends: 0021_ci_variables
-- A job that was handed out, and whose runner was never heard of: its answer was lost, so that another has to run it.

ALTER TABLE jobs ADD COLUMN unacknowledged_since timestamptz; -- handed out then; null from its runner's first word on
ALTER TABLE jobs ADD COLUMN taken_back boolean NOT NULL DEFAULT false; -- once already
CREATE INDEX jobs_unacknowledged ON jobs (unacknowledged_since) WHERE unacknowledged_since IS NOT NULL;

-- Since when runners have found somebody who listens. The one row is written every few seconds: where that has not
-- happened for a while, the service was away, and silence of that time says nothing about a runner.
CREATE TABLE runner_watch (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    looked_at timestamptz NOT NULL,
    listening_since timestamptz NOT NULL
);
