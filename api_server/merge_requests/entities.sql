-- name: merge_request
SELECT page.id, page.position, json_build_object(
    'id', m.id,
    'iid', m.iid,
    'project_id', m.project_id,
    'title', m.title,
    'description',
        -- include: long_description
        ,
    'state', m.state,
    'imported', false,
    'imported_from', 'none',
    'created_at', iso8601(m.created_at),
    'updated_at', iso8601(m.updated_at),
    'merged_by', CASE WHEN m.state = 'merged' THEN user_basic(merger) END,
    'merge_user', user_basic(merger),
    'merged_at', iso8601(m.merged_at),
    'merge_after', NULL,
    'prepared_at', iso8601(m.created_at),
    'closed_by', user_basic(closer),
    'closed_at', iso8601(m.closed_at),
    'target_branch', m.target_branch,
    'source_branch', m.source_branch,
    'user_notes_count', (SELECT count(*) FROM notes WHERE notes.merge_request_id = m.id AND NOT notes.system),
    'upvotes', 0,
    'downvotes', 0,
    'author', user_basic(author),
    'assignees', assignees.list,
    'assignee', assignees.list -> 0,
    'reviewers', people_of(m, 'reviewer'),
    'source_project_id', m.project_id,
    'target_project_id', m.project_id,
    'labels', to_json(m.labels),
    'draft', is_draft(m.title),
    'work_in_progress', is_draft(m.title),
    'milestone', NULL,
    'merge_when_pipeline_succeeds', m.auto_merge IS NOT NULL,
    'merge_status', merge_status(m.mergeability),
    'detailed_merge_status', detailed_merge_status(m, project),
    'sha', m.head_sha,
    'merge_commit_sha', m.merge_commit_sha,
    'squash_commit_sha', CASE WHEN m.state = 'merged' THEN m.squash_commit_sha END,
    'discussion_locked', NULL,
    'should_remove_source_branch', m.auto_merge -> 'should_remove_source_branch',
    'force_remove_source_branch', m.remove_source_branch,
    'reference', '!' || m.iid,
    'references', json_build_object(
        'short', '!' || m.iid, 'relative', '!' || m.iid, 'full', project.full_path || '!' || m.iid
    ),
    'web_url', web_url(project.full_path || '/-/merge_requests/' || m.iid),
    'time_stats', json_build_object(
        'time_estimate', 0, 'total_time_spent', 0, 'human_time_estimate', NULL, 'human_total_time_spent', NULL
    ),
    'squash', m.squash,
    'squash_on_merge', squash_on_merge(m, project),
    'task_completion_status', json_build_object('count', 0, 'completed_count', 0),
    'has_conflicts', m.mergeability = 'conflict',
    'blocking_discussions_resolved', discussions_resolved(m, project)
) AS entity
FROM page
JOIN merge_requests m ON m.id = page.id
JOIN projects project ON project.id = m.project_id
LEFT JOIN users author ON author.id = m.author_id
LEFT JOIN users merger ON merger.id = m.merge_user_id
LEFT JOIN users closer ON closer.id = m.closed_by_id
CROSS JOIN LATERAL (SELECT people_of(m, 'assignee') AS list OFFSET 0) assignees

-- name: merge_request_details
-- With the viewer's rights, and with the head's pipeline if the viewer may see pipelines.
SELECT listed.id, listed.position, (
    left(listed.entity::text, -1) || ',' || substr(json_build_object(
        'latest_build_started_at', iso8601(head.started_at),
        'latest_build_finished_at', iso8601(head.finished_at),
        'first_deployed_to_production_at', NULL,
        'pipeline', pipeline_basic(head, project.full_path),
        'head_pipeline', (
            WITH page AS (SELECT head.*, 1::bigint AS position WHERE head.id IS NOT NULL)
            SELECT shown.entity FROM (
                -- include: pipeline
            ) shown
        ),
        'diff_refs', json_build_object('base_sha', m.base_sha, 'head_sha', m.head_sha, 'start_sha', m.start_sha),
        'merge_error', m.merge_error,
        'first_contribution', false,
        'user', json_build_object(
            'can_merge', NOT project.archived
                AND may_merge_into(project, m.target_branch, %(viewer_role)s::integer, %(viewer_is_admin)s)
        )
    )::text, 2))::json AS entity
FROM (
    -- include: merge_request
) listed
JOIN merge_requests m ON m.id = listed.id
JOIN projects project ON project.id = m.project_id
LEFT JOIN pipelines head ON %(shows_pipelines)s::boolean AND head.id = head_pipeline_id(m)

-- name: reviewer
SELECT page.id, page.position, json_build_object(
    'user', user_basic(users),
    'state', CASE WHEN EXISTS (
        SELECT FROM merge_request_approvals approvals
        WHERE approvals.merge_request_id = page.merge_request_id AND approvals.user_id = page.user_id
    ) THEN 'approved' ELSE 'unreviewed' END,
    'created_at', iso8601(page.created_at)
) AS entity
FROM page JOIN users ON users.id = page.user_id

-- name: participant
SELECT page.id, page.position, user_basic(users) AS entity FROM page JOIN users ON users.id = page.id

-- name: approvals
SELECT page.id, page.position, json_build_object(
    'id', m.id,
    'iid', m.iid,
    'project_id', m.project_id,
    'title', m.title,
    'description', m.description,
    'state', m.state,
    'created_at', iso8601(m.created_at),
    'updated_at', iso8601(m.updated_at),
    'merge_status', merge_status(m.mergeability),
    'approved', true,
    'approvals_required', 0,
    'approvals_left', 0,
    'require_password_to_approve', false,
    'approved_by', (
        SELECT coalesce(
            json_agg(
                json_build_object('user', user_basic(users), 'approved_at', iso8601(approvals.created_at))
                ORDER BY approvals.created_at, users.id
            ), '[]')
        FROM merge_request_approvals approvals JOIN users ON users.id = approvals.user_id
        WHERE approvals.merge_request_id = m.id
    ),
    'suggested_approvers', json_build_array(),
    'approvers', json_build_array(),
    'approver_groups', json_build_array(),
    'user_has_approved', EXISTS (
        SELECT FROM merge_request_approvals own
        WHERE own.merge_request_id = m.id AND own.user_id = %(viewer_id)s),
    'user_can_approve', m.state = 'opened' AND %(viewer_may_approve)s::boolean AND NOT EXISTS (
        SELECT FROM merge_request_approvals own
        WHERE own.merge_request_id = m.id AND own.user_id = %(viewer_id)s),
    'approval_rules_left', json_build_array(),
    'has_approval_rules', false,
    'merge_request_approvers_available', false,
    'multiple_approval_rules_available', false,
    'invalid_approvers_rules', json_build_array()
) AS entity
FROM page JOIN merge_requests m ON m.id = page.id

-- name: note
-- A note that can be resolved shows whether it is; a note about a line shows the line.
SELECT page.id, page.position, (
    left(json_build_object(
        'id', page.id,
        'type', page.type,
        'body',
            -- include: note_body
            ,
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
