-- Merge requests between branches of one project, and who approves of them.
-- depends: 0001_accounts_and_projects

CREATE TABLE merge_requests (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    iid integer NOT NULL,
    author_id bigint REFERENCES users ON DELETE SET NULL,
    title text NOT NULL,
    description text NOT NULL DEFAULT '',
    labels text[] NOT NULL DEFAULT '{}',
    source_branch text NOT NULL,
    target_branch text NOT NULL,
    remove_source_branch boolean NOT NULL DEFAULT false,
    state text NOT NULL DEFAULT 'opened' CHECK (state IN ('opened', 'closed', 'merged')),
    -- What git said when a branch last moved: of the source's head (head_sha, last_commit), of the target's at that
    -- moment (start_sha), and of where they part (base_sha).
    head_sha text NOT NULL,
    start_sha text NOT NULL,
    base_sha text,
    last_commit json NOT NULL, -- {id, title, message, timestamp, author: {name, email}}
    -- Whether git could merge: not asked since the target moved, yes, conflicting files, nothing to merge.
    mergeability text NOT NULL CHECK (mergeability IN ('unchecked', 'mergeable', 'conflict', 'no_commits')),
    merge_commit_sha text,
    merge_user_id bigint REFERENCES users ON DELETE SET NULL,
    merged_at timestamptz,
    closed_by_id bigint REFERENCES users ON DELETE SET NULL,
    closed_at timestamptz,
    updated_by_id bigint REFERENCES users ON DELETE SET NULL,
    last_edited_by_id bigint REFERENCES users ON DELETE SET NULL, -- of the title or the description
    last_edited_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX merge_requests_iid ON merge_requests (project_id, iid);
CREATE INDEX merge_requests_of_project ON merge_requests (project_id, id); -- lists
-- One open merge request for a pair of branches; also which ones a push to a source branch concerns.
CREATE UNIQUE INDEX merge_requests_open_pair ON merge_requests (project_id, source_branch, target_branch)
    WHERE state = 'opened';
CREATE INDEX merge_requests_open_target ON merge_requests (project_id, target_branch)
    WHERE state = 'opened'; -- which ones a push to a target branch concerns
CREATE INDEX merge_requests_author ON merge_requests (author_id);

CREATE TABLE merge_request_approvals (
    merge_request_id bigint NOT NULL REFERENCES merge_requests ON DELETE CASCADE,
    user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (merge_request_id, user_id)
);
