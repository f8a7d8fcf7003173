"""Members of groups and projects, and the roles that they give."""
