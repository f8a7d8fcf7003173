-- name: email
SELECT page.id, page.position, json_build_object(
    'id', page.id,
    'email', page.email,
    'confirmed_at', iso8601(page.confirmed_at)
) AS entity
FROM page
