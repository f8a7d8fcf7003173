-- Functions about merge requests, applied after functions.sql and under the same rules.

-- What the head's pipeline says where the project asks for one that has succeeded.
CREATE OR REPLACE FUNCTION ci_merge_status(m merge_requests, p projects) RETURNS text LANGUAGE sql STABLE
RETURN coalesce((
    SELECT CASE
        WHEN pipelines.status = 'success' OR pipelines.status = 'skipped' AND (p).allow_merge_on_skipped_pipeline
            THEN 'mergeable'
        WHEN pipelines.status IN ('created', 'waiting_for_resource', 'preparing', 'waiting_for_callback', 'pending',
            'running') THEN 'ci_still_running'
    END
    FROM pipelines WHERE pipelines.id = head_pipeline_id(m)
), 'ci_must_pass');

-- Why a merge request cannot be merged, in GitLab's names, or `mergeable`.
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

-- Whether the source's commits become one when it is merged.
CREATE OR REPLACE FUNCTION squash_on_merge(m merge_requests, p projects) RETURNS boolean LANGUAGE sql IMMUTABLE
PARALLEL SAFE
RETURN CASE (p).squash_option WHEN 'always' THEN true WHEN 'never' THEN false ELSE (m).squash END;

-- Whether somebody with that role in the project may put commits into the branch, by merging or by pushing; see
-- code/branches/protection.py.
CREATE OR REPLACE FUNCTION may_merge_into(p projects, branch text, role integer, is_admin boolean) RETURNS boolean
LANGUAGE sql STABLE
RETURN (
    SELECT CASE WHEN count(*) = 0 THEN role >= 30
        ELSE bool_or(levels.level <> 0 AND (is_admin OR levels.level <> 60 AND role >= levels.level)) END
    FROM protected_branches rules CROSS JOIN LATERAL (
        VALUES (rules.push_access_level), (rules.merge_access_level)) levels (level)
    WHERE rules.project_id = (p).id AND wildcard_matches(rules.name, branch)
);

-- Whether somebody with that role in the project sees it and may read its files; see `Project.reads_repository`.
CREATE OR REPLACE FUNCTION reads_repository(p projects, role integer, is_insider boolean) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN is_visible((p).visibility, role >= 10, is_insider)
    AND ((p).repository_access_level = 'enabled' OR (p).repository_access_level = 'private' AND role >= 10)
    AND NOT ((p).visibility = 'private' AND role < 20);

-- The assignees or reviewers of a merge request in the order in which they were named, as it shows them.
CREATE OR REPLACE FUNCTION people_of(m merge_requests, wanted text) RETURNS json LANGUAGE sql STABLE
RETURN (
    SELECT coalesce(json_agg(user_basic(users) ORDER BY people.id), '[]')
    FROM merge_request_people people JOIN users ON users.id = people.user_id
    WHERE people.merge_request_id = (m).id AND people.part = wanted
);

-- A user as deliveries show her.
CREATE OR REPLACE FUNCTION delivered_user(u users) RETURNS json LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN json_build_object(
    'id', (u).id, 'name', (u).name, 'username', (u).username, 'avatar_url', '', 'email', '[REDACTED]'
);

-- The same people as deliveries show them.
CREATE OR REPLACE FUNCTION delivered_people(m merge_requests, wanted text) RETURNS json LANGUAGE sql STABLE
RETURN (
    SELECT coalesce(json_agg(delivered_user(users) ORDER BY people.id), '[]')
    FROM merge_request_people people JOIN users ON users.id = people.user_id
    WHERE people.merge_request_id = (m).id AND people.part = wanted
);

CREATE OR REPLACE FUNCTION people_ids(m merge_requests, wanted text) RETURNS json LANGUAGE sql STABLE
RETURN (
    SELECT coalesce(json_agg(people.user_id ORDER BY people.id), '[]') FROM merge_request_people people
    WHERE people.merge_request_id = (m).id AND people.part = wanted
);
