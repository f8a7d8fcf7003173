-- Pipelines that start others are one hierarchy, whose size is bounded.
-- depends: 0020_pipelines_and_jobs

-- The pipeline that everything began with; null for those that no other has started. It stays when that one is removed.
ALTER TABLE pipelines ADD hierarchy_id bigint;
-- Of such a pipeline: how many its hierarchy has had so far, itself included.
ALTER TABLE pipelines ADD hierarchy_size integer NOT NULL DEFAULT 1;

WITH RECURSIVE below AS (
    SELECT pipelines.id, pipelines.id AS top FROM pipelines WHERE pipelines.source_job_id IS NULL
    UNION ALL
    SELECT pipelines.id, below.top
    FROM below JOIN jobs ON jobs.pipeline_id = below.id JOIN pipelines ON pipelines.source_job_id = jobs.id
), counted AS (
    SELECT below.top, count(*) AS size FROM below GROUP BY below.top HAVING count(*) > 1
)
UPDATE pipelines SET hierarchy_id = nullif(below.top, pipelines.id),
    hierarchy_size = CASE WHEN below.top = pipelines.id THEN counted.size ELSE 1 END
FROM below JOIN counted ON counted.top = below.top WHERE below.id = pipelines.id;
