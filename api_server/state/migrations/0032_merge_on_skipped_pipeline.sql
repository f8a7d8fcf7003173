-- depends: 0031_status_checks
-- Whether a skipped pipeline is as good as one that has succeeded.
ALTER TABLE projects ADD COLUMN allow_merge_on_skipped_pipeline boolean NOT NULL DEFAULT false;
