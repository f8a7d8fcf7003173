-- The rows of the other lists, of project %(project_id)s in group %(group_id)s, created by user %(user_id)s.
INSERT INTO projects (namespace_id, creator_id, name, path, full_path, visibility, last_activity_at)
SELECT %(group_id)s, %(user_id)s, 'Project ' || n, 'project-' || n, 'bench/project-' || n, 'private',
    now() - n * interval '1 second'
FROM generate_series(1, %(projects)s) n;

INSERT INTO routes (path, project_id)
SELECT full_path, id FROM projects WHERE full_path LIKE 'bench/project-%%';

INSERT INTO external_status_checks (project_id, name, external_url)
SELECT %(project_id)s, 'Check ' || n, 'https://checks.example.org/' || n FROM generate_series(1, 20) n;

INSERT INTO merge_requests (project_id, iid, author_id, title, source_branch, target_branch, head_sha, start_sha,
    last_commit, mergeability)
VALUES (%(project_id)s, 1, %(user_id)s, 'A change', 'topic', 'main', repeat('a', 40), repeat('b', 40), '{}',
    'mergeable');

INSERT INTO status_check_responses (check_id, merge_request_id, sha, status, user_id)
SELECT checks.id, m.id, m.head_sha, (ARRAY['passed', 'failed'])[1 + checks.id %% 2], %(user_id)s
FROM external_status_checks checks, merge_requests m;

INSERT INTO remote_mirrors (project_id, enabled, url, shown_url, uniqueness_key, auth_method, host_keys,
    only_protected_branches, keep_divergent_refs, update_status, last_update_at, last_update_started_at,
    last_successful_update_at)
SELECT %(project_id)s, false, 'https://mirrors.example.org/' || n || '.git',
    'https://*****:*****@mirrors.example.org/' || n || '.git', 'https://mirrors.example.org/' || n, 'password', '[]',
    false, true, 'finished', now(), now(), now()
FROM generate_series(1, 20) n;

INSERT INTO invitations (project_id, namespace_id, email, access_level, created_by_id, token_seed, token_digest)
SELECT CASE place WHEN 'project' THEN %(project_id)s END, CASE place WHEN 'group' THEN %(group_id)s END,
    'guest-' || n || '@example.org', 30, %(user_id)s, ''::bytea, sha256((place || n)::bytea)
FROM generate_series(1, 100) n, (VALUES ('project'), ('group')) places (place);

-- Bridges in the project's first pipeline, each with the pipeline that it has started.
WITH bridges AS (
    INSERT INTO jobs (project_id, pipeline_id, kind, status, name, stage, stage_index, when_run, allow_failure, plan,
        user_id, created_at, started_at, finished_at)
    SELECT %(project_id)s, (SELECT min(id) FROM pipelines WHERE project_id = %(project_id)s), 'bridge', 'success',
        'bridge ' || n, 'deploy', 2, 'on_success', false, '{"name": "bridge", "stage": "deploy"}', %(user_id)s, now(),
        now(), now()
    FROM generate_series(1, 20) n
    RETURNING id
)
INSERT INTO pipelines (project_id, iid, user_id, status, source, ref, sha, before_sha, commit, source_job_id)
SELECT %(project_id)s, 1000000 + bridges.id, %(user_id)s, 'success', 'parent_pipeline', 'main', repeat('c', 40),
    repeat('0', 40), '{"id": "c", "short_id": "c", "title": "A commit"}', bridges.id
FROM bridges;
