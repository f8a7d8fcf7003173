-- What a project's LFS objects take up is read from an index alone.
-- depends: 0011_lfs_objects

CREATE INDEX lfs_objects_sizes ON lfs_objects (project_id) INCLUDE (size);
