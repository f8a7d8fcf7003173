-- Jobs of a year in chronological order, ten in each pipeline. Project %(busy_id)s has a tenth of them, %(doomed_id)s
-- another tenth, and %(small_id)s the jobs of %(few)s pipelines, whatever the total is. The others are spread over the
-- other projects by the cube of a uniform random number, so that later projects have fewer. The jobs of the last
-- %(young)s pipelines are running (two in ten) or pending. Of all others 85 %% succeeded, 10 %% failed, 3 %% were
-- canceled, 1 %% were skipped and 1 %% are manual.

-- name: places
WITH owner AS (
    INSERT INTO users (username, name, email, static_object_seed, static_object_digest, confirmed_at)
    VALUES ('owner', 'Owner', 'owner@example.org', %(seed)s, %(digest)s, now()) RETURNING id
), home AS (
    INSERT INTO namespaces (kind, name, path, full_path, full_name, visibility)
    VALUES ('group', 'bench', 'bench', 'bench', 'bench', 'public') RETURNING id
), runner AS (
    INSERT INTO runners (runner_type, token_digest, description, contacted_at)
    SELECT 'instance_type', n::text::bytea, 'runner ' || n, now() FROM generate_series(1, %(runners)s) n RETURNING id
)
SELECT owner.id AS user_id, home.id AS group_id, (SELECT min(id) FROM runner) AS runner_id FROM owner, home;

-- name: projects
UPDATE namespaces SET lineage = ARRAY[id] WHERE id = %(group_id)s;
INSERT INTO routes (path, namespace_id) VALUES ('bench', %(group_id)s);
WITH made AS (
    INSERT INTO projects (namespace_id, creator_id, name, path, full_path, visibility)
    SELECT %(group_id)s, %(user_id)s, 'Project ' || n, 'project-' || n, 'bench/project-' || n, 'public'
    FROM generate_series(1, %(projects)s) n RETURNING id, full_path
), routed AS (
    INSERT INTO routes (path, project_id) SELECT full_path, id FROM made
)
SELECT min(id) FROM made;

-- name: pipelines
INSERT INTO pipelines (id, project_id, iid, user_id, status, source, ref, sha, before_sha, commit, created_at,
    updated_at, started_at, finished_at, committed_at)
OVERRIDING SYSTEM VALUE
SELECT n, CASE WHEN n %% 10 = 0 THEN %(busy_id)s WHEN n %% 10 = 1 THEN %(doomed_id)s
        WHEN n %% 10 = 2 AND n / 10 %% (%(pipelines)s / 10 / %(few)s) = 0 THEN %(small_id)s
        ELSE %(first_project)s + 3 + floor((%(projects)s - 3)
            * power((hashint8(n) & 1048575) / 1048576.0, 3))::bigint END,
    n, %(user_id)s,
    CASE WHEN n > %(pipelines)s - %(young)s THEN 'running' WHEN n %% 7 = 0 THEN 'failed' ELSE 'success' END,
    CASE n %% 5 WHEN 0 THEN 'web' ELSE 'push' END, CASE WHEN n %% 3 = 0 THEN 'main' ELSE 'topic-' || n %% 1000 END,
    lpad(to_hex(n), 40, '0'), repeat('0', 40),
    json_build_object('id', lpad(to_hex(n), 40, '0'), 'short_id', lpad(to_hex(n), 8, '0'),
        'created_at', '2024-01-01T00:00:00.000+00:00', 'title', 'A commit', 'message', 'A commit with a message',
        'author_name', 'Alice', 'author_email', 'alice@example.org'),
    moment, moment, moment, CASE WHEN n <= %(pipelines)s - %(young)s THEN moment END, moment
FROM generate_series(%(first)s, %(last)s) n,
    LATERAL (SELECT %(now)s - interval '1 year' * (1 - n / %(pipelines)s::float)) made (moment);

-- name: jobs
INSERT INTO jobs (id, project_id, pipeline_id, kind, status, name, stage, stage_index, when_run, allow_failure, plan,
    user_id, runner_id, created_at, queued_at, started_at, finished_at, contacted_at)
OVERRIDING SYSTEM VALUE
SELECT (pipelines.id - 1) * 10 + k, pipelines.project_id, pipelines.id, 'build', become.status, 'job ' || k,
    'test', k / 4, 'on_success', false,
    '{"name": "job", "stage": "test", "stage_index": 0, "kind": "build", "script": ["make test"]}', %(user_id)s,
    CASE WHEN ran THEN %(runner_id)s + (chance * 1000)::bigint %% %(runners)s END,
    pipelines.created_at, pipelines.created_at,
    CASE WHEN ran THEN pipelines.created_at END,
    CASE WHEN ran AND become.status <> 'running' THEN pipelines.created_at + interval '3 minutes' END,
    CASE WHEN become.status = 'running' THEN %(now)s + interval '1 day' END
FROM pipelines CROSS JOIN generate_series(1, 10) k
    CROSS JOIN LATERAL (SELECT (hashint8(pipelines.id * 10 + k) & 1048575) / 1048576.0) drawn (chance)
    CROSS JOIN LATERAL (SELECT CASE
        WHEN pipelines.id > %(pipelines)s - %(young)s THEN CASE WHEN k <= 2 THEN 'running' ELSE 'pending' END
        WHEN chance < 0.85 THEN 'success' WHEN chance < 0.95 THEN 'failed' WHEN chance < 0.98 THEN 'canceled'
        WHEN chance < 0.99 THEN 'skipped' ELSE 'manual' END) become (status)
    CROSS JOIN LATERAL (SELECT become.status NOT IN ('pending', 'manual', 'skipped')) have (ran)
WHERE pipelines.id BETWEEN %(first)s AND %(last)s
ORDER BY pipelines.id, k;

-- name: left_behind
-- The two large projects and the small one have the log of each finished job that ran, and the archive of three in ten.
WITH ran AS (
    SELECT jobs.id, jobs.project_id FROM jobs
    WHERE jobs.pipeline_id BETWEEN %(first)s AND %(last)s
        AND jobs.project_id IN (%(busy_id)s, %(doomed_id)s, %(small_id)s) AND jobs.finished_at IS NOT NULL
), logs AS (
    INSERT INTO job_logs (job_id, size, closed, object_key)
    SELECT ran.id, 4096, true, 'projects/' || ran.project_id || '/jobs/' || ran.id || '/log' FROM ran
)
INSERT INTO job_artifacts (project_id, job_id, file_type, file_format, filename, size, object_key, sha256)
SELECT ran.project_id, ran.id, 'archive', 'zip', 'artifacts.zip', 1048576,
    'projects/' || ran.project_id || '/jobs/' || ran.id || '/archive', sha256(ran.id::text::bytea)
FROM ran WHERE ran.id %% 10 < 3;

-- name: after
SELECT setval(pg_get_serial_sequence('pipelines', 'id'), (SELECT max(id) FROM pipelines)),
    setval(pg_get_serial_sequence('jobs', 'id'), (SELECT max(id) FROM jobs));
INSERT INTO pipeline_iids (project_id, last) SELECT project_id, max(iid) FROM pipelines GROUP BY project_id;

-- name: chain
-- A row for each event, as long as a real one, but with invalid digests.
INSERT INTO audit_chain (position, event_id, created_at, digest, hash)
SELECT row_number() OVER (ORDER BY created_at, id), id, created_at, sha256(id::text::bytea), sha256(id::text::bytea)
FROM audit_events;

-- name: owned
DO $$
DECLARE
    one regclass;
BEGIN
    FOR one IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'audit_events'::regclass LOOP
        EXECUTE format('ALTER TABLE %%s OWNER TO forgelet', one);
    END LOOP;
END $$;
