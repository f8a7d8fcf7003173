"""Merge requests: one branch that is to be merged into another of the same project."""
