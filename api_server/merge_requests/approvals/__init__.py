"""Who approves of merge requests."""
