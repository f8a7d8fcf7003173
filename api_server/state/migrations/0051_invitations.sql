-- Invitations to groups and projects, further addresses of users, and the sessions of people on our pages.
-- depends: 0001_accounts_and_projects

-- Addresses that a user has beside the one of the account.
CREATE TABLE user_emails (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE,
    email text NOT NULL,
    confirmed_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX user_emails_email ON user_emails (lower(email));
CREATE INDEX user_emails_user ON user_emails (user_id);

-- Somebody who was asked in by mail and has not answered.
CREATE TABLE invitations (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    namespace_id bigint REFERENCES namespaces ON DELETE CASCADE,
    project_id bigint REFERENCES projects ON DELETE CASCADE,
    email text NOT NULL,
    access_level smallint NOT NULL,
    expires_at date, -- of the membership, and with it of the invitation
    created_by_id bigint REFERENCES users ON DELETE SET NULL,
    -- The token in the mail is derived from the seed with the service's key; the digest finds it.
    token_seed bytea NOT NULL,
    token_digest bytea NOT NULL,
    reminders_sent smallint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CHECK (num_nonnulls(namespace_id, project_id) = 1)
);
CREATE UNIQUE INDEX invitations_namespace ON invitations (namespace_id, lower(email));
CREATE UNIQUE INDEX invitations_project ON invitations (project_id, lower(email));
CREATE UNIQUE INDEX invitations_token ON invitations (token_digest);
CREATE INDEX invitations_creator ON invitations (created_by_id);
CREATE INDEX invitations_created ON invitations (created_at); -- reminders and clean-up

-- Browsers in which somebody has signed in.
CREATE TABLE sessions (
    digest bytea PRIMARY KEY, -- of the cookie's value
    user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE,
    expires_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX sessions_user ON sessions (user_id);
CREATE INDEX sessions_expiry ON sessions (expires_at);

CREATE FUNCTION end_sessions() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM sessions WHERE user_id = NEW.id;
    RETURN NULL;
END $$;

-- Whoever knew the old password is signed out everywhere.
CREATE TRIGGER end_sessions AFTER UPDATE OF password_hash ON users FOR EACH ROW
    WHEN (OLD.password_hash IS DISTINCT FROM NEW.password_hash) EXECUTE FUNCTION end_sessions();
