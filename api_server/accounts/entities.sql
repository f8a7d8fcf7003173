-- name: user_keys
-- The keys that everybody sees, of a row named page.
'id', page.id,
'username', page.username,
'public_email', page.public_email,
'name', page.name,
'state', page.state,
'locked', false,
'avatar_url', NULL,
'web_url', web_url(page.username),
'created_at', iso8601(page.created_at),
'bio', coalesce(page.bio, ''),
'location', coalesce(page.location, ''),
'skype', '', 'linkedin', '', 'twitter', '', 'discord', '',
'website_url', coalesce(page.website_url, ''),
'organization', coalesce(page.organization, ''),
'job_title', coalesce(page.job_title, ''),
'pronouns', NULL,
'bot', page.bot,
'work_information', CASE
    WHEN page.organization > '' AND page.job_title > '' THEN page.job_title || ' at ' || page.organization
    ELSE coalesce(nullif(page.organization, ''), nullif(page.job_title, '')) END,
'followers', 0, 'following', 0, 'is_followed', false,
'local_time', NULL

-- name: own_keys
-- The keys that only users themselves and administrators see.
'last_sign_in_at', iso8601(page.last_sign_in_at),
'confirmed_at', iso8601(page.confirmed_at),
'last_activity_on', page.last_activity_on,
'email', page.email,
'theme_id', 1, 'color_scheme_id', 1,
'projects_limit', page.projects_limit,
'current_sign_in_at', iso8601(page.current_sign_in_at),
'identities', json_build_array(),
'can_create_group', page.can_create_group,
'can_create_project', page.projects_limit > 0,
'two_factor_enabled', false,
'external', page.external,
'private_profile', false,
'commit_email', page.email,
'shared_runners_minutes_limit', NULL, 'extra_shared_runners_minutes_limit', NULL,
'scim_identities', json_build_array()

-- name: administrators_keys
-- The keys that only administrators see.
'is_admin', page.admin,
'note', NULL,
'namespace_id', (SELECT namespaces.id FROM namespaces WHERE namespaces.owner_id = page.id),
'created_by', (SELECT user_basic(makers) FROM users makers WHERE makers.id = page.created_by_id),
'email_reset_offered_at', NULL,
'using_license_seat', false,
'is_auditor', false,
'provisioned_by_group_id', NULL,
'enterprise_group_id', NULL,
'enterprise_group_associated_at', NULL

-- name: basic_user
SELECT page.id, page.position, user_basic(users) AS entity FROM page JOIN users ON users.id = page.id

-- name: user
SELECT page.id, page.position, json_build_object(
    -- include: user_keys
) AS entity
FROM page

-- name: own_user
SELECT page.id, page.position, json_joined(json_build_object(
    -- include: user_keys
), json_build_object(
    -- include: own_keys
)) AS entity
FROM page

-- name: user_for_administrators
SELECT page.id, page.position, json_joined(json_build_object(
    -- include: user_keys
), json_build_object(
    -- include: own_keys
    ,
    -- include: administrators_keys
)) AS entity
FROM page

-- name: user_in_detail
SELECT page.id, page.position, json_joined(json_build_object(
    -- include: user_keys
), json_build_object(
    -- include: own_keys
    ,
    -- include: administrators_keys
    , 'highest_role', (
        SELECT coalesce(max(members.access_level), 0) FROM members
        WHERE members.user_id = page.id AND counts(members, %(now)s)
    ),
    'current_sign_in_ip', page.current_sign_in_ip, 'last_sign_in_ip', page.last_sign_in_ip,
    'sign_in_count', page.sign_in_count
)) AS entity
FROM page
-- name: email
SELECT page.id, page.position, json_build_object(
    'id', page.id,
    'email', page.email,
    'confirmed_at', iso8601(page.confirmed_at)
) AS entity
FROM page
-- name: member_role
SELECT page.id, page.position, member_role(member_roles) AS entity
FROM page JOIN member_roles ON member_roles.id = page.id
-- name: token_keys
-- The keys of a row named page.
'id', page.id,
'name', page.name,
'revoked', page.revoked,
'created_at', iso8601(page.created_at),
'description',
    -- include: long_description
    ,
'scopes', page.scopes,
'user_id', page.user_id,
'last_used_at', iso8601(page.last_used_at),
'active', NOT (page.revoked OR has_expired(page.expires_at, %(now)s)),
'expires_at', page.expires_at

-- name: token
SELECT page.id, page.position, json_build_object(
    -- include: token_keys
) AS entity
FROM page

-- name: new_token
SELECT page.id, page.position, json_build_object(
    -- include: token_keys
    , 'token', %(token)s::text
) AS entity
FROM page
