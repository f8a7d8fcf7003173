-- depends: 0030_merge_requests
-- Which merge request a commit has merged.
CREATE INDEX merge_requests_merge_commit ON merge_requests (project_id, merge_commit_sha)
    WHERE merge_commit_sha IS NOT NULL;
