-- depends: 0001_accounts_and_projects
-- Who may make which tags.

CREATE TABLE protected_tags (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    name text NOT NULL, -- `*` stands for any run of characters
    create_access_level smallint NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX protected_tags_name ON protected_tags (project_id, name);
