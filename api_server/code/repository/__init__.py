"""Branches, tags and files of a project's repository."""
