-- name: public_keys
-- What everybody sees, of a row called page.
'id', page.id,
'username', page.username,
'public_email', page.public_email,
'name', page.name,
'state', page.state,
'locked', false,
'avatar_url', NULL,
'web_url', web_url(page.username),
'created_at', iso8601(page.created_at),
'bio', coalesce(page.bio, ''),
'location', coalesce(page.location, ''),
'linkedin', '', 'twitter', '', 'skype', '',
'website_url', coalesce(page.website_url, ''),
'organization', coalesce(page.organization, '')

-- name: user
SELECT page.id, page.position, json_build_object(
    -- include: public_keys
) AS entity
FROM page

-- name: user_with_private_fields
SELECT page.id, page.position, json_build_object(
    -- include: public_keys
    , 'confirmed_at', iso8601(page.confirmed_at),
    'last_activity_on', page.last_activity_on,
    'email', page.email,
    'projects_limit', page.projects_limit,
    'can_create_group', page.can_create_group,
    'can_create_project', page.projects_limit > 0,
    'two_factor_enabled', false,
    'external', page.external,
    'is_admin', page.admin,
    'namespace_id', (SELECT namespaces.id FROM namespaces WHERE namespaces.owner_id = page.id)
) AS entity
FROM page
