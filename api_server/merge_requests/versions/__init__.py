"""Versions of merge requests: what their branches were each time that they became something else."""
