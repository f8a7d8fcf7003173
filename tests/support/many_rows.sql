-- Rows of a larger service: %(users)s users, a tenth as many groups (every fifth is a subgroup), %(projects)s projects.
INSERT INTO users (username, name, email, static_object_seed, static_object_digest, created_at, updated_at)
SELECT 'many-' || n, 'Many ' || n, 'many-' || n || '@example.org', '', sha256(('many-' || n)::bytea), now(), now()
FROM generate_series(1, %(users)s) n;

INSERT INTO namespaces (kind, owner_id, name, path, full_path, full_name, visibility, created_at, updated_at)
SELECT 'user', id, name, username, username, name, 'public', now(), now() FROM users WHERE username LIKE 'many-%%';

INSERT INTO namespaces (kind, name, path, full_path, full_name, visibility, created_at, updated_at)
SELECT 'group', 'Group ' || n, 'many-group-' || n, 'many-group-' || n, 'Group ' || n,
    (ARRAY['private', 'private', 'internal', 'public'])[1 + n %% 4], now(), now()
FROM generate_series(1, %(users)s / 10) n;

UPDATE namespaces SET lineage = ARRAY[id] WHERE lineage = '{}';
UPDATE namespaces SET parent_id = id - 1, lineage = ARRAY[id - 1, id]
WHERE kind = 'group' AND path LIKE 'many-group-%%' AND id %% 5 = 0 AND path <> 'many-group-1';

INSERT INTO projects (namespace_id, name, path, full_path, visibility, last_activity_at, created_at, updated_at)
SELECT ids.all[1 + n %% cardinality(ids.all)], 'Project ' || n, 'project-' || n, 'many/project-' || n,
    (ARRAY['private', 'private', 'private', 'internal', 'public'])[1 + n %% 5], now() - n * interval '1 second',
    now(), now()
FROM generate_series(1, %(projects)s) n,
    (SELECT array_agg(id ORDER BY id) AS all FROM namespaces WHERE path LIKE 'many-%%') ids;

ANALYZE;

-- Each user is a member of a few groups and projects; the first user is a member of very many.
INSERT INTO members (user_id, namespace_id, access_level, created_at)
SELECT users.id, groups.id, 30, now()
FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM users WHERE username LIKE 'many-%%') users
CROSS JOIN LATERAL (
    SELECT 1 + users.n %% (%(users)s / 10) AS n UNION SELECT 1 + users.n * 7 %% (%(users)s / 10)
    UNION SELECT 3 * generate_series(1, %(users)s / 30) WHERE users.n = 1) wanted
JOIN (SELECT id, row_number() OVER (ORDER BY id) AS n FROM namespaces WHERE kind = 'group') groups
    ON groups.n = wanted.n;

INSERT INTO members (user_id, project_id, access_level, created_at)
SELECT users.id, projects.id, 20, now()
FROM projects JOIN users ON users.username = 'many-' || (1 + projects.id %% %(users)s)
WHERE projects.path LIKE 'project-%%' AND projects.full_path LIKE 'many/%%';

-- One group has all users as members.
INSERT INTO members (user_id, namespace_id, access_level, created_at)
SELECT users.id, (SELECT id FROM namespaces WHERE path = 'many-group-1'), 20, now()
FROM users WHERE username LIKE 'many-%%'
ON CONFLICT DO NOTHING;

-- Each project has a runner.
INSERT INTO runners (runner_type, token_digest, created_at)
SELECT 'project_type', sha256(('many-' || projects.id)::bytea), %(now)s FROM projects;

INSERT INTO runner_projects (runner_id, project_id)
SELECT runners.id, projects.id FROM projects
JOIN runners ON runners.token_digest = sha256(('many-' || projects.id)::bytea);

-- Each project has a merge request; its author is a member of the project, and also its reviewer.
INSERT INTO merge_requests (project_id, iid, author_id, title, source_branch, target_branch, head_sha, start_sha,
    last_commit, mergeability, created_at, updated_at)
SELECT members.project_id, 1, members.user_id, 'Change', 'topic', 'main', 'a', 'b', '{}', 'mergeable', now(), now()
FROM members WHERE members.project_id IS NOT NULL;

INSERT INTO merge_request_people (merge_request_id, part, user_id, created_at)
SELECT merge_requests.id, 'reviewer', merge_requests.author_id, now() FROM merge_requests;
ANALYZE;
