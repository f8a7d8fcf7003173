"""Access tokens of projects and groups: each has a bot of its own, which is a member there and goes with its token."""
