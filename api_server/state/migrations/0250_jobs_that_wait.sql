-- depends: 0240_removal_in_steps
-- What waits for a runner, by what a runner has to have and by project: a hand-out goes from one kind of jobs to the
-- next, and looks at one job of each. Lists of tags may be too long for an index; their digests are not.
CREATE FUNCTION tags_digest(tags text[]) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN sha256(convert_to(tags::text, 'UTF8'));
-- The condition is one that no other index has: where statistics say that nothing waits, the planner would think it as
-- good to read all jobs that do from another index, and sort them.
CREATE INDEX jobs_waiting ON jobs (tags_digest(tag_list), protected, project_id, id)
    WHERE kind || ' ' || status = 'build pending';
