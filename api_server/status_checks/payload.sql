-- The body of a delivery, in one row for each merge request and each check of its project. The keys and their order are
-- those of docs/service-api.md (Events); `action` and `oldrev` are added, as GitLab has them.
-- name: payload
SELECT checks.id AS check_id, m.id AS merge_request_id, json_build_object(
    'object_kind', 'merge_request',
    'event_type', 'merge_request',
    'user', json_build_object(
        'id', coalesce(actor.id, -1),
        'name', coalesce(actor.name, '(System)'),
        'username', coalesce(actor.username, 'system'),
        'avatar_url', '',
        'email', '[REDACTED]'
    ),
    'project', delivered_project(project, namespace),
    'object_attributes', json_build_object(
        'id', m.id,
        'iid', m.iid,
        'author_id', m.author_id,
        'assignee_id', people.assignees -> 0 -> 'id',
        'assignee_ids', people.assignee_ids,
        'reviewer_ids', people.reviewer_ids,
        'title', m.title,
        'description', m.description,
        'source_branch', m.source_branch,
        'target_branch', m.target_branch,
        'source_project_id', m.project_id,
        'target_project_id', m.project_id,
        'state', m.state,
        'state_id', CASE m.state WHEN 'opened' THEN 1 WHEN 'closed' THEN 2 ELSE 3 END,
        'merge_status', merge_status(m.mergeability),
        'detailed_merge_status', detailed_merge_status(m, project),
        'merge_commit_sha', m.merge_commit_sha,
        'merge_error', m.merge_error,
        'merge_params', json_build_object(
            'force_remove_source_branch', CASE WHEN m.remove_source_branch THEN '1' ELSE '0' END,
            'auto_merge_strategy', CASE WHEN m.auto_merge IS NOT NULL THEN 'merge_when_checks_pass' END,
            'should_remove_source_branch', m.auto_merge -> 'should_remove_source_branch',
            'sha', m.auto_merge -> 'sha'
        ),
        'merge_user_id', m.merge_user_id,
        'merge_when_pipeline_succeeds', m.auto_merge IS NOT NULL,
        'head_pipeline_id', head_pipeline_id(m),
        'milestone_id', NULL,
        'updated_by_id', m.updated_by_id,
        'last_edited_by_id', m.last_edited_by_id,
        'last_edited_at', delivered_time(m.last_edited_at),
        'created_at', delivered_time(m.created_at),
        'updated_at', delivered_time(m.updated_at),
        'time_estimate', 0,
        'total_time_spent', 0,
        'time_change', 0,
        'human_time_estimate', NULL,
        'human_total_time_spent', NULL,
        'human_time_change', NULL,
        'work_in_progress', is_draft(m.title),
        'draft', is_draft(m.title),
        'blocking_discussions_resolved', discussions_resolved(m, project),
        'first_contribution', false,
        'url', web_url(project.full_path || '/-/merge_requests/' || m.iid),
        'source', delivered_project(project, namespace),
        'target', delivered_project(project, namespace),
        'last_commit', json_build_object(
            'id', m.last_commit -> 'id',
            'message', m.last_commit -> 'message',
            'title', m.last_commit -> 'title',
            'timestamp', m.last_commit -> 'timestamp',
            'url', web_url(project.full_path || '/-/commit/' || m.head_sha),
            'author', m.last_commit -> 'author'
        ),
        'labels', labels.list,
        'action', %(action)s::text,
        'oldrev', %(old_head)s::text
    ),
    'labels', labels.list,
    'assignees', people.assignees,
    'reviewers', people.reviewers,
    'changes', %(changes)s::json,
    'repository', json_build_object(
        'name', project.name,
        'url', web_url(project.full_path || '.git'),
        'description', coalesce(project.description, ''),
        'homepage', web_url(project.full_path)
    ),
    'external_approval_rule', json_build_object(
        'id', checks.id, 'name', checks.name, 'external_url', checks.external_url
    )
)::text AS body
FROM merge_requests m
JOIN projects project ON project.id = m.project_id
JOIN namespaces namespace ON namespace.id = project.namespace_id
JOIN external_status_checks checks ON checks.project_id = m.project_id
LEFT JOIN users actor ON actor.id = coalesce(%(user_id)s::bigint, m.author_id)
CROSS JOIN LATERAL (
    SELECT coalesce(json_agg(json_build_object('title', label)), '[]') AS list FROM unnest(m.labels) AS label
) AS labels
CROSS JOIN LATERAL (
    SELECT delivered_people(m, 'assignee') AS assignees, delivered_people(m, 'reviewer') AS reviewers,
        people_ids(m, 'assignee') AS assignee_ids, people_ids(m, 'reviewer') AS reviewer_ids
    OFFSET 0
) AS people
