-- name: invitation
SELECT page.id, page.position, json_build_object(
    'id', page.id,
    'invite_email', page.email,
    'created_at', iso8601(page.created_at),
    'access_level', page.access_level,
    'expires_at', iso8601(page.expires_at::timestamptz),
    'user_name', (SELECT owner.name FROM owner_of_address(page.email) owner),
    'created_by_name', (SELECT users.name FROM users WHERE users.id = page.created_by_id)
) AS entity
FROM page

-- name: changed
SELECT page.id, page.position, json_build_object(
    'expires_at', iso8601(page.expires_at::timestamptz),
    'access_level', page.access_level
) AS entity
FROM page
