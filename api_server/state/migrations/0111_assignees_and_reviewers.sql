-- Who is to look after a merge request, and who is to look at it.
-- depends: 0030_merge_requests

CREATE TABLE merge_request_people (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, -- in the order in which they were named
    merge_request_id bigint NOT NULL REFERENCES merge_requests ON DELETE CASCADE,
    part text NOT NULL CHECK (part IN ('assignee', 'reviewer')),
    user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE,
    created_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX merge_request_people_once ON merge_request_people (merge_request_id, part, user_id);
CREATE INDEX merge_request_people_user ON merge_request_people (user_id, part, merge_request_id); -- lists
