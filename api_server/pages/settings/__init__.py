"""Pages of the settings of projects and groups, at GitLab's addresses."""
