"""Commit statuses: what other systems say of a commit, kept as jobs that no runner gets."""
