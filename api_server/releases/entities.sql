-- name: link_values
json_build_object(
    'id', links.id,
    'name', links.name,
    'url', links.url,
    'filepath', links.filepath,
    'link_type', links.link_type
)
-- name: link
SELECT links.id, links.position,
    -- include: link_values
    AS entity
FROM page links
-- name: release
SELECT page.id, page.position, json_build_object(
    'tag', page.tag,
    'name', page.name,
    'description',
        -- include: long_description
        ,
    'created_at', iso8601(page.created_at),
    'released_at', iso8601(page.released_at),
    'upcoming_release', page.released_at > %(now)s,
    'author', user_basic(author),
    'sha', page.sha,
    'links', coalesce((
        SELECT json_agg(
            -- include: link_values
            ORDER BY links.id DESC)
        FROM release_links links WHERE links.release_id = page.id
    ), '[]')
) AS entity
FROM page LEFT JOIN users author ON author.id = page.author_id
