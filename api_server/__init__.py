"""The API server: GitLab's /api/v4 for six areas, git over HTTP, static objects and the admin area."""
