"""Settings of projects and groups, at GitLab's addresses, for those who may change them."""
