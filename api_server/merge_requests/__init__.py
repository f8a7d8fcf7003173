"""Merge requests: requests to merge a branch into another of the same project."""
