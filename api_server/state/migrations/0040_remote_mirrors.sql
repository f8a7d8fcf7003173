-- Push mirrors of projects, and the states that their runs go through.
-- depends: 0001_accounts_and_projects

CREATE TABLE remote_mirrors (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    enabled boolean NOT NULL,
    url text NOT NULL, -- without credentials
    shown_url text NOT NULL, -- with asterisks for user name and password
    uniqueness_key text NOT NULL, -- the URL without credentials, spelled in one way
    credentials bytea, -- user name and password as JSON, encrypted
    auth_method text NOT NULL CHECK (auth_method IN ('password', 'ssh_public_key')),
    private_key bytea, -- encrypted
    public_key text,
    host_keys jsonb NOT NULL, -- [{"line", "fingerprint_sha256"}, ...]
    only_protected_branches boolean NOT NULL,
    keep_divergent_refs boolean NOT NULL,
    mirror_branch_regex text,
    update_status text NOT NULL DEFAULT 'none',
    last_error text,
    last_update_started_at timestamptz,
    last_update_at timestamptz,
    last_successful_update_at timestamptz,
    run bigint NOT NULL DEFAULT 0, -- numbers the runs; one whose number has passed changes nothing any more
    retries smallint NOT NULL DEFAULT 0,
    failure_told boolean NOT NULL DEFAULT false, -- since the last success
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CHECK (mirror_branch_regex IS NULL OR NOT only_protected_branches)
);
CREATE UNIQUE INDEX remote_mirrors_url ON remote_mirrors (project_id, uniqueness_key);
CREATE INDEX remote_mirrors_project ON remote_mirrors (project_id, id); -- the list, and what a push sets off
CREATE INDEX remote_mirrors_started ON remote_mirrors (last_update_started_at) -- runs that nobody works on any more
    WHERE update_status IN ('started', 'to_retry');

-- Every change of update_status that there is; the trigger below refuses all others.
CREATE TABLE remote_mirror_transitions (
    event text NOT NULL,
    before text NOT NULL,
    after text NOT NULL,
    PRIMARY KEY (event, before)
);
INSERT INTO remote_mirror_transitions (event, before, after) VALUES
    ('begin', 'none', 'started'),
    ('begin', 'finished', 'started'),
    ('begin', 'to_retry', 'started'),
    ('begin', 'failed', 'started'),
    ('begin', 'started', 'started'), -- again, after a run whose process was killed
    ('succeed', 'started', 'finished'),
    ('diverge', 'started', 'failed'),
    ('retry', 'started', 'to_retry'),
    ('fail', 'started', 'failed'),
    ('retarget', 'none', 'finished'),
    ('retarget', 'started', 'finished'),
    ('retarget', 'finished', 'finished'),
    ('retarget', 'to_retry', 'finished'),
    ('retarget', 'failed', 'finished');

CREATE FUNCTION check_remote_mirror_transition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM remote_mirror_transitions
        WHERE before = OLD.update_status AND after = NEW.update_status
    ) THEN
        RAISE check_violation USING MESSAGE = format(
            'a remote mirror does not go from %s to %s', OLD.update_status, NEW.update_status);
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER remote_mirrors_transition BEFORE UPDATE OF update_status ON remote_mirrors
    FOR EACH ROW WHEN (OLD.update_status <> NEW.update_status)
    EXECUTE FUNCTION check_remote_mirror_transition();
