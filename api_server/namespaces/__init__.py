"""Where things belong: groups, projects, their members, their paths and who sees them."""
