-- Repositories and what leaves them: protection, pushes, LFS objects, releases, push mirrors, and storage edges.

CREATE TABLE protected_branches (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    name text NOT NULL, -- `*` stands for any run of characters
    push_access_level smallint NOT NULL DEFAULT 40,
    merge_access_level smallint NOT NULL DEFAULT 40,
    allow_force_push boolean NOT NULL DEFAULT false,
    code_owner_approval_required boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX protected_branches_name ON protected_branches (project_id, name);

-- Who may make which tags.
CREATE TABLE protected_tags (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    name text NOT NULL, -- `*` stands for any run of characters
    create_access_level smallint NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX protected_tags_name ON protected_tags (project_id, name);

-- Ref updates that git was asked for and whose consequences (pipelines, mirrors, purges) are not yet decided.
CREATE TABLE pushes (
    id text PRIMARY KEY, -- marks the push in the repository's reflogs
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    user_id bigint REFERENCES users ON DELETE SET NULL,
    updates jsonb NOT NULL, -- [[old, new, ref], ...]
    created_at timestamptz NOT NULL DEFAULT now(),
    options bytea -- what was said with the push (`git push -o`), encrypted
);
CREATE INDEX pushes_created ON pushes (created_at);

-- Git LFS: the large files that a project's repository only points to.
CREATE TABLE lfs_objects (
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    oid text NOT NULL CHECK (oid ~ '^[0-9a-f]{64}$'), -- SHA-256 of the content
    size bigint NOT NULL,
    object_key text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, oid)
);
-- What a project's LFS objects take up is read from an index alone.
CREATE INDEX lfs_objects_sizes ON lfs_objects (project_id) INCLUDE (size);
-- The sweep asks of objects in the store whether a row names them. (Those of jobs are found by the job in their key.)
CREATE INDEX lfs_objects_key ON lfs_objects (object_key);

-- What a project says of its tags, and where what it has built of them lies.
CREATE TABLE releases (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    tag text NOT NULL,
    name text NOT NULL,
    description text,
    sha text NOT NULL, -- the commit of the tag when the release was made
    author_id bigint REFERENCES users ON DELETE SET NULL,
    released_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX releases_tag ON releases (project_id, tag);
CREATE INDEX releases_released ON releases (project_id, released_at, id);
CREATE INDEX releases_created ON releases (project_id, created_at, id);
CREATE INDEX releases_author ON releases (author_id); -- removing that one

CREATE TABLE release_links (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    release_id bigint NOT NULL REFERENCES releases ON DELETE CASCADE,
    name text NOT NULL,
    url text NOT NULL,
    filepath text,
    link_type text NOT NULL
);
CREATE UNIQUE INDEX release_links_name ON release_links (release_id, name);
CREATE UNIQUE INDEX release_links_url ON release_links (release_id, url);
CREATE UNIQUE INDEX release_links_filepath ON release_links (release_id, filepath);

-- Push mirrors of projects, and the states that their runs go through.
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
    -- The commits that the target has have been looked through for LFS pointers; what it lacks of them is owed.
    lfs_followed boolean NOT NULL DEFAULT false,
    CHECK (mirror_branch_regex IS NULL OR NOT only_protected_branches)
);
CREATE UNIQUE INDEX remote_mirrors_url ON remote_mirrors (project_id, uniqueness_key);
CREATE INDEX remote_mirrors_project ON remote_mirrors (project_id, id); -- the list, and what a push sets off
CREATE INDEX remote_mirrors_started ON remote_mirrors (last_update_started_at) -- runs that nobody works on any more
    WHERE update_status IN ('started', 'to_retry');
CREATE INDEX remote_mirrors_failing ON remote_mirrors (id) WHERE last_error IS NOT NULL AND enabled;
CREATE INDEX remote_mirrors_status ON remote_mirrors (update_status, last_successful_update_at) WHERE enabled;

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

-- Objects that commits on the target point to and that have not got there: it refused them, or we had none.
CREATE TABLE remote_mirror_lfs_owed (
    mirror_id bigint NOT NULL REFERENCES remote_mirrors ON DELETE CASCADE,
    oid text NOT NULL,
    PRIMARY KEY (mirror_id, oid)
);

-- The storage edges, and what they have not been told of yet.
CREATE TABLE edges (
    id integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    url text NOT NULL UNIQUE,
    -- It has missed more than is kept, or nobody knows what it keeps: it has to forget everything.
    purge_everything boolean NOT NULL DEFAULT true,
    failing_since timestamptz, -- since when the queue has not been able to tell it
    problem text, -- why it could not be told
    -- Servers may list different edges: what any of them lists is told. When a server that runs has listed it last.
    listed_at timestamptz NOT NULL DEFAULT '-infinity'
);

-- One row for each edge and change, until the edge has been told. Without a foreign key, so that no change locks the
-- edge's row.
CREATE TABLE edge_purges (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    edge_id integer NOT NULL,
    keys text[] NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE INDEX edge_purges_edge ON edge_purges (edge_id, id);
