-- Keys that sign the identity tokens of jobs.
-- depends: 0005_operations

CREATE TABLE identity_keys (
    kid text PRIMARY KEY, -- the public key's thumbprint of RFC 7638
    public_key json NOT NULL, -- a JWK, as discovery shows it
    private_key bytea NOT NULL, -- encrypted
    -- The one that has begun last signs. It is shown before that, and those before it are shown until their tokens have
    -- expired.
    signs_from timestamptz NOT NULL,
    created_at timestamptz NOT NULL
);

-- What the subject of a project's identity tokens is made of.
ALTER TABLE projects
    ADD COLUMN ci_id_token_sub_claim_components text[] NOT NULL DEFAULT '{project_path,ref_type,ref}';
