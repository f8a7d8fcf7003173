-- depends: 0090_merge_request_pipelines
-- Tokens that start pipelines of one project, with the rights of the user who made them.

CREATE TABLE pipeline_triggers (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    owner_id bigint NOT NULL REFERENCES users ON DELETE CASCADE,
    description text NOT NULL,
    token_seed bytea NOT NULL, -- with the service's key it gives the token, which its owner may read again
    token_digest bytea NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    last_used_at timestamptz
);
CREATE UNIQUE INDEX pipeline_triggers_token ON pipeline_triggers (token_digest);
CREATE INDEX pipeline_triggers_project ON pipeline_triggers (project_id, id); -- lists
CREATE INDEX pipeline_triggers_owner ON pipeline_triggers (owner_id);
