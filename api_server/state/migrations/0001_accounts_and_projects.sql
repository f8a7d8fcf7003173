-- Users, groups, projects, and who may do what in them.

CREATE TABLE users (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    username text NOT NULL,
    name text NOT NULL,
    email text NOT NULL,
    state text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'blocked')),
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
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX users_username ON users (lower(username));
CREATE UNIQUE INDEX users_email ON users (lower(email));
CREATE UNIQUE INDEX users_static_object_digest ON users (static_object_digest); -- who a static-object token is

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
    CHECK ((kind = 'user') = (owner_id IS NOT NULL))
);
CREATE INDEX namespaces_parent ON namespaces (parent_id);
CREATE UNIQUE INDEX namespaces_owner ON namespaces (owner_id);
CREATE INDEX namespaces_lineage ON namespaces USING gin (lineage); -- all that is below a group

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
    ci_job_token_scope_enabled boolean NOT NULL DEFAULT false,
    only_allow_merge_if_pipeline_succeeds boolean NOT NULL DEFAULT false,
    only_allow_merge_if_all_status_checks_passed boolean NOT NULL DEFAULT false,
    archived boolean NOT NULL DEFAULT false,
    last_activity_at timestamptz NOT NULL DEFAULT now(),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX projects_namespace ON projects (namespace_id, id);
CREATE INDEX projects_visibility ON projects (visibility, id);

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

CREATE TABLE members (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE,
    namespace_id bigint REFERENCES namespaces ON DELETE CASCADE,
    project_id bigint REFERENCES projects ON DELETE CASCADE,
    access_level smallint NOT NULL,
    member_role_id bigint,
    expires_at date,
    created_by_id bigint REFERENCES users ON DELETE SET NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK (num_nonnulls(namespace_id, project_id) = 1)
);
CREATE UNIQUE INDEX members_namespace ON members (namespace_id, user_id);
CREATE UNIQUE INDEX members_project ON members (project_id, user_id);
CREATE INDEX members_user ON members (user_id); -- what a user can see
CREATE INDEX members_expiry ON members (expires_at) WHERE expires_at IS NOT NULL;

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

-- Ref updates that git was asked for and whose consequences (pipelines, mirrors, purges) are not yet decided.
CREATE TABLE pushes (
    id text PRIMARY KEY, -- marks the push in the repository's reflogs
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    user_id bigint REFERENCES users ON DELETE SET NULL,
    updates jsonb NOT NULL, -- [[old, new, ref], ...]
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX pushes_created ON pushes (created_at);

CREATE TABLE application_settings (
    id boolean PRIMARY KEY DEFAULT true CHECK (id),
    values jsonb NOT NULL DEFAULT '{}', -- what differs from the defaults
    static_objects_external_storage_auth_token bytea, -- encrypted
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO application_settings DEFAULT VALUES;
