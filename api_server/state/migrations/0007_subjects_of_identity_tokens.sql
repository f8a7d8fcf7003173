-- What the subject of a project's identity tokens is made of.
-- depends: 0007_identity_tokens

ALTER TABLE projects
    ADD COLUMN ci_id_token_sub_claim_components text[] NOT NULL DEFAULT '{project_path,ref_type,ref}';
