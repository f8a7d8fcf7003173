-- name: version
SELECT page.id, page.position, json_build_object(
    'id', page.id,
    'head_commit_sha', page.head_sha,
    'base_commit_sha', page.base_sha,
    'start_commit_sha', page.start_sha,
    'created_at', iso8601(page.created_at),
    'merge_request_id', page.merge_request_id,
    'state', 'collected',
    'real_size', NULL,
    'patch_id_sha', NULL
) AS entity
FROM page
