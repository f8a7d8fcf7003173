-- depends: 0103_running_jobs
-- What a newer commit may cancel is looked for at each push: not among all pipelines that the branch has had.
CREATE INDEX pipelines_unfinished ON pipelines (project_id, ref, created_at) WHERE status IN ('created',
    'waiting_for_resource', 'preparing', 'waiting_for_callback', 'pending', 'running', 'manual', 'scheduled');
