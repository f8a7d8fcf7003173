-- External status checks: the services, their answers, and what is delivered to them.
-- depends: 0030_merge_requests

CREATE TABLE external_status_checks (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    name text NOT NULL,
    external_url text NOT NULL,
    shared_secret bytea, -- encrypted
    -- A check that was made for some protected branches never comes to mean all of them when those go away.
    all_branches boolean NOT NULL DEFAULT true,
    failing_since timestamptz, -- the first failed attempt since the last that succeeded
    paused_at timestamptz, -- nothing is sent until it is resumed
    pause_reason text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CHECK ((paused_at IS NULL) = (pause_reason IS NULL))
);
CREATE UNIQUE INDEX external_status_checks_name ON external_status_checks (project_id, name);
CREATE UNIQUE INDEX external_status_checks_url ON external_status_checks (project_id, external_url);

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
CREATE INDEX status_check_deliveries_due ON status_check_deliveries (check_id, next_attempt_at)
    WHERE next_attempt_at IS NOT NULL; -- what to send, receiver by receiver
CREATE INDEX status_check_deliveries_soonest ON status_check_deliveries (next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;
CREATE INDEX status_check_deliveries_merge_request ON status_check_deliveries (merge_request_id);
CREATE INDEX status_check_deliveries_created ON status_check_deliveries (created_at); -- what is old enough to go

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
