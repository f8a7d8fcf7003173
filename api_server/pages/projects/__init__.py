"""Pages of a project and of what is in its repository."""
