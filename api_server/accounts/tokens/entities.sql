-- name: token
SELECT page.id, page.position, json_build_object(
    'id', page.id,
    'name', page.name,
    'revoked', page.revoked,
    'created_at', iso8601(page.created_at),
    'description', page.description,
    'scopes', page.scopes,
    'user_id', page.user_id,
    'last_used_at', iso8601(page.last_used_at),
    'active', NOT page.revoked AND (page.expires_at IS NULL OR page.expires_at > %(today)s::date),
    'expires_at', page.expires_at
) AS entity
FROM page

-- name: new_token
SELECT page.id, page.position, json_build_object(
    'id', page.id,
    'name', page.name,
    'revoked', page.revoked,
    'created_at', iso8601(page.created_at),
    'description', page.description,
    'scopes', page.scopes,
    'user_id', page.user_id,
    'last_used_at', iso8601(page.last_used_at),
    'active', NOT page.revoked AND (page.expires_at IS NULL OR page.expires_at > %(today)s::date),
    'expires_at', page.expires_at,
    'token', %(token)s::text
) AS entity
FROM page
