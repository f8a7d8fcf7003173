-- name: member
SELECT page.id, page.position, json_build_object(
    'id', users.id,
    'username', users.username,
    'public_email', users.public_email,
    'name', users.name,
    'state', users.state,
    'locked', false,
    'avatar_url', NULL,
    'web_url', web_url(users.username),
    'access_level', page.access_level,
    'created_at', iso8601(page.created_at),
    'created_by', user_basic(creators),
    'expires_at', page.expires_at,
    'membership_state', 'active'
) AS entity
FROM page JOIN users ON users.id = page.user_id LEFT JOIN users creators ON creators.id = page.created_by_id
