-- name: variable
-- The handlers decrypt the value. It is never cut: at its limits, a row is within its share of a page.
SELECT page.id, page.position, json_build_object(
    'variable_type', page.variable_type,
    'key', page.key,
    'value', CASE WHEN NOT page.hidden THEN encode(page.value, 'base64') END,
    'hidden', page.hidden,
    'protected', page.protected,
    'masked', page.masked,
    'raw', page.raw,
    'environment_scope', page.environment_scope,
    'description', page.description
) AS entity
FROM page

-- name: instance_variable
-- The handlers decrypt the value. There is no environment scope: the instance's variables are for every environment.
SELECT page.id, page.position, json_build_object(
    'variable_type', page.variable_type,
    'key', page.key,
    'value', encode(page.value, 'base64'),
    'protected', page.protected,
    'masked', page.masked,
    'raw', page.raw,
    'description', page.description
) AS entity
FROM page
