-- depends: 0150_bots
-- What users say of their work, and when they have signed in on the pages.
ALTER TABLE users
    ADD COLUMN job_title text,
    ADD COLUMN current_sign_in_at timestamptz,
    ADD COLUMN last_sign_in_at timestamptz,
    ADD COLUMN sign_in_count integer NOT NULL DEFAULT 0;
