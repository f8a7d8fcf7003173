-- depends: 0150_bots 0051_invitations
-- Links with which people set a new password, one for each at a time; the link has a token of which this is the digest.
CREATE TABLE password_resets (
    user_id bigint PRIMARY KEY REFERENCES users ON DELETE CASCADE,
    digest bytea NOT NULL,
    expires_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX password_resets_digest ON password_resets (digest);
CREATE INDEX password_resets_expiry ON password_resets (expires_at);

CREATE FUNCTION end_password_resets() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM password_resets WHERE user_id = NEW.id;
    RETURN NULL;
END $$;

-- A link is worth nothing once there is another password, or the mail goes elsewhere.
CREATE TRIGGER end_password_resets AFTER UPDATE OF password_hash, email, state ON users FOR EACH ROW
    WHEN ((OLD.password_hash, OLD.email, OLD.state) IS DISTINCT FROM (NEW.password_hash, NEW.email, NEW.state))
    EXECUTE FUNCTION end_password_resets();
