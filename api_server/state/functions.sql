-- Functions that entities are written with. Each is one expression, which PostgreSQL inlines.
-- Applied whenever this file has changed: every statement here can be run again. None of them knows what time it is:
-- the moment is the application's, and is handed in.

-- As they were before they were handed the moment.
DROP FUNCTION IF EXISTS contact_status(timestamptz, timestamptz), namespace_role(namespaces, bigint),
    project_role(projects, namespaces, bigint), runner_basic(runners), runner_manager_basic(runner_managers);

-- ISO 8601, UTC, milliseconds.
CREATE OR REPLACE FUNCTION iso8601(moment timestamptz) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"');

-- A page of this service; forgelet.base_url is set on each connection.
CREATE OR REPLACE FUNCTION web_url(path text) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN current_setting('forgelet.base_url') || '/' || path;

-- Where a repository would be cloned from over SSH, as GitLab shows it also where SSH is off.
CREATE OR REPLACE FUNCTION ssh_url(path text) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN 'git@' || substring(current_setting('forgelet.base_url') FROM '^[^:]+://(\[[^]]*\]|[^:/]*)') || ':' || path || '.git';

-- The keys of two objects in one, in their order. A function takes a hundred arguments, which are fifty keys.
CREATE OR REPLACE FUNCTION json_joined(first json, second json) RETURNS json LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (left(first::text, -1) || ', ' || substr(second::text, 2))::json;

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

-- Whether the day of expiry of something has come: what expires is over when that day (in UTC) begins.
CREATE OR REPLACE FUNCTION has_expired(expires_at date, moment timestamptz) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN expires_at IS NOT NULL AND expires_at <= (moment AT TIME ZONE 'UTC')::date;

-- Whether a membership counts.
CREATE OR REPLACE FUNCTION counts(m members, moment timestamptz) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN NOT has_expired((m).expires_at, moment);

-- The greatest role of a user in a namespace: what memberships of it and of its ancestors give.
CREATE OR REPLACE FUNCTION namespace_role(n namespaces, for_user_id bigint, moment timestamptz) RETURNS integer
LANGUAGE sql STABLE
RETURN CASE WHEN (n).owner_id = for_user_id THEN 50 ELSE coalesce((
    SELECT max(members.access_level) FROM members
    WHERE members.user_id = for_user_id AND members.namespace_id = ANY ((n).lineage) AND counts(members, moment)
), 0) END;

-- The greatest role of a user in a project, inherited ones included.
CREATE OR REPLACE FUNCTION project_role(p projects, n namespaces, for_user_id bigint, moment timestamptz)
RETURNS integer LANGUAGE sql STABLE
RETURN greatest(namespace_role(n, for_user_id, moment), coalesce((
    SELECT max(members.access_level) FROM members
    WHERE members.user_id = for_user_id AND members.project_id = (p).id AND counts(members, moment)
), 0));

-- Whether a user (null: a stranger) sees what is internal: everybody who is signed in, but external users.
CREATE OR REPLACE FUNCTION is_insider(for_user_id bigint) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE
RETURN EXISTS (SELECT FROM users WHERE users.id = for_user_id AND NOT users.external);

-- Whether somebody sees a project or a group of that visibility. A member is who has a role: in a project that of a
-- Guest, in a group any.
CREATE OR REPLACE FUNCTION is_visible(visibility text, to_member boolean, to_insider boolean) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN to_member OR visibility = 'public' OR (visibility = 'internal' AND to_insider);

-- Whether a project lets in the jobs of another one with their tokens. It does its own, those of the projects and
-- groups that its allow-list names, and all of them where it does not ask.
CREATE OR REPLACE FUNCTION lets_in_jobs_of(p projects, job_project_id bigint) RETURNS boolean LANGUAGE sql STABLE
RETURN job_project_id = (p).id OR NOT (p).ci_inbound_job_token_scope_enabled
    OR EXISTS (
        SELECT FROM job_token_allowed_projects allowed
        WHERE allowed.project_id = (p).id AND allowed.target_id = job_project_id)
    OR EXISTS (
        SELECT FROM projects jobs_project
        JOIN namespaces ON namespaces.id = jobs_project.namespace_id
        JOIN job_token_allowed_groups allowed ON allowed.target_id = ANY (namespaces.lineage)
        WHERE jobs_project.id = job_project_id AND allowed.project_id = (p).id);

-- Whether a ref name is meant by a protected branch's name, in which `*` stands for any run of characters.
CREATE OR REPLACE FUNCTION wildcard_matches(pattern text, name text) RETURNS boolean LANGUAGE sql IMMUTABLE
PARALLEL SAFE
RETURN name LIKE replace(replace(replace(replace(pattern, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%');

-- Whether a rule protects a branch.
CREATE OR REPLACE FUNCTION is_protected_branch(of_project_id bigint, branch text) RETURNS boolean LANGUAGE sql STABLE
RETURN EXISTS (
    SELECT FROM protected_branches
    WHERE protected_branches.project_id = of_project_id AND wildcard_matches(protected_branches.name, branch)
);

-- What an access level of a protected branch is called.
CREATE OR REPLACE FUNCTION protection_level_description(level smallint) RETURNS text LANGUAGE sql IMMUTABLE
PARALLEL SAFE
RETURN CASE level
    WHEN 0 THEN 'No one' WHEN 30 THEN 'Developers + Maintainers' WHEN 40 THEN 'Maintainers' ELSE 'Instance admins' END;

-- Whether a status check is meant for merge requests into that branch.
CREATE OR REPLACE FUNCTION status_check_applies(c external_status_checks, branch text) RETURNS boolean
LANGUAGE sql STABLE
RETURN NOT EXISTS (
    SELECT FROM external_status_check_branches scope WHERE scope.check_id = (c).id
) OR EXISTS (
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

-- The pipeline of a merge request's head: the newest of its own, else of its source branch, child pipelines aside.
CREATE OR REPLACE FUNCTION head_pipeline_id(m merge_requests) RETURNS bigint LANGUAGE sql STABLE
RETURN (
    SELECT pipelines.id FROM pipelines
    WHERE pipelines.project_id = (m).project_id AND pipelines.sha = (m).head_sha
        AND pipelines.source <> 'parent_pipeline'
        AND (pipelines.merge_request_id = (m).id OR pipelines.ref = (m).source_branch AND NOT pipelines.tag)
    ORDER BY pipelines.merge_request_id IS NULL, pipelines.id DESC LIMIT 1
);

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
-- The user as jobs show her.
CREATE OR REPLACE FUNCTION user_public(u users) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN (u).id IS NOT NULL THEN json_build_object(
    'id', (u).id,
    'username', (u).username,
    'name', (u).name,
    'state', (u).state,
    'locked', false,
    'avatar_url', NULL,
    'web_url', web_url((u).username),
    'created_at', iso8601((u).created_at),
    'bio', coalesce((u).bio, ''),
    'location', coalesce((u).location, ''),
    'public_email', (u).public_email,
    'skype', '', 'linkedin', '', 'twitter', '',
    'website_url', coalesce((u).website_url, ''),
    'organization', coalesce((u).organization, '')
) END;

-- A pipeline as lists and jobs show it; `project_path` is its project's full path.
CREATE OR REPLACE FUNCTION pipeline_basic(p pipelines, project_path text) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN (p).id IS NOT NULL THEN json_build_object(
    'id', (p).id,
    'iid', (p).iid,
    'project_id', (p).project_id,
    'sha', (p).sha,
    'ref', (p).ref,
    'status', (p).status,
    'source', (p).source,
    'created_at', iso8601((p).created_at),
    'updated_at', iso8601((p).updated_at),
    'web_url', web_url(project_path || '/-/pipelines/' || (p).id)
) END;

-- A pipeline as lists of pipelines and commits show it: with its name.
CREATE OR REPLACE FUNCTION pipeline_in_list(p pipelines, project_path text) RETURNS json
LANGUAGE sql STABLE PARALLEL SAFE
RETURN (left(pipeline_basic(p, project_path)::text, -1) || ', "name" : ' || coalesce(to_json((p).name)::text, 'null')
    || '}')::json;

-- Whether a runner, or one of its managers, is there: heard of within two hours, within a week, or longer ago.
CREATE OR REPLACE FUNCTION contact_status(contacted_at timestamptz, created_at timestamptz, moment timestamptz)
RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE
    WHEN contacted_at > moment - interval '2 hours' THEN 'online'
    WHEN coalesce(contacted_at, created_at) < moment - interval '7 days' THEN 'stale'
    WHEN contacted_at IS NULL THEN 'never_contacted'
    ELSE 'offline' END;

-- A runner as jobs and lists show it.
CREATE OR REPLACE FUNCTION runner_basic(r runners, moment timestamptz) RETURNS json
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN (r).id IS NOT NULL THEN json_build_object(
    'id', (r).id,
    'description', coalesce((r).description, ''),
    'ip_address', NULL,
    'active', (r).active,
    'paused', NOT (r).active,
    'is_shared', (r).runner_type = 'instance_type',
    'runner_type', (r).runner_type,
    'name', (r).name,
    'online', coalesce((r).contacted_at > moment - interval '2 hours', false),
    'created_at', iso8601((r).created_at),
    'status', contact_status((r).contacted_at, (r).created_at, moment)
) END;

-- A machine that uses a runner's token, as jobs show it.
CREATE OR REPLACE FUNCTION runner_manager_basic(m runner_managers, moment timestamptz) RETURNS json
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN (m).id IS NOT NULL THEN json_build_object(
    'id', (m).id,
    'system_id', (m).system_id,
    'version', (m).version,
    'revision', (m).revision,
    'platform', (m).platform,
    'architecture', (m).architecture,
    'created_at', iso8601((m).created_at),
    'contacted_at', iso8601((m).contacted_at),
    'ip_address', (m).ip_address,
    'status', contact_status((m).contacted_at, (m).created_at, moment)
) END;

-- A project as its agents show it.
CREATE OR REPLACE FUNCTION config_project(p projects, n namespaces) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE
RETURN json_build_object(
    'id', (p).id,
    'description', (p).description,
    'name', (p).name,
    'name_with_namespace', (n).full_name || ' / ' || (p).name,
    'path', (p).path,
    'path_with_namespace', (p).full_path,
    'created_at', iso8601((p).created_at)
);

-- Whoever has confirmed that the address is hers: the one of her account, or another one.
CREATE OR REPLACE FUNCTION owner_of_address(address text) RETURNS TABLE (id bigint, username text, name text)
LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
SELECT users.id, users.username, users.name FROM users
WHERE lower(users.email) = lower(address) AND users.confirmed_at IS NOT NULL
UNION ALL
SELECT users.id, users.username, users.name FROM user_emails JOIN users ON users.id = user_emails.user_id
WHERE lower(user_emails.email) = lower(address) AND user_emails.confirmed_at IS NOT NULL;
END;

-- Whether an invitation is good: whoever made it is there, and may make it.
CREATE OR REPLACE FUNCTION invitation_holds(i invitations, moment timestamptz) RETURNS boolean LANGUAGE sql STABLE
RETURN EXISTS (
    SELECT FROM users
    LEFT JOIN namespaces ON namespaces.id = (i).namespace_id
    LEFT JOIN projects ON projects.id = (i).project_id
    LEFT JOIN namespaces holders ON holders.id = projects.namespace_id
    WHERE users.id = (i).created_by_id AND users.state = 'active' AND (users.admin OR CASE
        WHEN projects.id IS NULL THEN namespace_role(namespaces, users.id, moment) >= 50
        ELSE project_role(projects, holders, users.id, moment) >= greatest((i).access_level, 40) END)
);

-- A custom role as it is shown wherever it occurs; null where there is none.
CREATE OR REPLACE FUNCTION member_role(role member_roles) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN (role).id IS NOT NULL THEN json_build_object(
    'id', (role).id,
    'group_id', NULL,
    'name', (role).name,
    'description', (role).description,
    'base_access_level', (role).base_access_level
) END;
