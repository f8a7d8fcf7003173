-- name: protected_branch
SELECT page.id, page.position, json_build_object(
    'id', page.id,
    'name', page.name,
    'push_access_levels', json_build_array(json_build_object(
        'id', page.id,
        'access_level', page.push_access_level,
        'access_level_description', protection_level_description(page.push_access_level),
        'deploy_key_id', NULL,
        'user_id', NULL,
        'group_id', NULL
    )),
    'merge_access_levels', json_build_array(json_build_object(
        'id', page.id,
        'access_level', page.merge_access_level,
        'access_level_description', protection_level_description(page.merge_access_level),
        'user_id', NULL,
        'group_id', NULL
    )),
    'allow_force_push', page.allow_force_push,
    'unprotect_access_levels', json_build_array(),
    'code_owner_approval_required', page.code_owner_approval_required,
    'inherited', false
) AS entity
FROM page

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
