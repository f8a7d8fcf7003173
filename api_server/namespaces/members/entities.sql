-- name: membership
SELECT page.id, page.position, json_build_object(
    'source_id', coalesce(project.id, namespace.id),
    'source_name', coalesce(project.name, namespace.name),
    'source_type', CASE WHEN project.id IS NULL THEN 'Namespace' ELSE 'Project' END,
    'access_level', page.access_level
) AS entity
FROM page
LEFT JOIN projects project ON project.id = page.project_id
LEFT JOIN namespaces namespace ON namespace.id = page.namespace_id

-- name: user
SELECT page.id, page.position, user_basic(users) AS entity FROM page JOIN users ON users.id = page.id

-- name: member
-- Who has no custom role has no such key, as in GitLab.
SELECT page.id, page.position, CASE
    WHEN roles.id IS NULL THEN member.entity
    ELSE json_joined(member.entity, json_build_object('member_role', member_role(roles)))
END AS entity
FROM page
JOIN LATERAL (
    -- The membership with the greatest role; of equal ones the nearest.
    SELECT members.* FROM members
    WHERE members.user_id = page.id
        AND (members.project_id = %(project_id)s::bigint OR members.namespace_id = ANY (%(namespace_ids)s::bigint[]))
        -- the one that a request has changed is its answer, though it may end today
        AND (members.id = %(changed)s::bigint OR counts(members, %(now)s))
    ORDER BY members.access_level DESC, members.project_id IS NULL,
        array_position(%(namespace_ids)s::bigint[], members.namespace_id) DESC
    LIMIT 1
) greatest_membership ON true
LEFT JOIN users creators ON creators.id = greatest_membership.created_by_id
LEFT JOIN member_roles roles ON roles.id = greatest_membership.member_role_id
CROSS JOIN LATERAL (SELECT json_build_object(
    'id', page.id,
    'username', page.username,
    'public_email', page.public_email,
    'name', page.name,
    'state', page.state,
    'locked', false,
    'avatar_url', NULL,
    'web_url', web_url(page.username),
    'access_level', greatest_membership.access_level,
    'created_at', iso8601(greatest_membership.created_at),
    'created_by', user_basic(creators),
    'expires_at', greatest_membership.expires_at,
    'membership_state', 'active'
) AS entity) member
