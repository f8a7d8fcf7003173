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
