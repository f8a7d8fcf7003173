-- name: pipeline_in_list
SELECT page.id, page.position, pipeline_in_list(pipeline, project.full_path) AS entity
FROM page JOIN pipelines pipeline ON pipeline.id = page.id JOIN projects project ON project.id = page.project_id

-- name: pipeline_basic
SELECT page.id, page.position, pipeline_basic(pipeline, project.full_path) AS entity
FROM page JOIN pipelines pipeline ON pipeline.id = page.id JOIN projects project ON project.id = page.project_id

-- name: pipeline
SELECT page.id, page.position, json_build_object(
    'id', page.id,
    'iid', page.iid,
    'project_id', page.project_id,
    'sha', page.sha,
    'ref', page.ref,
    'status', page.status,
    'source', page.source,
    'created_at', iso8601(page.created_at),
    'updated_at', iso8601(page.updated_at),
    'web_url', web_url(project.full_path || '/-/pipelines/' || page.id),
    'name', page.name,
    'before_sha', page.before_sha,
    'tag', page.tag,
    'yaml_errors', page.yaml_errors,
    'user', user_basic(owner),
    'started_at', iso8601(page.started_at),
    'finished_at', iso8601(page.finished_at),
    'committed_at', iso8601(page.committed_at),
    -- the seconds in which at least one job was running
    'duration', (
        SELECT round(sum(extract(epoch FROM upper(span) - lower(span))))::bigint
        FROM (
            SELECT unnest(range_agg(tstzrange(jobs.started_at, coalesce(jobs.finished_at, %(now)s)))) AS span
            FROM jobs
            WHERE jobs.pipeline_id = page.id AND NOT jobs.retried AND jobs.kind = 'build'
                AND jobs.started_at <= coalesce(jobs.finished_at, %(now)s)
        ) spans
    ),
    'queued_duration', round(seconds_between(page.created_at, page.started_at))::bigint,
    'coverage', (
        SELECT round(avg(jobs.coverage)::numeric, 2)::text FROM jobs
        WHERE jobs.pipeline_id = page.id AND NOT jobs.retried AND jobs.coverage IS NOT NULL
    )
) AS entity
FROM page JOIN projects project ON project.id = page.project_id LEFT JOIN users owner ON owner.id = page.user_id
