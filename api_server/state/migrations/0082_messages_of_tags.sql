-- depends: 0020_pipelines_and_jobs
-- What was written to the tag that a pipeline is of, for its jobs; none of branches and lightweight tags.

ALTER TABLE pipelines ADD COLUMN tag_message text;
