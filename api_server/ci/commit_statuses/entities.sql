-- name: commit_status
SELECT page.id, page.position, json_build_object(
    'id', page.id,
    'sha', pipeline.sha,
    'ref', pipeline.ref,
    'status', page.status,
    'name', page.name,
    'target_url', page.target_url,
    'description', page.description,
    'created_at', iso8601(page.created_at),
    'started_at', iso8601(page.started_at),
    'finished_at', iso8601(page.finished_at),
    'allow_failure', page.allow_failure,
    'coverage', page.coverage,
    'pipeline_id', page.pipeline_id,
    'author', user_basic(owner)
) AS entity
FROM page JOIN pipelines pipeline ON pipeline.id = page.pipeline_id LEFT JOIN users owner ON owner.id = page.user_id
