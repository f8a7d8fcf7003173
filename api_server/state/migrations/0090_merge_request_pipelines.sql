-- depends: 0028_pipeline_hierarchies 0030_merge_requests
-- Pipelines of merge requests, and what a pipeline's file says of when it is canceled by itself.

-- Of a merge request's pipeline, whose `ref` is `refs/merge-requests/<iid>/head`. The branch stays when the merge
-- request has gone: by its protection it is judged who may change the pipeline.
ALTER TABLE pipelines ADD COLUMN merge_request_id bigint REFERENCES merge_requests ON DELETE SET NULL;
ALTER TABLE pipelines ADD COLUMN source_branch text;
CREATE INDEX pipelines_merge_request ON pipelines (merge_request_id, id) WHERE merge_request_id IS NOT NULL;

ALTER TABLE pipelines ADD COLUMN auto_cancel_on_new_commit text NOT NULL DEFAULT 'conservative'
    CHECK (auto_cancel_on_new_commit IN ('conservative', 'interruptible', 'none'));
ALTER TABLE pipelines ADD COLUMN auto_cancel_on_job_failure text NOT NULL DEFAULT 'none'
    CHECK (auto_cancel_on_job_failure IN ('all', 'none'));
