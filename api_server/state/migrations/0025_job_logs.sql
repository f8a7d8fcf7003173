-- depends: 0020_pipelines_and_jobs
-- A job's log is called a log. (jobs.debug_trace keeps its name: it is CI_DEBUG_TRACE's.)

ALTER TABLE job_traces RENAME TO job_logs;
ALTER TABLE job_trace_chunks RENAME TO job_log_chunks;

-- Their constraints, and with these the indexes; PostgreSQL 18 has named ones for NOT NULL too.
DO $$
DECLARE
    named record;
BEGIN
    FOR named IN
        SELECT conrelid::regclass AS owner, conname AS old, replace(conname, 'job_trace', 'job_log') AS new
        FROM pg_constraint WHERE conrelid IN ('job_logs'::regclass, 'job_log_chunks'::regclass)
    LOOP
        EXECUTE format('ALTER TABLE %s RENAME CONSTRAINT %I TO %I', named.owner, named.old, named.new);
    END LOOP;
END
$$;
