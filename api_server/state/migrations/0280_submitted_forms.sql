-- depends: 0270_kept_settings
-- Forms that browsers have sent, so that one that is sent twice (a double click) is answered once.
CREATE TABLE submitted_forms (
    -- Of the browser's cookie, the form's key and all of its fields.
    digest bytea PRIMARY KEY,
    -- Where the browser was sent afterwards; null while the form is being answered.
    location text,
    created_at timestamptz NOT NULL DEFAULT now()
);
