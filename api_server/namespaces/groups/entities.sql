-- name: basic_group_keys
-- Of a row called page.
'id', page.id,
'web_url', web_url('groups/' || page.full_path),
'name', page.name

-- name: basic_group
SELECT page.id, page.position, json_build_object(
    -- include: basic_group_keys
) AS entity
FROM page

-- name: group_keys
-- Of a row called page; GitLab's values for what is not here.
-- include: basic_group_keys
,
'path', page.path,
'description', coalesce(page.description, ''),
'visibility', page.visibility,
'share_with_group_lock', false,
'require_two_factor_authentication', false,
'two_factor_grace_period', 0,
'project_creation_level', page.project_creation_level,
'auto_devops_enabled', NULL,
'subgroup_creation_level', 'owner',
'emails_disabled', false,
'emails_enabled', true,
'mentions_disabled', NULL,
'lfs_enabled', true,
'math_rendering_limits_enabled', false,
'lock_math_rendering_limits_enabled', false,
'default_branch', NULL,
'default_branch_protection', 2,
'default_branch_protection_defaults', '{"allowed_to_push": [{"access_level": 40}], "allow_force_push": false,
    "allowed_to_merge": [{"access_level": 40}], "developer_can_initial_push": false}'::json,
'avatar_url', NULL,
'request_access_enabled', false,
'full_name', page.full_name,
'full_path', page.full_path,
'created_at', iso8601(page.created_at),
'parent_id', page.parent_id,
'organization_id', 1,
'shared_runners_setting', 'enabled',
'ldap_cn', NULL,
'ldap_access', NULL,
'marked_for_deletion_on', NULL,
'wiki_access_level', 'disabled'

-- name: group
SELECT page.id, page.position, json_build_object(
    -- include: group_keys
) AS entity
FROM page

-- name: group_in_detail
SELECT page.id, page.position, json_build_object(
    -- include: group_keys
    , 'shared_with_groups', json_build_array(),
    'runners_token', NULL,
    'prevent_sharing_groups_outside_hierarchy', false,
    'shared_runners_minutes_limit', NULL,
    'extra_shared_runners_minutes_limit', NULL,
    'prevent_forking_outside_group', NULL,
    'membership_lock', false
) AS entity
FROM page

-- name: namespace_keys
-- Of a row called namespace.
'id', namespace.id,
'name', namespace.name,
'path', namespace.path,
'kind', namespace.kind,
'full_path', namespace.full_path,
'parent_id', namespace.parent_id,
'avatar_url', NULL,
'web_url', web_url(CASE namespace.kind WHEN 'group' THEN 'groups/' ELSE '' END || namespace.full_path)

-- name: namespace
SELECT namespace.id, namespace.position, json_build_object(
    -- include: namespace_keys
) AS entity
FROM page namespace
