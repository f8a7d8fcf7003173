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

-- name: group
SELECT page.id, page.position, json_build_object(
    -- include: basic_group_keys
    ,
    'path', page.path,
    'description', coalesce(page.description, ''),
    'visibility', page.visibility,
    'avatar_url', NULL,
    'full_name', page.full_name,
    'full_path', page.full_path,
    'created_at', iso8601(page.created_at),
    'parent_id', page.parent_id
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
