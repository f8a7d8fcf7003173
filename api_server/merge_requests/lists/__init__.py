"""Lists of merge requests: of a project, of a group, of all that the caller can see."""
