-- name: token
SELECT page.id, page.position, json_build_object(
    -- include: keys
    , 'access_level', bot.access_level
) AS entity
FROM page
CROSS JOIN LATERAL (SELECT max(members.access_level) AS access_level FROM members WHERE members.user_id = page.user_id) bot

-- name: new_token
SELECT page.id, page.position, json_build_object(
    -- include: keys
    , 'access_level', bot.access_level, 'token', %(token)s::text
) AS entity
FROM page
CROSS JOIN LATERAL (SELECT max(members.access_level) AS access_level FROM members WHERE members.user_id = page.user_id) bot
