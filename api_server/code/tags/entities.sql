-- name: protected_tag
SELECT page.id, page.position, json_build_object(
    'name', page.name,
    'create_access_levels', json_build_array(json_build_object(
        'id', page.id,
        'access_level', page.create_access_level,
        'access_level_description', protection_level_description(page.create_access_level),
        'deploy_key_id', NULL,
        'user_id', NULL,
        'group_id', NULL
    ))
) AS entity
FROM page
