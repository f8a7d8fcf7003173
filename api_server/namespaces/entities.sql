-- name: basic_group_keys
-- The keys of a row named page.
'id', page.id,
'web_url', web_url('groups/' || page.full_path),
'name', page.name

-- name: basic_group
SELECT page.id, page.position, json_build_object(
    -- include: basic_group_keys
) AS entity
FROM page

-- name: group_keys
-- The keys of a row named page; those of features that do not exist here have GitLab's values.
-- include: basic_group_keys
,
'path', page.path,
'description', coalesce(
    -- include: description
    , ''),
'visibility', page.visibility,
'share_with_group_lock', false,
'require_two_factor_authentication', false,
'two_factor_grace_period', 0,
'project_creation_level', page.project_creation_level,
'auto_devops_enabled', NULL,
'subgroup_creation_level', 'owner',
'emails_disabled', false,
'emails_enabled', true,
'mentions_disabled', NULL,
'lfs_enabled', true,
'math_rendering_limits_enabled', false,
'lock_math_rendering_limits_enabled', false,
'default_branch', NULL,
'default_branch_protection', 2,
'default_branch_protection_defaults', '{"allowed_to_push": [{"access_level": 40}], "allow_force_push": false,
    "allowed_to_merge": [{"access_level": 40}], "developer_can_initial_push": false}'::json,
'avatar_url', NULL,
'request_access_enabled', false,
'full_name', page.full_name,
'full_path', page.full_path,
'created_at', iso8601(page.created_at),
'parent_id', page.parent_id,
'organization_id', 1,
'shared_runners_setting', 'enabled',
'ldap_cn', NULL,
'ldap_access', NULL,
'marked_for_deletion_on', NULL,
'wiki_access_level', 'disabled'

-- name: group
SELECT page.id, page.position, json_build_object(
    -- include: group_keys
) AS entity
FROM page

-- name: group_in_detail
SELECT page.id, page.position, json_build_object(
    -- include: group_keys
    , 'shared_with_groups', json_build_array(),
    'runners_token', NULL,
    'prevent_sharing_groups_outside_hierarchy', false,
    'shared_runners_minutes_limit', NULL,
    'extra_shared_runners_minutes_limit', NULL,
    'prevent_forking_outside_group', NULL,
    'membership_lock', false
) AS entity
FROM page

-- name: namespace_keys
-- The keys of a row named namespace.
'id', namespace.id,
'name', namespace.name,
'path', namespace.path,
'kind', namespace.kind,
'full_path', namespace.full_path,
'parent_id', namespace.parent_id,
'avatar_url', NULL,
'web_url', web_url(CASE namespace.kind WHEN 'group' THEN 'groups/' ELSE '' END || namespace.full_path)

-- name: namespace
SELECT namespace.id, namespace.position, json_build_object(
    -- include: namespace_keys
) AS entity
FROM page namespace

-- name: basic_project_keys
-- The keys of rows named page and namespace.
'id', page.id,
'description',
    -- include: description
    ,
'name', page.name,
'name_with_namespace', namespace.full_name || ' / ' || page.name,
'path', page.path,
'path_with_namespace', page.full_path,
'created_at', iso8601(page.created_at),
'default_branch', CASE WHEN NOT page.empty_repo THEN page.default_branch END,
'tag_list', json_build_array(),
'topics', json_build_array(),
'ssh_url_to_repo', ssh_url(page.full_path),
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
    -- include: basic_project_keys
) AS entity
FROM page JOIN namespaces namespace ON namespace.id = page.namespace_id

-- name: project_data
-- Keys whose values follow from other columns, although GitLab has settings for some of them.
'_links', json_build_object(
    'self', web_url('api/v4/projects/' || page.id),
    'merge_requests', web_url('api/v4/projects/' || page.id || '/merge_requests'),
    'repo_branches', web_url('api/v4/projects/' || page.id || '/repository/branches'),
    'members', web_url('api/v4/projects/' || page.id || '/members'),
    'cluster_agents', web_url('api/v4/projects/' || page.id || '/cluster_agents')
),
'merge_requests_enabled', page.repository_access_level <> 'disabled',
'can_create_merge_request_in', page.repository_access_level <> 'disabled' AND NOT page.archived,
'merge_requests_access_level', page.repository_access_level,
'releases_access_level', page.repository_access_level,
'description_html', coalesce('<p dir="auto">' || replace(replace(replace(replace(nullif(
    -- include: description
    , ''), '&', '&amp;'), '<', '&lt;'), '>', '&gt;'), '"', '&quot;') || '</p>', '')

-- name: project_defaults
-- The keys of features that do not exist here, with GitLab's values and in its order; text, since it never changes.
'"marked_for_deletion_at": null, "marked_for_deletion_on": null, "packages_enabled": false,
    "resolve_outdated_diff_discussions": false, "repository_object_format": "sha1",
    "issues_enabled": false, "wiki_enabled": false, "snippets_enabled": false, "container_registry_enabled": false,
    "service_desk_enabled": false, "service_desk_address": null,
    "issues_access_level": "disabled", "forking_access_level": "disabled", "wiki_access_level": "disabled",
    "snippets_access_level": "disabled", "pages_access_level": "disabled", "analytics_access_level": "disabled",
    "container_registry_access_level": "disabled", "security_and_compliance_access_level": "disabled",
    "environments_access_level": "disabled", "feature_flags_access_level": "disabled",
    "infrastructure_access_level": "disabled", "monitor_access_level": "disabled",
    "model_experiments_access_level": "disabled", "model_registry_access_level": "disabled",
    "package_registry_access_level": "disabled", "emails_disabled": false, "emails_enabled": true,
    "shared_runners_enabled": true, "lfs_enabled": true,
    "import_url": null, "import_type": null, "import_status": "none", "import_error": null,
    "open_issues_count": 0, "ci_delete_pipelines_in_seconds": null,
    "ci_forward_deployment_enabled": false, "ci_forward_deployment_rollback_allowed": true,
    "ci_separated_caches": true, "ci_allow_fork_pipelines_to_run_in_parent_project": false,
    "keep_latest_artifact": true, "runners_token": null,
    "runner_token_expiration_interval": null, "group_runners_enabled": true,
    "auto_devops_enabled": false,
    "auto_devops_deploy_strategy": "continuous", "ci_push_repository_for_job_token_allowed": false,
    "shared_with_groups": [], "request_access_enabled": false,
    "printing_merge_request_link_enabled": false, "enforce_auth_checks_on_uploads": false,
    "suggestion_commit_message": null, "merge_commit_template": null, "squash_commit_template": null,
    "issue_branch_template": null, "warn_about_potentially_unwanted_characters": false,
    "autoclose_referenced_issues": false, "approvals_before_merge": 0, "mirror": false,
    "external_authorization_classification_label": null, "requirements_enabled": false,
    "requirements_access_level": "disabled", "security_and_compliance_enabled": false,
    "compliance_frameworks": [], "issues_template": null, "merge_requests_template": null,
    "ci_restrict_pipeline_cancellation_role": "developer", "merge_pipelines_enabled": false,
    "merge_trains_enabled": false, "merge_trains_skip_train_allowed": false,
    "allow_pipeline_trigger_approve_deployment": false, "prevent_merge_without_jira_issue": false'

-- name: project
-- Joined as text, because json_build_object() takes at most a hundred arguments, which are fifty keys.
SELECT page.id, page.position, (left(json_build_object(
    -- include: basic_project_keys
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
    'restrict_user_defined_variables', page.ci_pipeline_variables_minimum_override_role <> 'developer',
    'ci_pipeline_variables_minimum_override_role', page.ci_pipeline_variables_minimum_override_role,
    'only_allow_merge_if_pipeline_succeeds', page.only_allow_merge_if_pipeline_succeeds,
    'allow_merge_on_skipped_pipeline', page.allow_merge_on_skipped_pipeline,
    'only_allow_merge_if_all_status_checks_passed', page.only_allow_merge_if_all_status_checks_passed,
    'merge_method', page.merge_method,
    'squash_option', page.squash_option,
    'only_allow_merge_if_all_discussions_are_resolved', page.only_allow_merge_if_all_discussions_are_resolved,
    'build_timeout', page.build_timeout,
    'remove_source_branch_after_merge', page.remove_source_branch_after_merge,
    'ci_default_git_depth', page.ci_default_git_depth,
    'build_git_strategy', page.build_git_strategy,
    'auto_cancel_pending_pipelines', page.auto_cancel_pending_pipelines,
    'ci_id_token_sub_claim_components', page.ci_id_token_sub_claim_components,
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
)::text, -1) || coalesce(', "owner": ' || user_basic(owner)::text, '') || ', ' || substr(left(json_build_object(
    -- include: project_data
)::text, -1), 2) || ', ' ||
    -- include: project_defaults
    || '}')::json AS entity
FROM page
JOIN namespaces namespace ON namespace.id = page.namespace_id
LEFT JOIN users owner ON owner.id = namespace.owner_id

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
-- As in GitLab, members without a custom role do not have the key `member_role`.
SELECT page.id, page.position, CASE
    WHEN roles.id IS NULL THEN member.entity
    ELSE json_joined(member.entity, json_build_object('member_role', member_role(roles)))
END AS entity
FROM page
JOIN LATERAL (
    -- The membership with the greatest role; of several, the nearest one.
    SELECT members.* FROM members
    WHERE members.user_id = page.id
        AND (members.project_id = %(project_id)s::bigint OR members.namespace_id = ANY (%(namespace_ids)s::bigint[]))
        -- a membership that the request has changed is shown even if the change lets it expire
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
