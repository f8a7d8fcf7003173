-- name: group
SELECT page.id, page.position, json_build_object(
    'id', page.id,
    'web_url', web_url('groups/' || page.full_path),
    'name', page.name,
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

-- name: namespace
SELECT page.id, page.position, json_build_object(
    'id', page.id,
    'name', page.name,
    'path', page.path,
    'kind', page.kind,
    'full_path', page.full_path,
    'parent_id', page.parent_id,
    'avatar_url', NULL,
    'web_url', web_url(CASE page.kind WHEN 'group' THEN 'groups/' ELSE '' END || page.full_path)
) AS entity
FROM page
