-- depends: 0001_accounts_and_projects
-- Pipelines and their jobs, the runners that work them off, what jobs leave behind, and agents.

CREATE TABLE pipelines (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    iid bigint NOT NULL,
    user_id bigint REFERENCES users ON DELETE SET NULL,
    status text NOT NULL DEFAULT 'created' CHECK (status IN ('created', 'waiting_for_resource', 'preparing',
        'waiting_for_callback', 'pending', 'running', 'success', 'failed', 'canceling', 'canceled', 'skipped', 'manual',
        'scheduled')),
    source text NOT NULL,
    name text,
    ref text NOT NULL, -- short name of the branch or tag
    tag boolean NOT NULL DEFAULT false,
    protected boolean NOT NULL DEFAULT false, -- the ref was, when the pipeline was made
    sha text NOT NULL,
    before_sha text NOT NULL,
    commit json NOT NULL, -- as answers show it
    yaml_errors text,
    -- Given by who asks for the pipeline, so that work that is done again makes it once only.
    origin text,
    source_job_id bigint, -- the bridge that started it
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    finished_at timestamptz,
    committed_at timestamptz
);
CREATE UNIQUE INDEX pipelines_iid ON pipelines (project_id, iid);
CREATE UNIQUE INDEX pipelines_origin ON pipelines (origin);
CREATE UNIQUE INDEX pipelines_source_job ON pipelines (source_job_id); -- downstream of a bridge
CREATE INDEX pipelines_project ON pipelines (project_id, id); -- list
CREATE INDEX pipelines_status ON pipelines (project_id, status, id); -- list by status
CREATE INDEX pipelines_ref ON pipelines (project_id, ref, id); -- list by ref, latest
CREATE INDEX pipelines_sha ON pipelines (project_id, sha, id); -- of a merge request's head
CREATE INDEX pipelines_user ON pipelines (user_id);

-- The last iid that each project has given away.
CREATE TABLE pipeline_iids (
    project_id bigint PRIMARY KEY REFERENCES projects ON DELETE CASCADE,
    last bigint NOT NULL
);

CREATE TABLE pipeline_variables (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    pipeline_id bigint NOT NULL REFERENCES pipelines ON DELETE CASCADE,
    key text NOT NULL,
    value bytea NOT NULL, -- encrypted
    variable_type text NOT NULL DEFAULT 'env_var' CHECK (variable_type IN ('env_var', 'file'))
);
CREATE UNIQUE INDEX pipeline_variables_key ON pipeline_variables (pipeline_id, key);

CREATE TABLE runners (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    runner_type text NOT NULL CHECK (runner_type IN ('instance_type', 'group_type', 'project_type')),
    namespace_id bigint REFERENCES namespaces ON DELETE CASCADE, -- of a group runner
    token_digest bytea NOT NULL,
    description text,
    name text,
    active boolean NOT NULL DEFAULT true,
    locked boolean NOT NULL DEFAULT false,
    run_untagged boolean NOT NULL DEFAULT true,
    tag_list text[] NOT NULL DEFAULT '{}',
    access_level text NOT NULL DEFAULT 'not_protected' CHECK (access_level IN ('not_protected', 'ref_protected')),
    maximum_timeout integer, -- seconds
    maintenance_note text,
    creator_id bigint REFERENCES users ON DELETE SET NULL,
    contacted_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK ((runner_type = 'group_type') = (namespace_id IS NOT NULL))
);
CREATE UNIQUE INDEX runners_token ON runners (token_digest);
CREATE INDEX runners_namespace ON runners (namespace_id);

-- Tokens with which runners register themselves: for the instance, a group or a project.
CREATE TABLE runner_registration_tokens (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    namespace_id bigint REFERENCES namespaces ON DELETE CASCADE,
    project_id bigint REFERENCES projects ON DELETE CASCADE,
    digest bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK (num_nonnulls(namespace_id, project_id) <= 1)
);
CREATE UNIQUE INDEX runner_registration_tokens_digest ON runner_registration_tokens (digest);
CREATE UNIQUE INDEX runner_registration_tokens_owner
    ON runner_registration_tokens (namespace_id, project_id) NULLS NOT DISTINCT; -- one at a time

-- The projects of project runners.
CREATE TABLE runner_projects (
    runner_id bigint NOT NULL REFERENCES runners ON DELETE CASCADE,
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    PRIMARY KEY (runner_id, project_id)
);
CREATE INDEX runner_projects_project ON runner_projects (project_id, runner_id);

-- The machines that use one runner's token.
CREATE TABLE runner_managers (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    runner_id bigint NOT NULL REFERENCES runners ON DELETE CASCADE,
    system_id text NOT NULL,
    version text,
    revision text,
    platform text,
    architecture text,
    executor text,
    ip_address text,
    contacted_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX runner_managers_system ON runner_managers (runner_id, system_id);

-- Builds, which runners run, and bridges, which start another pipeline.
CREATE TABLE jobs (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    pipeline_id bigint NOT NULL REFERENCES pipelines ON DELETE CASCADE,
    kind text NOT NULL CHECK (kind IN ('build', 'bridge')),
    status text NOT NULL DEFAULT 'created' CHECK (status IN ('created', 'waiting_for_resource', 'preparing',
        'waiting_for_callback', 'pending', 'running', 'success', 'failed', 'canceling', 'canceled', 'skipped', 'manual',
        'scheduled')),
    failure_reason text,
    name text NOT NULL,
    stage text NOT NULL,
    stage_index integer NOT NULL,
    needs text[], -- names; null: all jobs of earlier stages
    when_run text NOT NULL CHECK (when_run IN ('on_success', 'on_failure', 'always', 'manual', 'delayed')),
    allow_failure boolean NOT NULL,
    tag_list text[] NOT NULL DEFAULT '{}',
    protected boolean NOT NULL DEFAULT false,
    resource_group text,
    environment text,
    timeout integer NOT NULL DEFAULT 3600, -- seconds
    plan jsonb NOT NULL, -- everything the file says about it: ci_config.plan.from_json
    retried boolean NOT NULL DEFAULT false, -- a newer job of this name has taken its place
    attempt integer NOT NULL DEFAULT 0, -- automatic retries before this one
    user_id bigint REFERENCES users ON DELETE SET NULL,
    runner_id bigint REFERENCES runners ON DELETE SET NULL,
    runner_manager_id bigint REFERENCES runner_managers ON DELETE SET NULL,
    token_digest bytea, -- from the hand-out to a runner on
    cancels_gracefully boolean NOT NULL DEFAULT false, -- its runner knows the status `canceling`
    debug_trace boolean NOT NULL DEFAULT false,
    coverage double precision,
    exit_code integer,
    created_at timestamptz NOT NULL DEFAULT now(),
    scheduled_at timestamptz,
    queued_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    contacted_at timestamptz, -- when its runner was last heard of
    artifacts_expire_at timestamptz,
    erased_at timestamptz,
    erased_by_id bigint REFERENCES users ON DELETE SET NULL
);
ALTER TABLE pipelines ADD FOREIGN KEY (source_job_id) REFERENCES jobs ON DELETE SET NULL;
-- Lists of a project, all and by status. Of the negative id: the planner would take the order from another index (the
-- primary key; for a status, that of the project) and filter, which reads everything where the wanted rows are rare.
CREATE INDEX jobs_of_project ON jobs (project_id, (-id)) INCLUDE (id) WHERE kind = 'build';
CREATE INDEX jobs_of_project_by_status ON jobs (project_id, status, (-id)) INCLUDE (id) WHERE kind = 'build';
CREATE INDEX jobs_of_pipeline ON jobs (pipeline_id, id); -- list of a pipeline
CREATE UNIQUE INDEX jobs_latest ON jobs (pipeline_id, name) WHERE NOT retried; -- one job of a name counts
CREATE INDEX jobs_pending ON jobs (id) WHERE status = 'pending' AND kind = 'build'; -- what runners ask for
CREATE INDEX jobs_running ON jobs (contacted_at) WHERE status IN ('running', 'canceling'); -- whose runner is silent
CREATE UNIQUE INDEX jobs_token ON jobs (token_digest) WHERE token_digest IS NOT NULL; -- each request with a job token
CREATE INDEX jobs_resource_group ON jobs (project_id, resource_group, id)
    WHERE resource_group IS NOT NULL AND status IN ('waiting_for_resource', 'pending', 'running', 'canceling');
CREATE INDEX jobs_runner ON jobs (runner_id, id) WHERE runner_id IS NOT NULL;
CREATE INDEX jobs_runner_manager ON jobs (runner_manager_id) WHERE runner_manager_id IS NOT NULL;
CREATE INDEX jobs_user ON jobs (user_id);
CREATE INDEX jobs_erased_by ON jobs (erased_by_id) WHERE erased_by_id IS NOT NULL;

-- Variables that somebody gave when she started a manual job.
CREATE TABLE job_variables (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    job_id bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    key text NOT NULL,
    value bytea NOT NULL -- encrypted
);
CREATE UNIQUE INDEX job_variables_key ON job_variables (job_id, key);

-- A job's log. Bytes are acknowledged once they are in here; a job without a row has no log.
CREATE TABLE job_traces (
    job_id bigint PRIMARY KEY REFERENCES jobs ON DELETE CASCADE,
    size bigint NOT NULL DEFAULT 0, -- bytes received
    checksum bigint NOT NULL DEFAULT 0, -- CRC-32 of the bytes received, before masking
    -- The last bytes received, encrypted, where they may be the beginning of a secret: readers do not get them yet.
    held bytea,
    held_size integer NOT NULL DEFAULT 0,
    doubted boolean NOT NULL DEFAULT false, -- the runner has been asked once to send all of it again
    closed boolean NOT NULL DEFAULT false, -- the job is over, nothing is added
    object_key text, -- of the whole log, once it has been moved to the object store
    watched_at timestamptz, -- when somebody last read it while it grew
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- Pieces of the logs of jobs that run; `start` is a piece's offset in its log.
CREATE TABLE job_trace_chunks (
    job_id bigint NOT NULL REFERENCES job_traces ON DELETE CASCADE,
    start bigint NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (job_id, start)
);
ALTER TABLE job_trace_chunks ALTER COLUMN bytes SET STORAGE EXTERNAL; -- parts of a piece are read without the rest

-- What a job reports by `artifacts:reports:dotenv`: variables of the jobs that come after it.
CREATE TABLE job_report_variables (
    job_id bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    key text NOT NULL,
    value bytea NOT NULL, -- encrypted
    PRIMARY KEY (job_id, key)
);

CREATE TABLE job_artifacts (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    job_id bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    file_type text NOT NULL, -- archive, metadata, junit, ...
    file_format text NOT NULL CHECK (file_format IN ('zip', 'gzip', 'raw')),
    filename text NOT NULL,
    size bigint NOT NULL,
    object_key text NOT NULL,
    sha256 bytea NOT NULL,
    expire_at timestamptz,
    locked boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX job_artifacts_type ON job_artifacts (job_id, file_type);
CREATE INDEX job_artifacts_project ON job_artifacts (project_id);
CREATE INDEX job_artifacts_expiry ON job_artifacts (expire_at) WHERE expire_at IS NOT NULL;

-- Agents of clusters, registered in the project that has their configuration files.
CREATE TABLE cluster_agents (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    name text NOT NULL,
    created_by_id bigint REFERENCES users ON DELETE SET NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX cluster_agents_name ON cluster_agents (project_id, name);

-- `ci_access` of an agent's configuration file: the projects, and groups with all below, whose jobs may use it.
CREATE TABLE cluster_agent_grants (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    agent_id bigint NOT NULL REFERENCES cluster_agents ON DELETE CASCADE,
    project_id bigint REFERENCES projects ON DELETE CASCADE,
    namespace_id bigint REFERENCES namespaces ON DELETE CASCADE,
    configuration jsonb NOT NULL DEFAULT '{}', -- default_namespace, environments, protected_branches_only, ...
    CHECK (num_nonnulls(project_id, namespace_id) = 1)
);
CREATE INDEX cluster_agent_grants_agent ON cluster_agent_grants (agent_id);
CREATE INDEX cluster_agent_grants_project ON cluster_agent_grants (project_id);
CREATE INDEX cluster_agent_grants_namespace ON cluster_agent_grants (namespace_id);
