-- Functions that build the JSON of entities. Those in SQL are single expressions or return rows: PostgreSQL inlines
-- them into the statement that calls them. Those that return a value and read tables are in PL/pgSQL, which keeps their
-- plan for the session; in SQL they would be planned anew in each statement that calls them.
-- The files of functions are applied again whenever one of them has changed, so every statement can be repeated. No
-- function reads the clock: the application passes its own time as `moment`.

-- Former versions, which did not take the time as an argument.
DROP FUNCTION IF EXISTS contact_status(timestamptz, timestamptz), runner_basic(runners),
    runner_manager_basic(runner_managers);

-- Return the time in ISO 8601, in UTC and with milliseconds.
CREATE OR REPLACE FUNCTION iso8601(moment timestamptz) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"');

-- Return the same as JSON text (in quotes, or `null`), for entities that are concatenated as text.
CREATE OR REPLACE FUNCTION json_moment(moment timestamptz) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN coalesce(to_char(moment AT TIME ZONE 'UTC', '\"YYYY-MM-DD"T"HH24:MI:SS.MS"Z"\"'), 'null');

-- Return the seconds from the one to the other, or null if one of them is null. They are never negative, although
-- the clock may have been set back, or another machine's be slow.
CREATE OR REPLACE FUNCTION seconds_between(began timestamptz, ended timestamptz) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN ended < began THEN 0 ELSE extract(epoch FROM ended - began) END;

-- Return the public part of a URL: without user, password, query and fragment.
CREATE OR REPLACE FUNCTION public_url(url text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN regexp_replace(split_part(split_part(url, '?', 1), '#', 1), '^(\w+://)[^/]*@', '\1');

-- Return the address of a page of this service. The application sets forgelet.base_url on each connection.
CREATE OR REPLACE FUNCTION web_url(path text) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN current_setting('forgelet.base_url') || '/' || path;

-- Return the SSH address of a repository, which GitLab shows even if SSH is off.
CREATE OR REPLACE FUNCTION ssh_url(path text) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN 'git@' || substring(current_setting('forgelet.base_url') FROM '^[^:]+://(\[[^]]*\]|[^:/]*)') || ':' || path || '.git';

-- Return one object with the keys of both, in their order. json_build_object() takes at most a hundred arguments, which
-- are fifty keys.
CREATE OR REPLACE FUNCTION json_joined(first json, second json) RETURNS json LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (left(first::text, -1) || ', ' || substr(second::text, 2))::json;

-- Return the value with at most `characters` of each string and `items` of each array; values of up to `characters` bytes
-- stay as they are.
CREATE OR REPLACE FUNCTION json_cut(value json, characters integer, items integer) RETURNS json
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$ BEGIN
IF octet_length(value::text) <= characters THEN
    RETURN value;
END IF;
CASE json_typeof(value)
    WHEN 'string' THEN RETURN to_json(left(value #>> '{}', characters));
    WHEN 'array' THEN RETURN (
        SELECT json_agg(json_cut(item, characters, items) ORDER BY place)
        FROM json_array_elements(value) WITH ORDINALITY listed (item, place) WHERE place <= items);
    WHEN 'object' THEN RETURN (
        SELECT json_object_agg(key, json_cut(member, characters, items)) FROM json_each(value) listed (key, member));
    ELSE RETURN value;
END CASE;
END $$;

-- Return the entity (JSON) in at most `bytes`: strings are cut to 10,000 characters and arrays to 100 items, then to a
-- quarter and to half of that in each step until it fits. Much longer entities start with a later step, to save time.
CREATE OR REPLACE FUNCTION shortened(entity text, bytes bigint) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE step integer := least(greatest(log(2, octet_length(entity) / bytes::numeric) - 1, 0), 2)::integer;
BEGIN
WHILE octet_length(entity) > bytes AND step < 5 LOOP
    entity := json_cut(entity::json, 10000 >> (2 * step), 100 >> step)::text;
    step := step + 1;
END LOOP;
RETURN entity;
END $$;

-- Return a user as most entities show it, or null.
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

-- Return GitLab's description of an access level of a protected branch.
CREATE OR REPLACE FUNCTION protection_level_description(level smallint) RETURNS text LANGUAGE sql IMMUTABLE
PARALLEL SAFE
RETURN CASE level
    WHEN 0 THEN 'No one' WHEN 30 THEN 'Developers + Maintainers' WHEN 40 THEN 'Maintainers' ELSE 'Instance admins' END;

-- Return a project as deliveries show it.
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

-- Return a time as deliveries show it.
CREATE OR REPLACE FUNCTION delivered_time(moment timestamptz) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"');

-- Return a user as jobs show it, or null.
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

-- Return a pipeline as other entities show it, or null; `project_path` is the full path of its project.
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

-- Return a pipeline with its name, as lists of pipelines and commits show it.
CREATE OR REPLACE FUNCTION pipeline_in_list(p pipelines, project_path text) RETURNS json
LANGUAGE sql STABLE PARALLEL SAFE
RETURN (left(pipeline_basic(p, project_path)::text, -1) || ', "name" : ' || coalesce(to_json((p).name)::text, 'null')
    || '}')::json;

-- Return the status of a runner or a runner manager: `online` if it has contacted the service within two hours, `stale`
-- after a week without contact, otherwise `offline`, or `never_contacted`.
CREATE OR REPLACE FUNCTION contact_status(contacted_at timestamptz, created_at timestamptz, moment timestamptz)
RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE
    WHEN contacted_at > moment - interval '2 hours' THEN 'online'
    WHEN coalesce(contacted_at, created_at) < moment - interval '7 days' THEN 'stale'
    WHEN contacted_at IS NULL THEN 'never_contacted'
    ELSE 'offline' END;

-- Return a runner as jobs and lists show it, or null.
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

-- Return a runner manager (a machine that uses a runner's token) as jobs and lists show it, or null.
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

-- Return a project as agents and runners show it. A runner may have many projects.
CREATE OR REPLACE FUNCTION config_project(p projects, n namespaces) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE
RETURN json_build_object(
    'id', (p).id,
    'description', left((p).description, 2000),
    'name', (p).name,
    'name_with_namespace', (n).full_name || ' / ' || (p).name,
    'path', (p).path,
    'path_with_namespace', (p).full_path,
    'created_at', iso8601((p).created_at)
);

-- Return a custom role, or null.
CREATE OR REPLACE FUNCTION member_role(role member_roles) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN (role).id IS NOT NULL THEN json_build_object(
    'id', (role).id,
    'group_id', NULL,
    'name', (role).name,
    'description', (role).description,
    'base_access_level', (role).base_access_level
) END;
