-- Pipelines and their jobs, the runners that work them off, what jobs leave behind, and agents.

-- Tokens that start pipelines of one project, with the rights of the user who made them.
CREATE TABLE pipeline_triggers (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    owner_id bigint NOT NULL REFERENCES users ON DELETE CASCADE,
    description text NOT NULL,
    token_seed bytea NOT NULL, -- with the service's key it gives the token, which its owner may read again
    token_digest bytea NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    last_used_at timestamptz
);
CREATE UNIQUE INDEX pipeline_triggers_token ON pipeline_triggers (token_digest);
CREATE INDEX pipeline_triggers_project ON pipeline_triggers (project_id, id); -- lists
CREATE INDEX pipeline_triggers_owner ON pipeline_triggers (owner_id);

-- Pipelines that are run at the moments of a cron expression, with the rights of their owners.
CREATE TABLE pipeline_schedules (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    owner_id bigint REFERENCES users ON DELETE SET NULL,
    description text NOT NULL,
    ref text NOT NULL, -- in full: refs/heads/main
    cron text NOT NULL,
    cron_timezone text NOT NULL, -- as it was given: Berlin, Europe/Berlin
    active boolean NOT NULL,
    next_run_at timestamptz NOT NULL, -- also of inactive ones
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
CREATE INDEX pipeline_schedules_project ON pipeline_schedules (project_id, id); -- lists
CREATE INDEX pipeline_schedules_owner ON pipeline_schedules (owner_id);
CREATE INDEX pipeline_schedules_due ON pipeline_schedules (next_run_at) WHERE active; -- whose moment has come

CREATE TABLE pipeline_schedule_variables (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    schedule_id bigint NOT NULL REFERENCES pipeline_schedules ON DELETE CASCADE,
    key text NOT NULL,
    value bytea NOT NULL, -- encrypted
    variable_type text NOT NULL CHECK (variable_type IN ('env_var', 'file'))
);
CREATE UNIQUE INDEX pipeline_schedule_variables_key ON pipeline_schedule_variables (schedule_id, key);

-- pipelines, jobs and job_artifacts have no foreign key to projects: a project goes at once and they after it, step by
-- step. A million of them in the statement that removes the project would take longer than a statement may.
CREATE TABLE pipelines (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint NOT NULL,
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
    committed_at timestamptz,
    -- The pipeline that everything began with; null for those that no other has started. It stays when that one is
    -- removed. Of such a pipeline: how many its hierarchy has had so far, itself included.
    hierarchy_id bigint,
    hierarchy_size integer NOT NULL DEFAULT 1,
    tag_message text, -- for its jobs; none of branches and lightweight tags
    -- Of a merge request's pipeline, whose `ref` is `refs/merge-requests/<iid>/head`. The branch stays when the merge
    -- request has gone: by its protection it is judged who may change the pipeline.
    merge_request_id bigint REFERENCES merge_requests ON DELETE SET NULL,
    source_branch text,
    -- What its file says of when it is canceled by itself.
    auto_cancel_on_new_commit text NOT NULL DEFAULT 'conservative'
        CHECK (auto_cancel_on_new_commit IN ('conservative', 'interruptible', 'none')),
    auto_cancel_on_job_failure text NOT NULL DEFAULT 'none'
        CHECK (auto_cancel_on_job_failure IN ('all', 'none')),
    schedule_id bigint REFERENCES pipeline_schedules ON DELETE SET NULL
);
CREATE UNIQUE INDEX pipelines_iid ON pipelines (project_id, iid);
CREATE UNIQUE INDEX pipelines_origin ON pipelines (origin);
CREATE UNIQUE INDEX pipelines_source_job ON pipelines (source_job_id); -- downstream of a bridge
CREATE INDEX pipelines_project ON pipelines (project_id, id); -- list
CREATE INDEX pipelines_status ON pipelines (project_id, status, id); -- list by status
CREATE INDEX pipelines_ref ON pipelines (project_id, ref, id); -- list by ref, latest
CREATE INDEX pipelines_sha ON pipelines (project_id, sha, id); -- of a merge request's head
CREATE INDEX pipelines_user ON pipelines (user_id);
CREATE INDEX pipelines_source ON pipelines (project_id, source, id);
CREATE INDEX pipelines_updated ON pipelines (project_id, updated_at, id);
CREATE INDEX pipelines_merge_request ON pipelines (merge_request_id, id) WHERE merge_request_id IS NOT NULL;
CREATE INDEX pipelines_schedule ON pipelines (schedule_id, id) WHERE schedule_id IS NOT NULL; -- lists, the last one
-- What a newer commit may cancel is looked for at each push: not among all pipelines that the branch has had.
CREATE INDEX pipelines_unfinished ON pipelines (project_id, ref, created_at) WHERE status IN ('created',
    'waiting_for_resource', 'preparing', 'waiting_for_callback', 'pending', 'running', 'manual', 'scheduled');

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
CREATE INDEX runners_of_instance ON runners (contacted_at) WHERE runner_type = 'instance_type';
CREATE INDEX runners_contacted ON runners (contacted_at) WHERE active; -- which of them are alive

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

-- Since when runners have found somebody who listens. The one row is written every few seconds: where that has not
-- happened for a while, the service was away, and silence of that time says nothing about a runner.
CREATE TABLE runner_watch (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    looked_at timestamptz NOT NULL,
    listening_since timestamptz NOT NULL
);

-- Builds, which runners run; bridges, which start another pipeline; and external ones, which no runner gets: what other
-- systems say of a commit counts in its pipeline's status.
CREATE TABLE jobs (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint NOT NULL,
    pipeline_id bigint NOT NULL REFERENCES pipelines ON DELETE CASCADE,
    kind text NOT NULL CHECK (kind IN ('build', 'bridge', 'external')),
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
    plan jsonb NOT NULL, -- everything the file says about it: ci/config/plan.py
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
    erased_by_id bigint REFERENCES users ON DELETE SET NULL,
    -- The masked values that the job has been given, encrypted: its log does not show them.
    masked_values bytea,
    -- When it was handed out; null from its runner's first word on. Where that never comes, the answer was lost, and
    -- another runner has to run it.
    unacknowledged_since timestamptz,
    taken_back boolean NOT NULL DEFAULT false, -- once already
    target_url text, -- of a status of another system
    description text
);
ALTER TABLE pipelines ADD FOREIGN KEY (source_job_id) REFERENCES jobs ON DELETE SET NULL;
-- Lists of a project, all and by status. Of the negative id: the planner would take the order from another index (the
-- primary key; for a status, that of the project) and filter, which reads everything where the wanted rows are rare.
CREATE INDEX jobs_of_project ON jobs (project_id, (-id)) INCLUDE (id) WHERE kind = 'build';
CREATE INDEX jobs_of_project_by_status ON jobs (project_id, status, (-id)) INCLUDE (id) WHERE kind = 'build';
CREATE INDEX jobs_of_pipeline ON jobs (pipeline_id, id); -- list of a pipeline
CREATE UNIQUE INDEX jobs_latest ON jobs (pipeline_id, name) WHERE NOT retried; -- one job of a name counts
CREATE INDEX jobs_pending ON jobs (id) WHERE status = 'pending' AND kind = 'build'; -- what runners ask for
CREATE INDEX jobs_running ON jobs (contacted_at)
    WHERE status IN ('running', 'canceling') AND kind = 'build'; -- whose runner is silent
CREATE INDEX jobs_running_bridges ON jobs (id) WHERE status = 'running' AND kind = 'bridge'; -- whose pipeline is gone
CREATE UNIQUE INDEX jobs_token ON jobs (token_digest) WHERE token_digest IS NOT NULL; -- each request with a job token
CREATE INDEX jobs_resource_group ON jobs (project_id, resource_group, id)
    WHERE resource_group IS NOT NULL AND status IN ('waiting_for_resource', 'pending', 'running', 'canceling');
CREATE INDEX jobs_runner ON jobs (runner_id, id) WHERE runner_id IS NOT NULL;
CREATE INDEX jobs_runner_manager ON jobs (runner_manager_id) WHERE runner_manager_id IS NOT NULL;
CREATE INDEX jobs_user ON jobs (user_id);
CREATE INDEX jobs_erased_by ON jobs (erased_by_id) WHERE erased_by_id IS NOT NULL;
CREATE INDEX jobs_unacknowledged ON jobs (unacknowledged_since) WHERE unacknowledged_since IS NOT NULL;
CREATE INDEX jobs_unfinished ON jobs (status) WHERE kind = 'build'
    AND status NOT IN ('success', 'failed', 'canceled', 'skipped', 'manual');
CREATE INDEX jobs_finished ON jobs (finished_at, status) WHERE finished_at IS NOT NULL AND kind = 'build';

-- What waits for a runner, by what a runner has to have and by project: a hand-out goes from one kind of jobs to the
-- next, and looks at one job of each. Lists of tags may be too long for an index; their digests are not.
CREATE FUNCTION tags_digest(tags text[]) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN sha256(convert_to(tags::text, 'UTF8'));
-- The condition is one that no other index has: where statistics say that nothing waits, the planner would think it as
-- good to read all jobs that do from another index, and sort them.
CREATE INDEX jobs_waiting ON jobs (tags_digest(tag_list), protected, project_id, id)
    WHERE kind || ' ' || status = 'build pending';

-- Variables that somebody gave when she started a manual job.
CREATE TABLE job_variables (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    job_id bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    key text NOT NULL,
    value bytea NOT NULL -- encrypted
);
CREATE UNIQUE INDEX job_variables_key ON job_variables (job_id, key);

-- A job's log. Bytes are acknowledged once they are in here; a job without a row has no log.
CREATE TABLE job_logs (
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
CREATE TABLE job_log_chunks (
    job_id bigint NOT NULL REFERENCES job_logs ON DELETE CASCADE,
    start bigint NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (job_id, start)
);
ALTER TABLE job_log_chunks ALTER COLUMN bytes SET STORAGE EXTERNAL; -- parts of a piece are read without the rest

-- What a job reports by `artifacts:reports:dotenv`: variables of the jobs that come after it.
CREATE TABLE job_report_variables (
    job_id bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    key text NOT NULL,
    value bytea NOT NULL, -- encrypted
    PRIMARY KEY (job_id, key)
);

CREATE TABLE job_artifacts (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint NOT NULL,
    job_id bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    file_type text NOT NULL, -- archive, metadata, junit, ...
    file_format text NOT NULL CHECK (file_format IN ('zip', 'gzip', 'raw')),
    filename text NOT NULL,
    size bigint NOT NULL,
    object_key text NOT NULL,
    sha256 bytea NOT NULL,
    expire_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX job_artifacts_type ON job_artifacts (job_id, file_type);
-- A project's artifacts one after the other, for who removes them; what they take up is read from the index alone.
CREATE INDEX job_artifacts_project ON job_artifacts (project_id, id) INCLUDE (size);
CREATE INDEX job_artifacts_expiry ON job_artifacts (expire_at) WHERE expire_at IS NOT NULL;

-- CI/CD variables of projects, groups and the whole instance.
CREATE TABLE ci_variables (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint REFERENCES projects ON DELETE CASCADE,
    namespace_id bigint REFERENCES namespaces ON DELETE CASCADE, -- of a group
    key text NOT NULL,
    value bytea NOT NULL, -- encrypted
    variable_type text NOT NULL CHECK (variable_type IN ('env_var', 'file')),
    protected boolean NOT NULL, -- for jobs on protected refs only
    masked boolean NOT NULL, -- logs do not show it
    hidden boolean NOT NULL, -- nor does the API
    raw boolean NOT NULL,
    environment_scope text NOT NULL, -- `*` stands for any run of characters
    description text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    instance_id bigint CHECK (instance_id = 1), -- the instance is 1, as in the audit trail
    CHECK (num_nonnulls(project_id, namespace_id, instance_id) = 1)
);
CREATE UNIQUE INDEX ci_variables_project ON ci_variables (project_id, key, environment_scope);
CREATE UNIQUE INDEX ci_variables_group ON ci_variables (namespace_id, key, environment_scope);
CREATE UNIQUE INDEX ci_variables_instance ON ci_variables (instance_id, key) WHERE instance_id IS NOT NULL;

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
