-- name: job_basic
-- What builds and bridges have in common, of rows called page, pipeline, project and owner.
'id', page.id,
'status', page.status,
'stage', page.stage,
'name', page.name,
'ref', pipeline.ref,
'tag', pipeline.tag,
'coverage', page.coverage,
'allow_failure', page.allow_failure,
'created_at', iso8601(page.created_at),
'started_at', iso8601(page.started_at),
'finished_at', iso8601(page.finished_at),
'erased_at', iso8601(page.erased_at),
'duration', extract(epoch FROM coalesce(page.finished_at, %(now)s) - page.started_at),
'queued_duration', extract(epoch FROM coalesce(page.started_at, page.finished_at, %(now)s) - page.queued_at),
'user', user_public(owner),
'commit', (left(pipeline.commit::text, -1)
    || ',"web_url":' || to_json(web_url(project.full_path || '/-/commit/' || pipeline.sha)) || '}')::json,
'pipeline', pipeline_basic(pipeline, project.full_path),
'web_url', web_url(project.full_path || '/-/jobs/' || page.id),

-- name: job
SELECT page.id, page.position,
    -- two keys are there only when they have something to say
    CASE WHEN page.status <> 'failed' AND archive.size IS NULL THEN shown.entity ELSE (
        left(shown.entity::text, -1)
        || CASE WHEN page.status = 'failed' THEN
            ',"failure_reason":' || to_json(coalesce(page.failure_reason, 'unknown_failure')) ELSE '' END
        || CASE WHEN archive.size IS NOT NULL THEN
            ',"artifacts_file":' || json_build_object('filename', archive.filename, 'size', archive.size) ELSE '' END
        || '}')::json END AS entity
FROM page
JOIN pipelines pipeline ON pipeline.id = page.pipeline_id
JOIN projects project ON project.id = page.project_id
LEFT JOIN users owner ON owner.id = page.user_id
LEFT JOIN runners runner ON runner.id = page.runner_id
LEFT JOIN runner_managers manager ON manager.id = page.runner_manager_id
LEFT JOIN job_artifacts archive ON archive.job_id = page.id AND archive.file_type = 'archive'
    AND (archive.expire_at IS NULL OR archive.expire_at > %(now)s)
CROSS JOIN LATERAL (
    SELECT json_build_object(
        -- include: job_basic
        'project', json_build_object('ci_job_token_scope_enabled', project.ci_inbound_job_token_scope_enabled),
        'artifacts', coalesce((
            SELECT json_agg(json_build_object('file_type', kept.file_type, 'size', kept.size,
                'filename', kept.filename, 'file_format', kept.file_format) ORDER BY kept.place)
            FROM (
                SELECT job_artifacts.file_type, job_artifacts.size, job_artifacts.filename, job_artifacts.file_format,
                    job_artifacts.id AS place
                FROM job_artifacts WHERE job_artifacts.job_id = page.id
                UNION ALL
                SELECT 'trace', job_logs.size, 'job.log', 'raw', NULL
                FROM job_logs WHERE job_logs.job_id = page.id AND page.finished_at IS NOT NULL
            ) kept
        ), '[]'::json),
        'runner', runner_basic(runner, %(now)s),
        'runner_manager', runner_manager_basic(manager, %(now)s),
        'artifacts_expire_at', iso8601(page.artifacts_expire_at),
        'archived', coalesce(page.created_at < %(archived_before)s::timestamptz, false),
        'tag_list', page.tag_list,
        'source', pipeline.source
    ) AS entity
) shown

-- name: runner_job
-- With the whole project, since a runner has jobs of many.
SELECT page.id, page.position,
    CASE WHEN page.status <> 'failed' THEN shown.entity ELSE (
        left(shown.entity::text, -1)
        || ',"failure_reason":' || to_json(coalesce(page.failure_reason, 'unknown_failure')) || '}')::json END AS entity
FROM page
JOIN pipelines pipeline ON pipeline.id = page.pipeline_id
JOIN projects project ON project.id = page.project_id
JOIN namespaces namespace ON namespace.id = project.namespace_id
LEFT JOIN users owner ON owner.id = page.user_id
CROSS JOIN LATERAL (
    SELECT json_build_object(
        -- include: job_basic
        'project', config_project(project, namespace)
    ) AS entity
) shown

-- name: bridge
SELECT page.id, page.position, json_build_object(
    -- include: job_basic
    'project', json_build_object('ci_job_token_scope_enabled', project.ci_inbound_job_token_scope_enabled),
    'archived', coalesce(page.created_at < %(archived_before)s::timestamptz, false),
    'downstream_pipeline', pipeline_basic(downstream, downstream_project.full_path)
) AS entity
FROM page
JOIN pipelines pipeline ON pipeline.id = page.pipeline_id
JOIN projects project ON project.id = page.project_id
LEFT JOIN users owner ON owner.id = page.user_id
LEFT JOIN pipelines downstream ON downstream.source_job_id = page.id
LEFT JOIN projects downstream_project ON downstream_project.id = downstream.project_id
