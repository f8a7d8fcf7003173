"""Notes and threads about merge requests."""
