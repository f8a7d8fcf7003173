-- Which LFS objects the targets of push mirrors have not got yet.
-- depends: 0040_remote_mirrors

-- The commits that the target has have been looked through for LFS pointers; what it lacks of them is owed.
ALTER TABLE remote_mirrors ADD lfs_followed boolean NOT NULL DEFAULT false;

-- Objects that commits on the target point to and that have not got there: it refused them, or we had none.
CREATE TABLE remote_mirror_lfs_owed (
    mirror_id bigint NOT NULL REFERENCES remote_mirrors ON DELETE CASCADE,
    oid text NOT NULL,
    PRIMARY KEY (mirror_id, oid)
);
