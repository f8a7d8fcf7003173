-- depends: 0020_pipelines_and_jobs
-- CI/CD variables of projects and groups.
CREATE TABLE ci_variables (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint REFERENCES projects ON DELETE CASCADE,
    namespace_id bigint REFERENCES namespaces ON DELETE CASCADE, -- of a group
    key text NOT NULL,
    value bytea NOT NULL, -- encrypted
    variable_type text NOT NULL CHECK (variable_type IN ('env_var', 'file')),
    protected boolean NOT NULL, -- for jobs on protected refs only
    masked boolean NOT NULL, -- logs do not show it
    hidden boolean NOT NULL, -- nor does the API
    raw boolean NOT NULL,
    environment_scope text NOT NULL, -- `*` stands for any run of characters
    description text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CHECK (num_nonnulls(project_id, namespace_id) = 1)
);
CREATE UNIQUE INDEX ci_variables_project ON ci_variables (project_id, key, environment_scope);
CREATE UNIQUE INDEX ci_variables_group ON ci_variables (namespace_id, key, environment_scope);

-- The masked values that the job has been given, encrypted: its log does not show them.
ALTER TABLE jobs ADD COLUMN masked_values bytea;
