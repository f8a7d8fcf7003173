-- name: member_role
SELECT page.id, page.position, member_role(member_roles) AS entity
FROM page JOIN member_roles ON member_roles.id = page.id
