-- The JSON of list entries that only pages of the admin area show, not the API.

-- name: mirror
SELECT page.id, page.position, json_build_object(
    'id', page.id,
    'project_id', page.project_id,
    'project', projects.full_path,
    'url', page.shown_url,
    'enabled', page.enabled AND projects.repository_access_level <> 'disabled',
    'status', page.update_status,
    'last_error', page.last_error,
    'last_run_at', iso8601(page.last_update_started_at),
    'last_successful_update_at', iso8601(page.last_successful_update_at),
    'is_queued', queued.id IS NOT NULL,
    'next_try_at', iso8601(queued.scheduled_at)
) AS entity
FROM page
JOIN projects ON projects.id = page.project_id
LEFT JOIN procrastinate_jobs queued
    ON queued.queueing_lock = %(lock_prefix)s || page.id AND queued.status = 'todo'

-- name: delivery
SELECT page.id, page.position, json_build_object(
    'id', deliveries.id,
    'project_id', checks.project_id,
    'project', projects.full_path,
    'check_id', checks.id,
    'check', checks.name,
    'check_is_paused', checks.paused_at IS NOT NULL,
    'pause_reason', checks.pause_reason,
    'merge_request_iid', m.iid,
    'status', deliveries.status,
    'attempts', deliveries.attempts,
    'created_at', iso8601(deliveries.created_at),
    'next_attempt_at', iso8601(deliveries.next_attempt_at),
    'delivered_at', iso8601(deliveries.delivered_at),
    'latest', CASE WHEN latest.id IS NOT NULL THEN json_build_object(
        'status', latest.response_status,
        'error', latest.error,
        'duration', latest.duration,
        'created_at', iso8601(latest.created_at)) END
) AS entity
FROM page
JOIN status_check_deliveries deliveries ON deliveries.id = page.id
JOIN external_status_checks checks ON checks.id = deliveries.check_id
JOIN projects ON projects.id = checks.project_id
JOIN merge_requests m ON m.id = deliveries.merge_request_id
LEFT JOIN status_check_delivery_attempts latest
    ON latest.delivery_id = deliveries.id AND latest.number = deliveries.attempts

-- name: token
SELECT page.id, page.position, json_build_object(
    'id', page.id,
    'name', page.name,
    'scopes', page.scopes,
    'revoked', page.revoked,
    'expired', has_expired(page.expires_at, %(now)s),
    'created_at', iso8601(page.created_at),
    'last_used_at', iso8601(page.last_used_at),
    'expires_at', page.expires_at,
    'username', users.username,
    'owner', users.name,
    'bot', users.bot
) AS entity
FROM page JOIN users ON users.id = page.user_id
