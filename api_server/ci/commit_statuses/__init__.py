"""Commit statuses: the reports of other systems about a commit, kept as jobs that no runner gets."""
