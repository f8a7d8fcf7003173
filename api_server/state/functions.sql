-- Functions that entities are written with. Each is one expression, which PostgreSQL inlines.
-- Applied at each start: every statement here can be run again.

-- ISO 8601, UTC, milliseconds.
CREATE OR REPLACE FUNCTION iso8601(moment timestamptz) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"');

-- A page of this service; forgelet.base_url is set on each connection.
CREATE OR REPLACE FUNCTION web_url(path text) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN current_setting('forgelet.base_url') || '/' || path;

-- The user as other entities show it.
CREATE OR REPLACE FUNCTION user_basic(u users) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN (u).id IS NOT NULL THEN json_build_object(
    'id', (u).id,
    'username', (u).username,
    'public_email', (u).public_email,
    'name', (u).name,
    'state', (u).state,
    'locked', false,
    'avatar_url', NULL,
    'web_url', web_url((u).username)
) END;

-- The greatest role of a user in a namespace: what memberships of it and of its ancestors give, not expired.
CREATE OR REPLACE FUNCTION namespace_role(n namespaces, for_user_id bigint) RETURNS integer LANGUAGE sql STABLE
RETURN CASE WHEN (n).owner_id = for_user_id THEN 50 ELSE coalesce((
    SELECT max(members.access_level) FROM members
    WHERE members.user_id = for_user_id AND members.namespace_id = ANY ((n).lineage)
        AND (members.expires_at IS NULL OR members.expires_at > current_date)
), 0) END;

-- The greatest role of a user in a project, inherited ones included.
CREATE OR REPLACE FUNCTION project_role(p projects, n namespaces, for_user_id bigint) RETURNS integer
LANGUAGE sql STABLE
RETURN greatest(namespace_role(n, for_user_id), coalesce((
    SELECT max(members.access_level) FROM members
    WHERE members.user_id = for_user_id AND members.project_id = (p).id
        AND (members.expires_at IS NULL OR members.expires_at > current_date)
), 0));

-- Whether a ref name is meant by a protected branch's name, in which `*` stands for any run of characters.
CREATE OR REPLACE FUNCTION wildcard_matches(pattern text, name text) RETURNS boolean LANGUAGE sql IMMUTABLE
PARALLEL SAFE
RETURN name LIKE replace(replace(replace(replace(pattern, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%');

-- What an access level of a protected branch is called.
CREATE OR REPLACE FUNCTION protection_level_description(level smallint) RETURNS text LANGUAGE sql IMMUTABLE
PARALLEL SAFE
RETURN CASE level
    WHEN 0 THEN 'No one' WHEN 30 THEN 'Developers + Maintainers' WHEN 40 THEN 'Maintainers' ELSE 'Instance admins' END;

-- Whether a status check is meant for merge requests into that branch.
CREATE OR REPLACE FUNCTION status_check_applies(c external_status_checks, branch text) RETURNS boolean
LANGUAGE sql STABLE
RETURN (c).all_branches OR EXISTS (
    SELECT FROM external_status_check_branches scope
    JOIN protected_branches ON protected_branches.id = scope.protected_branch_id
    WHERE scope.check_id = (c).id AND wildcard_matches(protected_branches.name, branch)
);

-- The answer for the present head: the newest, or pending while there is none.
CREATE OR REPLACE FUNCTION status_check_result(for_check_id bigint, m merge_requests) RETURNS text LANGUAGE sql STABLE
RETURN coalesce((
    SELECT answers.status FROM status_check_responses answers
    WHERE answers.check_id = for_check_id AND answers.merge_request_id = (m).id AND answers.sha = (m).head_sha
    ORDER BY answers.id DESC LIMIT 1
), 'pending');

CREATE OR REPLACE FUNCTION status_checks_passed(m merge_requests) RETURNS boolean LANGUAGE sql STABLE
RETURN NOT EXISTS (
    SELECT FROM external_status_checks checks
    WHERE checks.project_id = (m).project_id AND status_check_applies(checks, (m).target_branch)
        AND status_check_result(checks.id, m) <> 'passed'
);

CREATE OR REPLACE FUNCTION is_draft(title text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN title ~* '^\s*(draft:|\[draft\]|\(draft\))';

-- Why a merge request cannot be merged, in GitLab's names, or `mergeable`.
CREATE OR REPLACE FUNCTION detailed_merge_status(m merge_requests, p projects) RETURNS text LANGUAGE sql STABLE
RETURN CASE
    WHEN (m).state <> 'opened' THEN 'not_open'
    WHEN (m).mergeability = 'no_commits' THEN 'commits_status'
    WHEN is_draft((m).title) THEN 'draft_status'
    WHEN (p).only_allow_merge_if_all_status_checks_passed AND NOT status_checks_passed(m)
        THEN 'status_checks_must_pass'
    WHEN (m).mergeability = 'conflict' THEN 'conflict'
    WHEN (m).mergeability = 'unchecked' THEN 'unchecked'
    ELSE 'mergeable'
END;

CREATE OR REPLACE FUNCTION merge_status(mergeability text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE mergeability
    WHEN 'mergeable' THEN 'can_be_merged' WHEN 'unchecked' THEN 'unchecked' ELSE 'cannot_be_merged'
END;

-- A project as deliveries show it.
CREATE OR REPLACE FUNCTION delivered_project(p projects, n namespaces) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE
RETURN json_build_object(
    'id', (p).id,
    'name', (p).name,
    'description', coalesce((p).description, ''),
    'web_url', web_url((p).full_path),
    'avatar_url', NULL,
    'git_ssh_url', '',
    'git_http_url', web_url((p).full_path || '.git'),
    'namespace', (n).name,
    'visibility_level', CASE (p).visibility WHEN 'private' THEN 0 WHEN 'internal' THEN 10 ELSE 20 END,
    'path_with_namespace', (p).full_path,
    'default_branch', (p).default_branch,
    'ci_config_path', (p).ci_config_path,
    'homepage', web_url((p).full_path),
    'url', web_url((p).full_path || '.git'),
    'ssh_url', '',
    'http_url', web_url((p).full_path || '.git')
);

-- A moment as deliveries write it.
CREATE OR REPLACE FUNCTION delivered_time(moment timestamptz) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"');
