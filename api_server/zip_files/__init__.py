"""Single files of zip archives in the object store: found by an index, unpacked as they are sent."""
