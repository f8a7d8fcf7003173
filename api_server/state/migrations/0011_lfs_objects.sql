-- Git LFS: the large files that a project's repository only points to.
-- depends: 0001_accounts_and_projects

CREATE TABLE lfs_objects (
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    oid text NOT NULL CHECK (oid ~ '^[0-9a-f]{64}$'), -- SHA-256 of the content
    size bigint NOT NULL,
    object_key text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, oid)
);
