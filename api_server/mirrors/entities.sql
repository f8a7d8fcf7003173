-- name: mirror
-- Concatenated as text, for the reason given in ci/jobs/entities.sql.
SELECT page.id, page.position, concat(
    '{"id":', page.id,
    ',"enabled":', (page.enabled AND projects.repository_access_level <> 'disabled')::text,
    ',"url":', to_json(page.shown_url),
    ',"update_status":', to_json(page.update_status),
    ',"last_update_at":', json_moment(page.last_update_at),
    ',"last_update_started_at":', json_moment(page.last_update_started_at),
    ',"last_successful_update_at":', json_moment(page.last_successful_update_at),
    ',"last_error":', coalesce(to_json(page.last_error)::text, 'null'),
    ',"only_protected_branches":', page.only_protected_branches::text,
    ',"keep_divergent_refs":', page.keep_divergent_refs::text,
    ',"auth_method":"', page.auth_method,
    '","host_keys":', (
        SELECT coalesce(json_agg(json_build_object('fingerprint_sha256', key -> 'fingerprint_sha256')), '[]')
        FROM jsonb_array_elements(page.host_keys) key
    ),
    ',"mirror_branch_regex":', coalesce(to_json(page.mirror_branch_regex)::text, 'null'),
    '}') AS entity
FROM page JOIN projects ON projects.id = page.project_id
