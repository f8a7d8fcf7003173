"""Projects: a repository with its settings, in a group or in a user's own namespace."""
