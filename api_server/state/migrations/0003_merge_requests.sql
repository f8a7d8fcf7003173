-- Merge requests between branches of one project, what people say of them, and external status checks.

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
    updated_at timestamptz NOT NULL DEFAULT now(),
    -- Which head of the target git was asked about, so that an answer is not kept when the target has moved meanwhile.
    -- Null until it is first known to have moved.
    target_sha text,
    squash boolean NOT NULL DEFAULT false,
    -- The one commit in the place of all: written down before git moves the target to it.
    squash_commit_sha text,
    -- Whether the source's head descends from the target's, as far as mergeability is known.
    fast_forward boolean NOT NULL DEFAULT false,
    -- What merge_user_id has said of a merge that is still to come (commit_message, squash_commit_message,
    -- should_remove_source_branch, sha); null where nobody has asked for one.
    auto_merge json,
    -- Why the last merge or rebase that ran by itself has come to nothing.
    merge_error text,
    rebasing_since timestamptz
);
CREATE UNIQUE INDEX merge_requests_iid ON merge_requests (project_id, iid);
CREATE INDEX merge_requests_of_project ON merge_requests (project_id, id); -- lists
-- One open merge request for a pair of branches; also which ones a push to a source branch concerns.
CREATE UNIQUE INDEX merge_requests_open_pair ON merge_requests (project_id, source_branch, target_branch)
    WHERE state = 'opened';
CREATE INDEX merge_requests_open_target ON merge_requests (project_id, target_branch)
    WHERE state = 'opened'; -- which ones a push to a target branch concerns
-- Which ones wait for a pipeline of that commit.
CREATE INDEX merge_requests_auto_merge ON merge_requests (project_id, head_sha) WHERE auto_merge IS NOT NULL;
-- Which merge request a commit has merged.
CREATE INDEX merge_requests_merge_commit ON merge_requests (project_id, merge_commit_sha)
    WHERE merge_commit_sha IS NOT NULL;
-- Lists, in every order that they can be asked for, and of somebody's own.
CREATE INDEX merge_requests_updated ON merge_requests (project_id, updated_at, id);
CREATE INDEX merge_requests_updated_of_all ON merge_requests (updated_at, id);
CREATE INDEX merge_requests_source_branch ON merge_requests (project_id, source_branch, id);
CREATE INDEX merge_requests_author ON merge_requests (author_id, id);

CREATE TABLE merge_request_approvals (
    merge_request_id bigint NOT NULL REFERENCES merge_requests ON DELETE CASCADE,
    user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (merge_request_id, user_id)
);

-- Who is to look after a merge request, and who is to look at it.
CREATE TABLE merge_request_people (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, -- in the order in which they were named
    merge_request_id bigint NOT NULL REFERENCES merge_requests ON DELETE CASCADE,
    part text NOT NULL CHECK (part IN ('assignee', 'reviewer')),
    user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE,
    created_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX merge_request_people_once ON merge_request_people (merge_request_id, part, user_id);
CREATE INDEX merge_request_people_user ON merge_request_people (user_id, part, merge_request_id); -- lists

-- The commits that a merge request was about, each time that its head or its target branch became another one.
CREATE TABLE merge_request_versions (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    merge_request_id bigint NOT NULL REFERENCES merge_requests ON DELETE CASCADE,
    head_sha text NOT NULL,
    start_sha text NOT NULL,
    base_sha text,
    created_at timestamptz NOT NULL
);
CREATE INDEX merge_request_versions_of ON merge_request_versions (merge_request_id, id);

-- What people and programs say of merge requests.
CREATE TABLE notes (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    merge_request_id bigint NOT NULL REFERENCES merge_requests ON DELETE CASCADE,
    discussion_id text NOT NULL, -- 40 hexadecimal digits, the same for all notes of a thread
    -- Of what can be resolved: in a thread, or at a line of a file. NULL for notes by themselves, and of the system.
    type text CHECK (type IN ('DiscussionNote', 'DiffNote')),
    author_id bigint REFERENCES users ON DELETE SET NULL,
    body text NOT NULL,
    system boolean NOT NULL, -- written by the service about what the author did
    internal boolean NOT NULL, -- for Reporters and above; the same in a whole thread
    diff_position json CHECK ((diff_position IS NOT NULL) = (type = 'DiffNote' AND type IS NOT NULL)),
    resolved_at timestamptz,
    resolved_by_id bigint REFERENCES users ON DELETE SET NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
CREATE INDEX notes_of_merge_request ON notes (merge_request_id, created_at, id);
CREATE INDEX notes_of_discussion ON notes (merge_request_id, discussion_id);
CREATE INDEX notes_by_users ON notes (merge_request_id) WHERE NOT system; -- how many
CREATE INDEX notes_to_resolve ON notes (merge_request_id) WHERE type IS NOT NULL AND resolved_at IS NULL;
CREATE INDEX notes_author ON notes (author_id);
CREATE INDEX notes_resolved_by ON notes (resolved_by_id) WHERE resolved_by_id IS NOT NULL;

-- Services that are asked about merge requests.
CREATE TABLE external_status_checks (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    name text NOT NULL,
    external_url text NOT NULL,
    shared_secret bytea, -- encrypted
    failing_since timestamptz, -- the first failed attempt since the last that succeeded
    paused_at timestamptz, -- nothing is sent until it is resumed
    pause_reason text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    problem text, -- why its last attempt failed
    CHECK ((paused_at IS NULL) = (pause_reason IS NULL))
);
CREATE UNIQUE INDEX external_status_checks_name ON external_status_checks (project_id, name);
CREATE UNIQUE INDEX external_status_checks_url ON external_status_checks (project_id, external_url);
CREATE INDEX external_status_checks_failing ON external_status_checks (id)
    WHERE failing_since IS NOT NULL OR paused_at IS NOT NULL;

-- A check without protected branches applies to all branches, also when those that it was limited to have gone.
CREATE TABLE external_status_check_branches (
    check_id bigint NOT NULL REFERENCES external_status_checks ON DELETE CASCADE,
    protected_branch_id bigint NOT NULL REFERENCES protected_branches ON DELETE CASCADE,
    PRIMARY KEY (check_id, protected_branch_id)
);
CREATE INDEX external_status_check_branches_branch ON external_status_check_branches (protected_branch_id);

-- Every answer is kept; the newest for the present head of a merge request is the status of the check.
CREATE TABLE status_check_responses (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    check_id bigint NOT NULL REFERENCES external_status_checks ON DELETE CASCADE,
    merge_request_id bigint NOT NULL REFERENCES merge_requests ON DELETE CASCADE,
    sha text NOT NULL,
    status text NOT NULL CHECK (status IN ('pending', 'passed', 'failed')),
    description text,
    target_url text,
    user_id bigint REFERENCES users ON DELETE SET NULL,
    retried_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX status_check_responses_newest ON status_check_responses (merge_request_id, check_id, sha, id);
CREATE INDEX status_check_responses_check ON status_check_responses (check_id);
CREATE INDEX status_check_responses_pending ON status_check_responses (created_at)
    WHERE status = 'pending'; -- what may time out

CREATE TABLE status_check_deliveries (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    webhook_id uuid NOT NULL DEFAULT gen_random_uuid(), -- the same over all attempts
    check_id bigint NOT NULL REFERENCES external_status_checks ON DELETE CASCADE,
    merge_request_id bigint NOT NULL REFERENCES merge_requests ON DELETE CASCADE,
    action text, -- what happened to the merge request; none where its present state was asked for
    body text NOT NULL, -- what is signed and sent, byte for byte
    status text NOT NULL DEFAULT 'queued' CHECK (status IN ('queued', 'delivered', 'failed')),
    attempts integer NOT NULL DEFAULT 0, -- all that were made
    tries integer NOT NULL DEFAULT 0, -- of those, since it was last queued by hand: the place in the retry schedule
    -- When it is due. A worker that takes it moves this past the longest time an attempt can take, so that it is due
    -- again should that worker die.
    next_attempt_at timestamptz DEFAULT now(),
    delivered_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK ((status = 'queued') = (next_attempt_at IS NOT NULL))
);
CREATE INDEX status_check_deliveries_of_check ON status_check_deliveries (check_id, id); -- lists
CREATE INDEX status_check_deliveries_merge_request ON status_check_deliveries (merge_request_id);
CREATE INDEX status_check_deliveries_created ON status_check_deliveries (created_at); -- what is old enough to go
-- What to send, receiver by receiver. Much of it may have become due at one moment, such as the state of all open merge
-- requests.
CREATE INDEX status_check_deliveries_due ON status_check_deliveries (check_id, next_attempt_at, id)
    WHERE next_attempt_at IS NOT NULL;
-- Lists of the whole instance; delivered ones are found by their id.
CREATE INDEX status_check_deliveries_queued ON status_check_deliveries (id) WHERE status = 'queued';
CREATE INDEX status_check_deliveries_failed ON status_check_deliveries (id) WHERE status = 'failed';

CREATE TABLE status_check_delivery_attempts (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    delivery_id bigint NOT NULL REFERENCES status_check_deliveries ON DELETE CASCADE,
    number integer NOT NULL,
    request_headers json NOT NULL,
    response_status integer, -- none when no answer came
    response_headers json,
    response_body text, -- its first 10 KiB
    error text, -- why no answer came
    duration double precision NOT NULL, -- seconds
    created_at timestamptz NOT NULL -- when it began
);
CREATE UNIQUE INDEX status_check_delivery_attempts_number ON status_check_delivery_attempts (delivery_id, number);
