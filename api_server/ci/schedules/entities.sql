-- name: schedule
SELECT page.id, page.position, json_build_object(
    'id', s.id,
    'description', s.description,
    'ref', s.ref,
    'cron', s.cron,
    'cron_timezone', s.cron_timezone,
    'next_run_at', iso8601(s.next_run_at),
    'active', s.active,
    'created_at', iso8601(s.created_at),
    'updated_at', iso8601(s.updated_at),
    'owner', user_basic(owner)
) AS entity
FROM page
JOIN pipeline_schedules s ON s.id = page.id
LEFT JOIN users owner ON owner.id = s.owner_id

-- name: schedule_details
-- With its last pipeline, its variables and its inputs, whose values the handlers decrypt.
SELECT listed.id, listed.position, (
    left(listed.entity::text, -1)
    || ',"last_pipeline":' || coalesce((
        SELECT pipeline_basic(pipeline, project.full_path)::text
        FROM pipelines pipeline JOIN projects project ON project.id = pipeline.project_id
        WHERE pipeline.schedule_id = listed.id ORDER BY pipeline.id DESC LIMIT 1
    ), 'null')
    || ',"variables":' || (
        SELECT coalesce(json_agg(json_build_object(
            'variable_type', variables.variable_type,
            'key', variables.key,
            'value', encode(variables.value, 'base64'),
            'raw', false
        ) ORDER BY variables.id), '[]')::text
        FROM pipeline_schedule_variables variables WHERE variables.schedule_id = listed.id
    )
    || ',"inputs":' || (
        SELECT coalesce(json_agg(json_build_object(
            'name', inputs.name,
            'value', encode(inputs.value, 'base64')
        ) ORDER BY inputs.id), '[]')::text
        FROM pipeline_schedule_inputs inputs WHERE inputs.schedule_id = listed.id
    ) || '}')::json AS entity
FROM (
    -- include: schedule
) listed
