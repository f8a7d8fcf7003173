"""Pages of merge requests."""
