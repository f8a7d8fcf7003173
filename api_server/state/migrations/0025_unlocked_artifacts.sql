-- depends: 0020_pipelines_and_jobs
-- Nothing ever locked an artifact.

ALTER TABLE job_artifacts DROP COLUMN locked;
