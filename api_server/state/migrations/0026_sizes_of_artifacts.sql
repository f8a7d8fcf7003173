-- depends: 0025_unlocked_artifacts
-- What a project's artifacts take together is asked at every upload: from the index alone.

DROP INDEX job_artifacts_project;
CREATE INDEX job_artifacts_project ON job_artifacts (project_id) INCLUDE (size);
