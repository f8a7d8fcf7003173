-- name: trigger
-- `token` has the seed from which the handlers derive the token.
SELECT page.id, page.position, json_build_object(
    'id', page.id,
    'token', encode(page.token_seed, 'base64'),
    'description', page.description,
    'created_at', iso8601(page.created_at),
    'updated_at', iso8601(page.updated_at),
    'last_used', iso8601(page.last_used_at),
    'owner', user_basic(owner)
) AS entity
FROM page LEFT JOIN users owner ON owner.id = page.owner_id
