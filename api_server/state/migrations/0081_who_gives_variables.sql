-- depends: 0060_job_token_scope
-- From which role on variables may be given to pipelines and jobs; that of Developers asks for nothing.

ALTER TABLE projects ADD COLUMN ci_pipeline_variables_minimum_override_role text NOT NULL DEFAULT 'developer'
    CHECK (ci_pipeline_variables_minimum_override_role IN ('developer', 'maintainer', 'owner', 'no_one_allowed'));
