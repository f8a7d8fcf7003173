-- name: merge_request
SELECT page.id, page.position, json_build_object(
    'id', m.id,
    'iid', m.iid,
    'project_id', m.project_id,
    'title', m.title,
    'description', m.description,
    'state', m.state,
    'created_at', iso8601(m.created_at),
    'updated_at', iso8601(m.updated_at),
    'merged_by', user_basic(merger),
    'merge_user', user_basic(merger),
    'merged_at', iso8601(m.merged_at),
    'closed_by', user_basic(closer),
    'closed_at', iso8601(m.closed_at),
    'target_branch', m.target_branch,
    'source_branch', m.source_branch,
    'user_notes_count', (SELECT count(*) FROM notes WHERE notes.merge_request_id = m.id AND NOT notes.system),
    'upvotes', 0,
    'downvotes', 0,
    'author', user_basic(author),
    'assignees', json_build_array(),
    'assignee', NULL,
    'reviewers', json_build_array(),
    'source_project_id', m.project_id,
    'target_project_id', m.project_id,
    'labels', to_json(m.labels),
    'draft', is_draft(m.title),
    'work_in_progress', is_draft(m.title),
    'milestone', NULL,
    'merge_when_pipeline_succeeds', false,
    'merge_status', merge_status(m.mergeability),
    'detailed_merge_status', detailed_merge_status(m, project),
    'merge_error', NULL,
    'sha', m.head_sha,
    'merge_commit_sha', m.merge_commit_sha,
    'squash_commit_sha', NULL,
    'discussion_locked', NULL,
    'should_remove_source_branch', NULL,
    'force_remove_source_branch', m.remove_source_branch,
    'reference', '!' || m.iid,
    'references', json_build_object(
        'short', '!' || m.iid, 'relative', '!' || m.iid, 'full', project.full_path || '!' || m.iid
    ),
    'web_url', web_url(project.full_path || '/-/merge_requests/' || m.iid),
    'time_stats', json_build_object(
        'time_estimate', 0, 'total_time_spent', 0, 'human_time_estimate', NULL, 'human_total_time_spent', NULL
    ),
    'squash', false,
    'task_completion_status', json_build_object('count', 0, 'completed_count', 0),
    'has_conflicts', m.mergeability = 'conflict',
    'blocking_discussions_resolved', discussions_resolved(m, project),
    'diff_refs', json_build_object('base_sha', m.base_sha, 'head_sha', m.head_sha, 'start_sha', m.start_sha)
) AS entity
FROM page
JOIN merge_requests m ON m.id = page.id
JOIN projects project ON project.id = m.project_id
LEFT JOIN users author ON author.id = m.author_id
LEFT JOIN users merger ON merger.id = m.merge_user_id
LEFT JOIN users closer ON closer.id = m.closed_by_id

-- name: merge_request_details
-- With the pipeline of its head, where the viewer may see pipelines.
SELECT listed.id, listed.position, (
    left(listed.entity::text, -1) || ',"head_pipeline":' || coalesce(CASE WHEN %(shows_pipelines)s::boolean THEN (
        WITH page AS (
            SELECT pipelines.*, 1::bigint AS position FROM pipelines
            WHERE pipelines.id = (SELECT head_pipeline_id(m) FROM merge_requests m WHERE m.id = listed.id)
        )
        SELECT shown.entity::text FROM (
            -- include: pipeline
        ) shown
    ) END, 'null') || '}')::json AS entity
FROM (
    -- include: merge_request
) listed

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
    'user_has_approved', EXISTS (
        SELECT FROM merge_request_approvals own
        WHERE own.merge_request_id = m.id AND own.user_id = %(viewer_id)s),
    'user_can_approve', m.state = 'opened' AND %(viewer_may_approve)s::boolean AND NOT EXISTS (
        SELECT FROM merge_request_approvals own
        WHERE own.merge_request_id = m.id AND own.user_id = %(viewer_id)s),
    'approved_by', (
        SELECT coalesce(
            json_agg(
                json_build_object('user', user_basic(users), 'approved_at', iso8601(approvals.created_at))
                ORDER BY approvals.created_at, users.id
            ), '[]')
        FROM merge_request_approvals approvals JOIN users ON users.id = approvals.user_id
        WHERE approvals.merge_request_id = m.id
    )
) AS entity
FROM page JOIN merge_requests m ON m.id = page.id
