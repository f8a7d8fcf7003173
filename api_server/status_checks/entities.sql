-- name: service
SELECT page.id, page.position, json_build_object(
    'id', checks.id,
    'name', checks.name,
    'project_id', checks.project_id,
    'external_url', CASE WHEN %(shows_secrets)s::boolean
        THEN checks.external_url ELSE public_url(checks.external_url) END,
    'hmac', checks.shared_secret IS NOT NULL,
    'protected_branches', (
        SELECT coalesce(
            json_agg(
                json_build_object(
                    'id', branches.id,
                    'project_id', branches.project_id,
                    'name', branches.name,
                    'created_at', iso8601(branches.created_at),
                    'updated_at', iso8601(branches.updated_at),
                    'code_owner_approval_required', branches.code_owner_approval_required
                ) ORDER BY branches.id
            ), '[]')
        FROM external_status_check_branches scope
        JOIN protected_branches branches ON branches.id = scope.protected_branch_id
        WHERE scope.check_id = checks.id
    ),
    'applies_to_all_branches', NOT EXISTS (
        SELECT FROM external_status_check_branches scope WHERE scope.check_id = checks.id
    ),
    'paused', checks.paused_at IS NOT NULL,
    'paused_at', iso8601(checks.paused_at),
    'pause_reason', checks.pause_reason,
    'failing_since', iso8601(checks.failing_since)
) AS entity
FROM page JOIN external_status_checks checks ON checks.id = page.id

-- name: check
SELECT page.id, page.position, json_build_object(
    'id', page.id,
    'name', page.name,
    'external_url', CASE WHEN %(shows_url)s::boolean THEN public_url(page.external_url) ELSE '' END,
    'status', page.status
) AS entity
FROM page

-- name: response
SELECT page.id, page.position, json_build_object(
    'id', answers.id,
    'status', answers.status,
    'sha', answers.sha,
    'description',
        -- include: long_description
        ,
    'target_url', answers.target_url,
    'user', user_basic(users),
    'retried_at', iso8601(answers.retried_at),
    'created_at', iso8601(answers.created_at)
) AS entity
FROM page JOIN status_check_responses answers ON answers.id = page.id
LEFT JOIN users ON users.id = answers.user_id

-- name: delivery
SELECT page.id, page.position, json_build_object(
    'id', deliveries.id,
    'webhook_id', deliveries.webhook_id,
    'external_status_check_id', deliveries.check_id,
    'merge_request_iid', m.iid,
    'action', deliveries.action,
    'status', deliveries.status,
    'attempts_count', deliveries.attempts,
    'response_status', latest.response_status,
    'error', latest.error,
    'created_at', iso8601(deliveries.created_at),
    'next_attempt_at', iso8601(deliveries.next_attempt_at),
    'delivered_at', iso8601(deliveries.delivered_at)
) AS entity
FROM page
JOIN status_check_deliveries deliveries ON deliveries.id = page.id
JOIN merge_requests m ON m.id = deliveries.merge_request_id
LEFT JOIN status_check_delivery_attempts latest
    ON latest.delivery_id = deliveries.id AND latest.number = deliveries.attempts

-- name: delivery_with_attempts
SELECT page.id, page.position, json_build_object(
    'id', deliveries.id,
    'webhook_id', deliveries.webhook_id,
    'external_status_check_id', deliveries.check_id,
    'merge_request_iid', m.iid,
    'action', deliveries.action,
    'status', deliveries.status,
    'attempts_count', deliveries.attempts,
    'created_at', iso8601(deliveries.created_at),
    'next_attempt_at', iso8601(deliveries.next_attempt_at),
    'delivered_at', iso8601(deliveries.delivered_at),
    'payload', deliveries.body::json,
    'attempts', (
        SELECT coalesce(
            json_agg(
                json_build_object(
                    'number', attempts.number,
                    'created_at', iso8601(attempts.created_at),
                    'duration', attempts.duration,
                    'request_headers', attempts.request_headers,
                    'response_status', attempts.response_status,
                    'response_headers', attempts.response_headers,
                    'response_body', attempts.response_body,
                    'error', attempts.error
                ) ORDER BY attempts.number
            ), '[]')
        FROM status_check_delivery_attempts attempts WHERE attempts.delivery_id = deliveries.id
    )
) AS entity
FROM page
JOIN status_check_deliveries deliveries ON deliveries.id = page.id
JOIN merge_requests m ON m.id = deliveries.merge_request_id
