-- name: agent
SELECT page.id, page.position, json_build_object(
    'id', page.id,
    'name', page.name,
    'config_project', config_project(project, namespace),
    'created_at', iso8601(page.created_at),
    'created_by_user_id', page.created_by_id,
    'is_receptive', false
) AS entity
FROM page
JOIN projects project ON project.id = page.project_id
JOIN namespaces namespace ON namespace.id = project.namespace_id
