"""Namespaces: groups, projects, their members, their paths and who may see them."""
