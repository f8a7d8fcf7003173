-- name: event
-- Concatenated as text, for the reason given in ci/jobs/entities.sql.
SELECT page.id, page.position, concat(
    '{"id":', page.id,
    ',"author_id":', page.author_id,
    CASE WHEN page.entity_type = 'Service::Audit::InstanceScope' THEN
        concat(',"author_name":', to_json(page.author_name)) END,
    ',"entity_id":', page.entity_id,
    ',"entity_type":', to_json(page.entity_type),
    CASE WHEN page.entity_type = 'Service::Audit::InstanceScope' THEN concat(
        ',"entity_path":', to_json(page.entity_path),
        ',"event_type":', to_json(page.event_type),
        ',"target_id":', coalesce(page.target_id::text, 'null'),
        ',"target_type":', to_json(page.target_type),
        ',"target_details":', to_json(page.target_details),
        ',"ip_address":', coalesce(to_json(page.ip_address)::text, 'null')) END,
    ',"details":', shown.details,
    ',"created_at":', json_moment(page.created_at),
    '}') AS entity
FROM page
LEFT JOIN users author ON author.id = page.author_id
CROSS JOIN LATERAL (SELECT page.details || jsonb_build_object(
    'event_name', page.event_type,
    'author_name', page.author_name,
    'author_email', author.email,
    'author_class', CASE WHEN page.author_id > 0 THEN 'User' ELSE 'UnauthenticatedAuthor' END,
    'target_id', page.target_id,
    'target_type', page.target_type,
    'target_details', page.target_details,
    'ip_address', page.ip_address,
    'entity_path', page.entity_path
) AS details) shown
