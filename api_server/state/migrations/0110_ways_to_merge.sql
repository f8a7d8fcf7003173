-- How merge requests are merged: commits squashed, without a merge commit, later by itself, after a rebase.
-- depends: 0036_mergeability_of_two_heads 0020_pipelines_and_jobs

ALTER TABLE projects
    ADD COLUMN merge_method text NOT NULL DEFAULT 'merge' CHECK (merge_method IN ('merge', 'rebase_merge', 'ff')),
    ADD COLUMN squash_option text NOT NULL DEFAULT 'default_off'
        CHECK (squash_option IN ('never', 'always', 'default_on', 'default_off')),
    -- No other merge request gets the number of one that was deleted.
    ADD COLUMN greatest_deleted_merge_request_iid integer NOT NULL DEFAULT 0;

ALTER TABLE merge_requests
    ADD COLUMN squash boolean NOT NULL DEFAULT false,
    -- The one commit in the place of all: written down before git moves the target to it.
    ADD COLUMN squash_commit_sha text,
    -- Whether the source's head descends from the target's, as far as mergeability is known.
    ADD COLUMN fast_forward boolean NOT NULL DEFAULT false,
    -- What merge_user_id has said of a merge that is still to come (commit_message, squash_commit_message,
    -- should_remove_source_branch, sha); null where nobody has asked for one.
    ADD COLUMN auto_merge json,
    -- Why the last merge or rebase that ran by itself has come to nothing.
    ADD COLUMN merge_error text,
    ADD COLUMN rebasing_since timestamptz;
UPDATE merge_requests SET fast_forward = base_sha = coalesce(target_sha, start_sha)
WHERE base_sha = coalesce(target_sha, start_sha);

-- Which ones wait for a pipeline of that commit.
CREATE INDEX merge_requests_auto_merge ON merge_requests (project_id, head_sha) WHERE auto_merge IS NOT NULL;
