"""Releases: what a project says of its tags, with links to what was built of them."""
