-- name: variable
-- The value is for the handlers to decrypt.
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
-- Likewise; those of the instance are for every environment.
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
