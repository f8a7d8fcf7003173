-- depends: 0005_operations

-- Bridges with `needs: {pipeline: group/project}`, and the pipelines whose status each of them has: those that were the
-- newest of the other project's default branch when the bridge had its turn.
CREATE TABLE mirrored_pipelines (
    job_id bigint PRIMARY KEY REFERENCES jobs ON DELETE CASCADE,
    pipeline_id bigint NOT NULL, -- of the bridge, with which the bridge goes
    mirrored_id bigint NOT NULL REFERENCES pipelines ON DELETE CASCADE
);
CREATE INDEX mirrored_pipelines_mirrored ON mirrored_pipelines (mirrored_id, job_id); -- who hears of a new status
CREATE INDEX mirrored_pipelines_pipeline ON mirrored_pipelines (pipeline_id, mirrored_id); -- circles
