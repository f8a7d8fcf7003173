-- What people and programs say of merge requests.
-- depends: 0030_merge_requests

ALTER TABLE projects ADD COLUMN only_allow_merge_if_all_discussions_are_resolved boolean NOT NULL DEFAULT false;

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
INSERT INTO merge_request_versions (merge_request_id, head_sha, start_sha, base_sha, created_at)
SELECT id, head_sha, start_sha, base_sha, created_at FROM merge_requests ORDER BY id;
