-- name: bot_keys
-- The key of a row named page that only tokens of bots have: the bot's role in its own project or group.
'access_level', (
    SELECT members.access_level FROM users JOIN members ON members.user_id = users.id
        AND (members.project_id = users.bot_project_id OR members.namespace_id = users.bot_namespace_id)
    WHERE users.id = page.user_id
)

-- name: token
SELECT page.id, page.position, json_build_object(
    -- include: token_keys
    ,
    -- include: bot_keys
) AS entity
FROM page

-- name: new_token
SELECT page.id, page.position, json_build_object(
    -- include: token_keys
    ,
    -- include: bot_keys
    , 'token', %(token)s::text
) AS entity
FROM page
