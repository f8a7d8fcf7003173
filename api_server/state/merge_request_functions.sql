-- Functions about merge requests. They are applied after functions.sql, whose first lines are valid here too.

-- Return the status checks of a project that apply to merge requests into the branch.
CREATE OR REPLACE FUNCTION applicable_status_checks(of_project_id bigint, branch text)
RETURNS SETOF external_status_checks LANGUAGE sql STABLE BEGIN ATOMIC
SELECT checks.* FROM external_status_checks checks
WHERE checks.project_id = of_project_id AND (
    NOT EXISTS (SELECT FROM external_status_check_branches scope WHERE scope.check_id = checks.id)
    OR EXISTS (
        SELECT FROM external_status_check_branches scope
        JOIN protected_branches ON protected_branches.id = scope.protected_branch_id
        WHERE scope.check_id = checks.id AND wildcard_matches(protected_branches.name, branch)));
END;

-- Return the status checks that apply to a merge request, each with the status of its newest response for the present
-- head, or `pending` if there is none.
CREATE OR REPLACE FUNCTION status_check_results(m merge_requests)
RETURNS TABLE (id bigint, name text, external_url text, status text) LANGUAGE sql STABLE BEGIN ATOMIC
SELECT checks.id, checks.name, checks.external_url, coalesce(newest.status, 'pending')
FROM applicable_status_checks((m).project_id, (m).target_branch) checks
LEFT JOIN LATERAL (
    SELECT answers.status FROM status_check_responses answers
    WHERE answers.check_id = checks.id AND answers.merge_request_id = (m).id AND answers.sha = (m).head_sha
    ORDER BY answers.id DESC LIMIT 1
) newest ON true;
END;

CREATE OR REPLACE FUNCTION status_checks_passed(m merge_requests) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$ BEGIN
RETURN NOT EXISTS (SELECT FROM status_check_results(m) results WHERE results.status <> 'passed');
END $$;

-- Functions of former versions.
DROP FUNCTION IF EXISTS status_check_applies(external_status_checks, text),
    status_check_result(bigint, merge_requests);

CREATE OR REPLACE FUNCTION is_draft(title text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN title ~* '^\s*(draft:|\[draft\]|\(draft\))';

-- Return the id of the pipeline of a merge request's head: the newest of its own pipelines, otherwise the newest of its
-- source branch, or null. Child pipelines do not count.
CREATE OR REPLACE FUNCTION head_pipeline_id(m merge_requests) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$ BEGIN
RETURN (
    SELECT pipelines.id FROM pipelines
    WHERE pipelines.project_id = (m).project_id AND pipelines.sha = (m).head_sha
        AND pipelines.source <> 'parent_pipeline'
        AND (pipelines.merge_request_id = (m).id OR pipelines.ref = (m).source_branch AND NOT pipelines.tag)
    ORDER BY pipelines.merge_request_id IS NULL, pipelines.id DESC LIMIT 1
);
END $$;

-- Return the detailed merge status that the head's pipeline causes if the project requires one that has succeeded.
CREATE OR REPLACE FUNCTION ci_merge_status(m merge_requests, p projects) RETURNS text
LANGUAGE plpgsql STABLE AS $$ BEGIN
RETURN coalesce((
    SELECT CASE
        WHEN pipelines.status = 'success' OR pipelines.status = 'skipped' AND (p).allow_merge_on_skipped_pipeline
            THEN 'mergeable'
        WHEN pipelines.status IN ('created', 'waiting_for_resource', 'preparing', 'waiting_for_callback', 'pending',
            'running') THEN 'ci_still_running'
    END
    FROM pipelines WHERE pipelines.id = head_pipeline_id(m)
), 'ci_must_pass');
END $$;

-- Return whether all threads of a merge request are resolved, or the project does not require it.
CREATE OR REPLACE FUNCTION discussions_resolved(m merge_requests, p projects) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$ BEGIN
RETURN NOT (p).only_allow_merge_if_all_discussions_are_resolved OR NOT EXISTS (
    SELECT FROM notes WHERE notes.merge_request_id = (m).id AND notes.type IS NOT NULL AND notes.resolved_at IS NULL);
END $$;

-- Return GitLab's name for the reason why a merge request cannot be merged, or `mergeable`.
CREATE OR REPLACE FUNCTION detailed_merge_status(m merge_requests, p projects) RETURNS text LANGUAGE sql STABLE
RETURN CASE
    WHEN (m).state <> 'opened' THEN 'not_open'
    WHEN (m).mergeability = 'no_commits' THEN 'commits_status'
    WHEN is_draft((m).title) THEN 'draft_status'
    WHEN NOT discussions_resolved(m, p) THEN 'discussions_not_resolved'
    WHEN (p).only_allow_merge_if_all_status_checks_passed AND NOT status_checks_passed(m)
        THEN 'status_checks_must_pass'
    WHEN (m).mergeability = 'conflict' THEN 'conflict'
    WHEN (m).mergeability = 'unchecked' THEN 'unchecked'
    WHEN (p).merge_method <> 'merge' AND NOT (m).fast_forward THEN 'need_rebase'
    WHEN (p).only_allow_merge_if_pipeline_succeeds THEN ci_merge_status(m, p)
    ELSE 'mergeable'
END;

CREATE OR REPLACE FUNCTION merge_status(mergeability text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE mergeability
    WHEN 'mergeable' THEN 'can_be_merged' WHEN 'unchecked' THEN 'unchecked' ELSE 'cannot_be_merged'
END;

-- Return whether merging squashes the commits of the source branch.
CREATE OR REPLACE FUNCTION squash_on_merge(m merge_requests, p projects) RETURNS boolean LANGUAGE sql IMMUTABLE
PARALLEL SAFE
RETURN CASE (p).squash_option WHEN 'always' THEN true WHEN 'never' THEN false ELSE (m).squash END;

-- Return the assignees or reviewers of a merge request in the order in which they were added, as the API shows them.
CREATE OR REPLACE FUNCTION people_of(m merge_requests, wanted text) RETURNS json
LANGUAGE plpgsql STABLE AS $$ BEGIN
RETURN (
    SELECT coalesce(json_agg(user_basic(users) ORDER BY people.id), '[]')
    FROM merge_request_people people JOIN users ON users.id = people.user_id
    WHERE people.merge_request_id = (m).id AND people.part = wanted
);
END $$;

-- Return a user as deliveries show it.
CREATE OR REPLACE FUNCTION delivered_user(u users) RETURNS json LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN json_build_object(
    'id', (u).id, 'name', (u).name, 'username', (u).username, 'avatar_url', '', 'email', '[REDACTED]'
);

-- Return the assignees or reviewers of a merge request as deliveries show them.
CREATE OR REPLACE FUNCTION delivered_people(m merge_requests, wanted text) RETURNS json
LANGUAGE plpgsql STABLE AS $$ BEGIN
RETURN (
    SELECT coalesce(json_agg(delivered_user(users) ORDER BY people.id), '[]')
    FROM merge_request_people people JOIN users ON users.id = people.user_id
    WHERE people.merge_request_id = (m).id AND people.part = wanted
);
END $$;

CREATE OR REPLACE FUNCTION people_ids(m merge_requests, wanted text) RETURNS json
LANGUAGE plpgsql STABLE AS $$ BEGIN
RETURN (
    SELECT coalesce(json_agg(people.user_id ORDER BY people.id), '[]') FROM merge_request_people people
    WHERE people.merge_request_id = (m).id AND people.part = wanted
);
END $$;
