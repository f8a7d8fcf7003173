-- depends: 0011_lfs_objects
-- The sweep asks of objects in the store whether a row names them. (Those of jobs are found by the job in their key.)

CREATE INDEX lfs_objects_key ON lfs_objects (object_key);
