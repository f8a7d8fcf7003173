-- name: basic_keys
-- Of rows called page and namespace.
'id', page.id,
'description', page.description,
'name', page.name,
'name_with_namespace', namespace.full_name || ' / ' || page.name,
'path', page.path,
'path_with_namespace', page.full_path,
'created_at', iso8601(page.created_at),
'default_branch', CASE WHEN NOT page.empty_repo THEN page.default_branch END,
'tag_list', json_build_array(),
'topics', json_build_array(),
'ssh_url_to_repo', NULL,
'http_url_to_repo', web_url(page.full_path || '.git'),
'web_url', web_url(page.full_path),
'readme_url', NULL,
'forks_count', 0,
'avatar_url', NULL,
'star_count', 0,
'last_activity_at', iso8601(page.last_activity_at),
'visibility', page.visibility,
'namespace', json_build_object(
    -- include: namespace_keys
)

-- name: basic_project
SELECT page.id, page.position, json_build_object(
    -- include: basic_keys
) AS entity
FROM page JOIN namespaces namespace ON namespace.id = page.namespace_id

-- name: project
SELECT page.id, page.position, json_build_object(
    -- include: basic_keys
    ,
    'empty_repo', page.empty_repo,
    'archived', page.archived,
    'creator_id', page.creator_id,
    'updated_at', iso8601(page.updated_at),
    'repository_access_level', page.repository_access_level,
    'builds_access_level', page.builds_access_level,
    'jobs_enabled', page.builds_access_level <> 'disabled',
    'public_jobs', page.public_jobs,
    'ci_config_path', coalesce(page.ci_config_path, ''),
    'ci_job_token_scope_enabled', page.ci_inbound_job_token_scope_enabled,
    'ci_inbound_job_token_scope_enabled', page.ci_inbound_job_token_scope_enabled,
    'only_allow_merge_if_pipeline_succeeds', page.only_allow_merge_if_pipeline_succeeds,
    'allow_merge_on_skipped_pipeline', page.allow_merge_on_skipped_pipeline,
    'only_allow_merge_if_all_status_checks_passed', page.only_allow_merge_if_all_status_checks_passed,
    'merge_method', page.merge_method,
    'squash_option', page.squash_option,
    'only_allow_merge_if_all_discussions_are_resolved', page.only_allow_merge_if_all_discussions_are_resolved,
    'permissions', json_build_object(
        'project_access', (
            SELECT json_build_object('access_level', members.access_level, 'notification_level', 3)
            FROM members WHERE members.project_id = page.id AND members.user_id = %(viewer_id)s
                AND counts(members, %(now)s)
        ),
        'group_access', (
            SELECT json_build_object('access_level', max(members.access_level), 'notification_level', 3)
            FROM members WHERE members.namespace_id = ANY (namespace.lineage) AND members.user_id = %(viewer_id)s
                AND counts(members, %(now)s)
            HAVING count(*) > 0
        )
    )
) AS entity
FROM page JOIN namespaces namespace ON namespace.id = page.namespace_id
