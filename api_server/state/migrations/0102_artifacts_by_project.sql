-- A project's artifacts one after the other, for who removes them; sizes are still read from the index alone.
-- depends: 0026_sizes_of_artifacts

DROP INDEX job_artifacts_project;
CREATE INDEX job_artifacts_project ON job_artifacts (project_id, id) INCLUDE (size);
