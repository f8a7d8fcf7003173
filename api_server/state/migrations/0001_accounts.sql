-- Users, groups and projects, and who may do what in them.

CREATE TABLE users (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    username text NOT NULL,
    name text NOT NULL,
    email text NOT NULL,
    state text NOT NULL DEFAULT 'active',
    admin boolean NOT NULL DEFAULT false,
    external boolean NOT NULL DEFAULT false,
    can_create_group boolean NOT NULL DEFAULT true,
    projects_limit integer NOT NULL DEFAULT 100000,
    bio text,
    location text,
    public_email text,
    website_url text,
    organization text,
    password_hash text,
    -- The static-object token is derived from this with the service's key; a new seed ends the old token.
    static_object_seed bytea NOT NULL,
    static_object_digest bytea NOT NULL,
    confirmed_at timestamptz,
    last_activity_on date,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    -- A bot is the user that the access tokens of a project or a group sign in as: a member of that place, removed with
    -- its tokens. It is then `deactivated` and belongs nowhere any more; what it has made goes on naming it.
    bot boolean NOT NULL DEFAULT false,
    bot_project_id bigint, -- these two get their foreign keys below
    bot_namespace_id bigint,
    job_title text,
    -- When and from where the last two sessions were begun on the pages.
    current_sign_in_at timestamptz,
    last_sign_in_at timestamptz,
    sign_in_count integer NOT NULL DEFAULT 0,
    current_sign_in_ip text,
    last_sign_in_ip text,
    created_by_id bigint REFERENCES users ON DELETE SET NULL,
    CHECK (bot OR num_nonnulls(bot_project_id, bot_namespace_id) = 0),
    CHECK (state IN ('active', 'blocked') OR state = 'deactivated' AND bot)
);
CREATE UNIQUE INDEX users_username ON users (lower(username));
CREATE UNIQUE INDEX users_email ON users (lower(email));
CREATE UNIQUE INDEX users_static_object_digest ON users (static_object_digest); -- who a static-object token is
CREATE INDEX users_public_email ON users (lower(public_email)) WHERE public_email IS NOT NULL;
CREATE INDEX users_created_by ON users (created_by_id) WHERE created_by_id IS NOT NULL;
CREATE INDEX users_blocked ON users (id) WHERE state = 'blocked';
CREATE INDEX users_bot_project ON users (bot_project_id, id) WHERE bot_project_id IS NOT NULL;
CREATE INDEX users_bot_namespace ON users (bot_namespace_id, id) WHERE bot_namespace_id IS NOT NULL;
CREATE INDEX users_bots ON users (id) WHERE bot AND state <> 'deactivated'; -- those whose tokens have expired
-- Lists, in every order that they can be asked for.
CREATE INDEX users_name ON users (name, id);
CREATE INDEX users_by_username ON users (username, id);
CREATE INDEX users_updated ON users (updated_at, id);

CREATE TABLE personal_access_tokens (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE,
    name text NOT NULL,
    description text,
    digest bytea NOT NULL,
    scopes text[] NOT NULL,
    revoked boolean NOT NULL DEFAULT false,
    expires_at date,
    last_used_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX personal_access_tokens_digest ON personal_access_tokens (digest); -- each request with a token
CREATE INDEX personal_access_tokens_user ON personal_access_tokens (user_id, id);

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

-- Browsers in which somebody has signed in.
CREATE TABLE sessions (
    digest bytea PRIMARY KEY, -- of the cookie's value
    user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE,
    expires_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    id bigint GENERATED ALWAYS AS IDENTITY,
    ip_address text, -- from which somebody signed in
    user_agent text -- with which browser, as it says
);
CREATE INDEX sessions_user ON sessions (user_id);
CREATE INDEX sessions_expiry ON sessions (expires_at);

CREATE FUNCTION end_sessions() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM sessions WHERE user_id = NEW.id;
    RETURN NULL;
END $$;

-- A session ends with the right to be signed in, and does not come back with it: whoever knew the old password is
-- signed out everywhere, and so is whoever is blocked.
CREATE TRIGGER end_sessions AFTER UPDATE OF password_hash, state ON users FOR EACH ROW
    WHEN ((OLD.password_hash, OLD.state) IS DISTINCT FROM (NEW.password_hash, NEW.state))
    EXECUTE FUNCTION end_sessions();

-- Forms that browsers have sent, so that one that is sent twice (a double click) is answered once.
CREATE TABLE submitted_forms (
    -- Of the browser's cookie, the form's key and all of its fields.
    digest bytea PRIMARY KEY,
    -- Where the browser was sent afterwards; null while the form is being answered.
    location text,
    created_at timestamptz NOT NULL DEFAULT now()
);

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

-- A group, or the namespace that holds a user's own projects.
CREATE TABLE namespaces (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    kind text NOT NULL CHECK (kind IN ('user', 'group')),
    owner_id bigint REFERENCES users ON DELETE CASCADE,
    parent_id bigint REFERENCES namespaces ON DELETE CASCADE,
    -- Ids from the root down to this one: members of each of them have their role here too.
    lineage bigint[] NOT NULL DEFAULT '{}',
    name text NOT NULL,
    path text NOT NULL,
    full_path text NOT NULL,
    full_name text NOT NULL,
    description text,
    visibility text NOT NULL CHECK (visibility IN ('private', 'internal', 'public')),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    -- Who makes projects in a group.
    project_creation_level text NOT NULL DEFAULT 'developer'
        CHECK (project_creation_level IN ('noone', 'administrator', 'owner', 'maintainer', 'developer')),
    CHECK ((kind = 'user') = (owner_id IS NOT NULL))
);
CREATE INDEX namespaces_parent ON namespaces (parent_id);
CREATE UNIQUE INDEX namespaces_owner ON namespaces (owner_id);
CREATE INDEX namespaces_lineage ON namespaces USING gin (lineage); -- all that is below a group
CREATE INDEX namespaces_group_name ON namespaces (name, id) WHERE kind = 'group';
CREATE INDEX namespaces_group_path ON namespaces (path, id) WHERE kind = 'group';

CREATE TABLE projects (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    namespace_id bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE,
    creator_id bigint REFERENCES users ON DELETE SET NULL,
    name text NOT NULL,
    path text NOT NULL,
    full_path text NOT NULL,
    description text,
    visibility text NOT NULL CHECK (visibility IN ('private', 'internal', 'public')),
    repository_access_level text NOT NULL DEFAULT 'enabled'
        CHECK (repository_access_level IN ('disabled', 'private', 'enabled')),
    builds_access_level text NOT NULL DEFAULT 'enabled'
        CHECK (builds_access_level IN ('disabled', 'private', 'enabled')),
    public_jobs boolean NOT NULL DEFAULT true,
    default_branch text NOT NULL DEFAULT 'main',
    empty_repo boolean NOT NULL DEFAULT true,
    ci_config_path text,
    only_allow_merge_if_pipeline_succeeds boolean NOT NULL DEFAULT false,
    only_allow_merge_if_all_status_checks_passed boolean NOT NULL DEFAULT false,
    archived boolean NOT NULL DEFAULT false,
    last_activity_at timestamptz NOT NULL DEFAULT now(),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    allow_merge_on_skipped_pipeline boolean NOT NULL DEFAULT false, -- one is as good as one that has succeeded
    -- Only jobs of job_token_allowed_projects and job_token_allowed_groups reach this project with their tokens.
    ci_inbound_job_token_scope_enabled boolean NOT NULL DEFAULT true,
    -- From which role on variables may be given to pipelines and jobs; that of Developers asks for nothing.
    ci_pipeline_variables_minimum_override_role text NOT NULL DEFAULT 'developer'
        CHECK (ci_pipeline_variables_minimum_override_role IN ('developer', 'maintainer', 'owner', 'no_one_allowed')),
    merge_method text NOT NULL DEFAULT 'merge' CHECK (merge_method IN ('merge', 'rebase_merge', 'ff')),
    squash_option text NOT NULL DEFAULT 'default_off'
        CHECK (squash_option IN ('never', 'always', 'default_on', 'default_off')),
    -- No other merge request gets the number of one that was deleted.
    greatest_deleted_merge_request_iid integer NOT NULL DEFAULT 0,
    only_allow_merge_if_all_discussions_are_resolved boolean NOT NULL DEFAULT false,
    -- Seconds, of jobs whose file says nothing else.
    build_timeout integer NOT NULL DEFAULT 3600,
    -- What a merge request begins with whose author says nothing else.
    remove_source_branch_after_merge boolean NOT NULL DEFAULT false,
    -- Commits of history that runners fetch; 0 is all of it.
    ci_default_git_depth integer NOT NULL DEFAULT 20,
    build_git_strategy text NOT NULL DEFAULT 'fetch' CHECK (build_git_strategy IN ('fetch', 'clone')),
    auto_cancel_pending_pipelines text NOT NULL DEFAULT 'enabled'
        CHECK (auto_cancel_pending_pipelines IN ('enabled', 'disabled'))
);
CREATE INDEX projects_namespace ON projects (namespace_id, id);
CREATE INDEX projects_visibility ON projects (visibility, id);
CREATE INDEX projects_archived ON projects (id) WHERE archived;
-- Lists, in every order that they can be asked for.
CREATE INDEX projects_name ON projects (name, id);
CREATE INDEX projects_path ON projects (path, id);
CREATE INDEX projects_activity ON projects (last_activity_at, id);
CREATE INDEX projects_updated ON projects (updated_at, id);

ALTER TABLE users
    ADD FOREIGN KEY (bot_project_id) REFERENCES projects ON DELETE SET NULL,
    ADD FOREIGN KEY (bot_namespace_id) REFERENCES namespaces ON DELETE SET NULL;

-- Searches by a part of a name. An index over all runs of three characters serves them; it needs no extension, which
-- not every PostgreSQL has and not every role may create.

-- What is searched, in lower case: each text is a line, so that a short search can ask for a whole one.
CREATE FUNCTION searchable(first text, second text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN lower(E'\n' || first || E'\n' || second || E'\n');

-- What is searched for: a part from three characters on, else the whole of a text, as GitLab does.
CREATE FUNCTION search_pattern(search text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN lower(CASE WHEN length(search) >= 3 THEN search ELSE E'\n' || search || E'\n' END);

CREATE FUNCTION trigrams(words text) RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE COST 1000
RETURN ARRAY(SELECT DISTINCT substr(words, n, 3) FROM generate_series(1, length(words) - 2) n);

CREATE INDEX users_search ON users USING gin (trigrams(searchable(username, name)));
CREATE INDEX projects_search ON projects USING gin (trigrams(searchable(path, name)));
CREATE INDEX namespaces_search ON namespaces USING gin (trigrams(searchable(path, name)));

-- Every path that leads somewhere: one owner at a time, and the old paths of what has moved.
CREATE TABLE routes (
    path text PRIMARY KEY CHECK (path = lower(path)),
    namespace_id bigint REFERENCES namespaces ON DELETE CASCADE,
    project_id bigint REFERENCES projects ON DELETE CASCADE,
    moved boolean NOT NULL DEFAULT false,
    CHECK (num_nonnulls(namespace_id, project_id) = 1)
);
CREATE INDEX routes_namespace ON routes (namespace_id);
CREATE INDEX routes_project ON routes (project_id);

-- Custom roles, which members and invitations may carry beside their level.
CREATE TABLE member_roles (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL UNIQUE,
    description text NOT NULL,
    base_access_level smallint NOT NULL, -- of all who carry it
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE members (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE,
    namespace_id bigint REFERENCES namespaces ON DELETE CASCADE,
    project_id bigint REFERENCES projects ON DELETE CASCADE,
    access_level smallint NOT NULL,
    member_role_id bigint REFERENCES member_roles,
    expires_at date,
    created_by_id bigint REFERENCES users ON DELETE SET NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK (num_nonnulls(namespace_id, project_id) = 1)
);
CREATE UNIQUE INDEX members_namespace ON members (namespace_id, user_id);
CREATE UNIQUE INDEX members_project ON members (project_id, user_id);
CREATE INDEX members_user ON members (user_id); -- what a user can see
CREATE INDEX members_expiry ON members (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX members_member_role ON members (member_role_id) WHERE member_role_id IS NOT NULL;

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
    member_role_id bigint REFERENCES member_roles,
    CHECK (num_nonnulls(namespace_id, project_id) = 1)
);
CREATE UNIQUE INDEX invitations_namespace ON invitations (namespace_id, lower(email));
CREATE UNIQUE INDEX invitations_project ON invitations (project_id, lower(email));
CREATE UNIQUE INDEX invitations_token ON invitations (token_digest);
CREATE INDEX invitations_creator ON invitations (created_by_id);
CREATE INDEX invitations_created ON invitations (created_at); -- reminders and clean-up
CREATE INDEX invitations_member_role ON invitations (member_role_id) WHERE member_role_id IS NOT NULL;

-- How many letters to people who have not asked for any somebody's doings have sent, or an address has got, in an hour.
CREATE TABLE letter_counts (
    counted text PRIMARY KEY, -- `user 7`, `address somebody@example.org`
    began_at timestamptz NOT NULL, -- of the hour: when the first of its letters was queued
    letters integer NOT NULL
);
CREATE INDEX letter_counts_began ON letter_counts (began_at);

-- Whose jobs reach a project with their tokens, where it asks: those of target projects, and of all projects below
-- target groups.
CREATE TABLE job_token_allowed_projects (
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    target_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    PRIMARY KEY (project_id, target_id)
);
CREATE INDEX job_token_allowed_projects_target ON job_token_allowed_projects (target_id); -- removing that one

CREATE TABLE job_token_allowed_groups (
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    target_id bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE,
    PRIMARY KEY (project_id, target_id)
);
CREATE INDEX job_token_allowed_groups_target ON job_token_allowed_groups (target_id); -- removing that one

CREATE TABLE application_settings (
    id boolean PRIMARY KEY DEFAULT true CHECK (id),
    values jsonb NOT NULL DEFAULT '{}', -- what differs from the defaults
    static_objects_external_storage_auth_token bytea, -- encrypted
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO application_settings DEFAULT VALUES;

-- By which a process knows whether the key in its data directory is the one that this database's secrets are under.
CREATE TABLE secret_key_check (
    there_is_one boolean PRIMARY KEY CHECK (there_is_one),
    -- A digest under the key, of which it says nothing.
    digest bytea NOT NULL
);

-- Whoever changes what processes remember of rights and settings tells all of them when he commits, whichever program
-- he is. A notice says nothing but that, so a transaction sends one, however many rows it changes; and it is sent for
-- columns that are remembered only, since commits with notices wait for each other.
CREATE FUNCTION tell_of_rights() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('rights_changed', '');
    RETURN NULL;
END $$;

CREATE TRIGGER tell_of_rights AFTER UPDATE ON users FOR EACH ROW
    WHEN ((OLD.username, OLD.name, OLD.email, OLD.admin, OLD.state, OLD.external)
        IS DISTINCT FROM (NEW.username, NEW.name, NEW.email, NEW.admin, NEW.state, NEW.external))
    EXECUTE FUNCTION tell_of_rights();
CREATE TRIGGER tell_of_removal AFTER DELETE ON users FOR EACH ROW EXECUTE FUNCTION tell_of_rights();

CREATE TRIGGER tell_of_rights AFTER UPDATE ON personal_access_tokens FOR EACH ROW
    WHEN ((OLD.user_id, OLD.digest, OLD.scopes, OLD.revoked, OLD.expires_at)
        IS DISTINCT FROM (NEW.user_id, NEW.digest, NEW.scopes, NEW.revoked, NEW.expires_at))
    EXECUTE FUNCTION tell_of_rights();
CREATE TRIGGER tell_of_removal AFTER DELETE ON personal_access_tokens FOR EACH ROW EXECUTE FUNCTION tell_of_rights();

CREATE TRIGGER tell_of_rights AFTER UPDATE ON namespaces FOR EACH ROW
    WHEN ((OLD.owner_id, OLD.parent_id, OLD.lineage, OLD.visibility)
        IS DISTINCT FROM (NEW.owner_id, NEW.parent_id, NEW.lineage, NEW.visibility))
    EXECUTE FUNCTION tell_of_rights();
CREATE TRIGGER tell_of_removal AFTER DELETE ON namespaces FOR EACH ROW EXECUTE FUNCTION tell_of_rights();

CREATE TRIGGER tell_of_rights AFTER UPDATE ON projects FOR EACH ROW
    WHEN ((OLD.namespace_id, OLD.path, OLD.full_path, OLD.visibility, OLD.default_branch, OLD.archived,
            OLD.public_jobs, OLD.repository_access_level, OLD.builds_access_level,
            OLD.ci_inbound_job_token_scope_enabled, OLD.ci_pipeline_variables_minimum_override_role)
        IS DISTINCT FROM (NEW.namespace_id, NEW.path, NEW.full_path, NEW.visibility, NEW.default_branch, NEW.archived,
            NEW.public_jobs, NEW.repository_access_level, NEW.builds_access_level,
            NEW.ci_inbound_job_token_scope_enabled, NEW.ci_pipeline_variables_minimum_override_role))
    EXECUTE FUNCTION tell_of_rights();
CREATE TRIGGER tell_of_removal AFTER DELETE ON projects FOR EACH ROW EXECUTE FUNCTION tell_of_rights();

CREATE TRIGGER tell_of_rights AFTER UPDATE OR DELETE ON routes FOR EACH ROW EXECUTE FUNCTION tell_of_rights();
CREATE TRIGGER tell_of_rights AFTER INSERT OR UPDATE OR DELETE ON members FOR EACH ROW
    EXECUTE FUNCTION tell_of_rights();
CREATE TRIGGER tell_of_rights AFTER INSERT OR DELETE ON job_token_allowed_projects FOR EACH ROW
    EXECUTE FUNCTION tell_of_rights();
CREATE TRIGGER tell_of_rights AFTER INSERT OR DELETE ON job_token_allowed_groups FOR EACH ROW
    EXECUTE FUNCTION tell_of_rights();
CREATE TRIGGER tell_of_rights AFTER UPDATE ON application_settings FOR EACH ROW EXECUTE FUNCTION tell_of_rights();
