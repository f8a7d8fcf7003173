-- name: mirror
SELECT page.id, page.position, json_build_object(
    'id', page.id,
    'enabled', page.enabled AND projects.repository_access_level <> 'disabled',
    'url', page.shown_url,
    'update_status', page.update_status,
    'last_update_at', iso8601(page.last_update_at),
    'last_update_started_at', iso8601(page.last_update_started_at),
    'last_successful_update_at', iso8601(page.last_successful_update_at),
    'last_error', page.last_error,
    'only_protected_branches', page.only_protected_branches,
    'keep_divergent_refs', page.keep_divergent_refs,
    'auth_method', page.auth_method,
    'host_keys', (
        SELECT coalesce(json_agg(json_build_object('fingerprint_sha256', key -> 'fingerprint_sha256')), '[]')
        FROM jsonb_array_elements(page.host_keys) key
    ),
    'mirror_branch_regex', page.mirror_branch_regex
) AS entity
FROM page JOIN projects ON projects.id = page.project_id
