-- name: note
-- Where it can be resolved, whether it is; where it is about a line, which one.
SELECT page.id, page.position, (
    left(json_build_object(
        'id', page.id,
        'type', page.type,
        'body', page.body,
        'attachment', NULL,
        'author', user_basic(author),
        'created_at', iso8601(page.created_at),
        'updated_at', iso8601(page.updated_at),
        'system', page.system,
        'noteable_id', m.id,
        'noteable_type', 'MergeRequest',
        'project_id', m.project_id
    )::text, -1)
    || CASE WHEN page.type = 'DiffNote' THEN ',"commit_id":null,"position":' || page.diff_position::text ELSE '' END
    || ',"resolvable":' || (page.type IS NOT NULL)::text
    || CASE WHEN page.type IS NOT NULL THEN ',' || trim('{}' FROM json_build_object(
        'resolved', page.resolved_at IS NOT NULL,
        'resolved_by', user_basic(resolver),
        'resolved_at', iso8601(page.resolved_at)
    )::text) ELSE '' END
    || ',' || substr(json_build_object(
        'confidential', page.internal,
        'internal', page.internal,
        'imported', false,
        'imported_from', 'none',
        'noteable_iid', m.iid,
        'commands_changes', json_build_object()
    )::text, 2)
)::json AS entity
FROM page
JOIN merge_requests m ON m.id = page.merge_request_id
LEFT JOIN users author ON author.id = page.author_id
LEFT JOIN users resolver ON resolver.id = page.resolved_by_id

-- name: discussion
SELECT discussion.id, discussion.position, json_build_object(
    'id', discussion.discussion_id,
    'individual_note', discussion.type IS NULL,
    'notes', (
        WITH page AS (
            SELECT notes.*, row_number() OVER (ORDER BY notes.created_at, notes.id) AS position FROM notes
            WHERE notes.merge_request_id = discussion.merge_request_id
                AND notes.discussion_id = discussion.discussion_id
        )
        SELECT json_agg(shown.entity ORDER BY shown.position) FROM (
            -- include: note
        ) shown
    )
) AS entity
FROM page discussion
