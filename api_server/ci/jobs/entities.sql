-- The JSON of jobs is concatenated as text: json_build_object() looks up the type of each key and value every time, and
-- this would take most of the time of a page. Strings that users write go through to_json(). concat() leaves out nulls.

-- name: pipelines_and_owners
-- The JSON that jobs of a page share, built once for the page. A commit's message is cut as in lists of commits.
owners AS MATERIALIZED (
    SELECT users.id, user_public(users)::text AS entity FROM users
    WHERE users.id = ANY (ARRAY(SELECT page.user_id FROM page))
),
pipelines_of_page AS MATERIALIZED (
    SELECT pipelines.id, to_json(pipelines.ref) AS ref, pipelines.tag::text, to_json(pipelines.source) AS source,
        concat('{"ci_job_token_scope_enabled":', project.ci_inbound_job_token_scope_enabled::text, '}') AS project,
        pipeline_basic(pipelines, project.full_path) AS entity,
        left(CASE WHEN octet_length(pipelines.commit::text) > 16384
            THEN json_cut(pipelines.commit, 16384, 100)::text ELSE pipelines.commit::text END, -1) || ',"web_url":'
            || to_json(web_url(project.full_path || '/-/commit/' || pipelines.sha)) || '}' AS commit,
        left(to_json(web_url(project.full_path || '/-/jobs/'))::text, -1) AS jobs_url
    FROM pipelines JOIN projects project ON project.id = pipelines.project_id
    WHERE pipelines.id = ANY (ARRAY(SELECT page.pipeline_id FROM page))
)

-- name: job_basic
-- The keys that builds and bridges have in common, of rows named page, pipeline and owner.
'"id":', page.id,
',"status":"', page.status,
'","stage":', to_json(page.stage),
',"name":', to_json(page.name),
',"ref":', pipeline.ref,
',"tag":', pipeline.tag,
',"coverage":', coalesce(to_json(page.coverage)::text, 'null'),
',"allow_failure":', page.allow_failure::text,
',"created_at":', json_moment(page.created_at),
',"started_at":', json_moment(page.started_at),
',"finished_at":', json_moment(page.finished_at),
',"erased_at":', json_moment(page.erased_at),
',"duration":', coalesce(seconds_between(page.started_at, coalesce(page.finished_at, %(now)s))::text, 'null'),
',"queued_duration":', coalesce(
    seconds_between(page.queued_at, coalesce(page.started_at, page.finished_at, %(now)s))::text, 'null'),
',"user":', coalesce(owner.entity, 'null'),
',"commit":', pipeline.commit,
',"pipeline":', pipeline.entity,
',"web_url":', pipeline.jobs_url, page.id, '"',

-- name: job
WITH runners_of_page AS MATERIALIZED (
    SELECT runners.id, runner_basic(runners, %(now)s)::text AS entity FROM runners
    WHERE runners.id = ANY (ARRAY(SELECT page.runner_id FROM page))
),
files AS MATERIALIZED (
    SELECT kept.job_id,
        json_agg(json_build_object('file_type', kept.file_type, 'size', kept.size,
            'filename', kept.filename, 'file_format', kept.file_format) ORDER BY kept.place) AS entities,
        max(kept.filename) FILTER (WHERE kept.is_archive) AS archive_filename,
        max(kept.size) FILTER (WHERE kept.is_archive) AS archive_size
    FROM (
        SELECT job_artifacts.job_id, job_artifacts.file_type, job_artifacts.size, job_artifacts.filename,
            job_artifacts.file_format, job_artifacts.id AS place,
            job_artifacts.file_type = 'archive'
                AND (job_artifacts.expire_at IS NULL OR job_artifacts.expire_at > %(now)s) AS is_archive
        FROM job_artifacts WHERE job_artifacts.job_id = ANY (ARRAY(SELECT page.id FROM page))
        UNION ALL
        SELECT job_logs.job_id, 'trace', job_logs.size, 'job.log', 'raw', NULL, false
        FROM job_logs WHERE job_logs.job_id = ANY (ARRAY(SELECT page.id FROM page WHERE page.finished_at IS NOT NULL))
    ) kept
    GROUP BY kept.job_id
),
-- include: pipelines_and_owners
SELECT page.id, page.position, concat('{',
    -- include: job_basic
    ',"project":', pipeline.project,
    ',"artifacts":', coalesce(files.entities::text, '[]'),
    ',"runner":', coalesce(runner.entity, 'null'),
    ',"runner_manager":', coalesce(runner_manager_basic(manager, %(now)s)::text, 'null'),
    ',"artifacts_expire_at":', json_moment(page.artifacts_expire_at),
    ',"archived":', coalesce(page.created_at < %(archived_before)s::timestamptz, false)::text,
    ',"tag_list":', to_json(page.tag_list),
    ',"source":', pipeline.source,
    -- the last two keys are left out if they have no value
    CASE WHEN page.status = 'failed' THEN
        concat(',"failure_reason":', to_json(coalesce(page.failure_reason, 'unknown_failure'))) END,
    CASE WHEN files.archive_size IS NOT NULL THEN concat(',"artifacts_file":',
        json_build_object('filename', files.archive_filename, 'size', files.archive_size)) END,
    '}') AS entity
FROM page
JOIN pipelines_of_page pipeline ON pipeline.id = page.pipeline_id
LEFT JOIN owners owner ON owner.id = page.user_id
LEFT JOIN runners_of_page runner ON runner.id = page.runner_id
LEFT JOIN runner_managers manager ON manager.id = page.runner_manager_id
LEFT JOIN files ON files.job_id = page.id

-- name: runner_job
-- With the whole project, because a runner has jobs of many projects.
WITH projects_of_page AS MATERIALIZED (
    SELECT projects.id, config_project(projects, namespace) AS entity
    FROM projects JOIN namespaces namespace ON namespace.id = projects.namespace_id
    WHERE projects.id = ANY (ARRAY(SELECT page.project_id FROM page))
),
-- include: pipelines_and_owners
SELECT page.id, page.position, concat('{',
    -- include: job_basic
    ',"project":', project.entity,
    CASE WHEN page.status = 'failed' THEN
        concat(',"failure_reason":', to_json(coalesce(page.failure_reason, 'unknown_failure'))) END,
    '}') AS entity
FROM page
JOIN pipelines_of_page pipeline ON pipeline.id = page.pipeline_id
JOIN projects_of_page project ON project.id = page.project_id
LEFT JOIN owners owner ON owner.id = page.user_id

-- name: bridge
WITH
-- include: pipelines_and_owners
SELECT page.id, page.position, concat('{',
    -- include: job_basic
    ',"project":', pipeline.project,
    ',"archived":', coalesce(page.created_at < %(archived_before)s::timestamptz, false)::text,
    ',"downstream_pipeline":', coalesce(pipeline_basic(downstream, downstream_project.full_path)::text, 'null'),
    '}') AS entity
FROM page
JOIN pipelines_of_page pipeline ON pipeline.id = page.pipeline_id
LEFT JOIN owners owner ON owner.id = page.user_id
LEFT JOIN (pipelines downstream JOIN projects downstream_project ON downstream_project.id = downstream.project_id)
    ON downstream.source_job_id = page.id
