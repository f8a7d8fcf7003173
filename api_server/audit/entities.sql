-- name: event
SELECT page.id, page.position, CASE page.entity_type WHEN 'Service::Audit::InstanceScope' THEN json_build_object(
    'id', page.id,
    'author_id', page.author_id,
    'author_name', page.author_name,
    'entity_id', page.entity_id,
    'entity_type', page.entity_type,
    'entity_path', page.entity_path,
    'event_type', page.event_type,
    'target_id', page.target_id,
    'target_type', page.target_type,
    'target_details', page.target_details,
    'ip_address', page.ip_address,
    'details', shown.details,
    'created_at', iso8601(page.created_at)
) ELSE json_build_object(
    'id', page.id,
    'author_id', page.author_id,
    'entity_id', page.entity_id,
    'entity_type', page.entity_type,
    'details', shown.details,
    'created_at', iso8601(page.created_at)
) END AS entity
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
