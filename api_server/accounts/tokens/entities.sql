-- name: keys
-- Of a row called page.
'id', page.id,
'name', page.name,
'revoked', page.revoked,
'created_at', iso8601(page.created_at),
'description', page.description,
'scopes', page.scopes,
'user_id', page.user_id,
'last_used_at', iso8601(page.last_used_at),
'active', NOT (page.revoked OR has_expired(page.expires_at, %(now)s)),
'expires_at', page.expires_at

-- name: token
SELECT page.id, page.position, json_build_object(
    -- include: keys
) AS entity
FROM page

-- name: new_token
SELECT page.id, page.position, json_build_object(
    -- include: keys
    , 'token', %(token)s::text
) AS entity
FROM page
