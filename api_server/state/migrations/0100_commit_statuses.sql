-- What other systems say of a commit is a job too, which no runner gets: it counts in its pipeline's status.
-- depends: 0020_pipelines_and_jobs

ALTER TABLE jobs DROP CONSTRAINT jobs_kind_check,
    ADD CONSTRAINT jobs_kind_check CHECK (kind IN ('build', 'bridge', 'external'));
ALTER TABLE jobs ADD target_url text, ADD description text;
