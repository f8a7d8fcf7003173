-- depends: 0235_edges_that_are_listed
-- A project goes at once and its pipelines, jobs and artifacts after it, step by step: a million of them in the
-- statement that removes the project take longer than a statement may.
ALTER TABLE pipelines DROP CONSTRAINT pipelines_project_id_fkey;
ALTER TABLE jobs DROP CONSTRAINT jobs_project_id_fkey;
ALTER TABLE job_artifacts DROP CONSTRAINT job_artifacts_project_id_fkey;
