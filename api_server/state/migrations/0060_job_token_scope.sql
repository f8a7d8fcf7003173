-- depends: 0001_accounts_and_projects
-- Which projects' jobs reach a project with their tokens: those of targets, where the project asks.

ALTER TABLE projects DROP COLUMN ci_job_token_scope_enabled; -- nothing looked at it
ALTER TABLE projects ADD COLUMN ci_inbound_job_token_scope_enabled boolean NOT NULL DEFAULT true;

CREATE TABLE job_token_allowed_projects (
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    target_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    PRIMARY KEY (project_id, target_id)
);
CREATE INDEX job_token_allowed_projects_target ON job_token_allowed_projects (target_id); -- removing that one

CREATE TABLE job_token_allowed_groups (
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    target_id bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE,
    PRIMARY KEY (project_id, target_id)
);
CREATE INDEX job_token_allowed_groups_target ON job_token_allowed_groups (target_id); -- removing that one
