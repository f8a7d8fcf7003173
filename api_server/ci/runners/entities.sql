-- name: runner
SELECT page.id, page.position, runner_basic(runners, %(now)s) AS entity
FROM page JOIN runners ON runners.id = page.id

-- name: runner_details
-- Built from the row of page, not from the table, so that an UPDATE shows its new values.
SELECT page.id, page.position, json_build_object(
    'id', page.id,
    'description', coalesce(page.description, ''),
    'ip_address', manager.ip_address,
    'active', page.active,
    'paused', NOT page.active,
    'is_shared', page.runner_type = 'instance_type',
    'runner_type', page.runner_type,
    'name', page.name,
    'online', coalesce(page.contacted_at > %(now)s::timestamptz - interval '2 hours', false),
    'created_at', iso8601(page.created_at),
    'status', contact_status(page.contacted_at, page.created_at, %(now)s),
    'tag_list', page.tag_list,
    'run_untagged', page.run_untagged,
    'locked', page.locked,
    'maximum_timeout', page.maximum_timeout,
    'access_level', page.access_level,
    'maintenance_note', page.maintenance_note,
    'version', manager.version,
    'revision', manager.revision,
    'platform', manager.platform,
    'architecture', manager.architecture,
    'contacted_at', iso8601(page.contacted_at),
    'created_by', user_basic(creator),
    'projects', coalesce((
        SELECT json_agg(config_project(projects, namespaces) ORDER BY projects.id)
        FROM runner_projects JOIN projects ON projects.id = runner_projects.project_id
        JOIN namespaces ON namespaces.id = projects.namespace_id
        WHERE runner_projects.runner_id = page.id
    ), '[]'),
    'groups', coalesce((
        SELECT json_agg(json_build_object(
            'id', namespaces.id, 'web_url', web_url('groups/' || namespaces.full_path), 'name', namespaces.name
        )) FROM namespaces WHERE namespaces.id = page.namespace_id
    ), '[]')
) AS entity
FROM page
LEFT JOIN users creator ON creator.id = page.creator_id
LEFT JOIN LATERAL (
    SELECT runner_managers.* FROM runner_managers WHERE runner_managers.runner_id = page.id
    ORDER BY runner_managers.contacted_at DESC NULLS LAST, runner_managers.id DESC LIMIT 1
) manager ON true

-- name: manager
SELECT page.id, page.position, runner_manager_basic(runner_managers, %(now)s) AS entity
FROM page JOIN runner_managers ON runner_managers.id = page.id
