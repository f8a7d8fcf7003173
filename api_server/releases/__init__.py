"""Releases: descriptions of a project's tags, with links to files that were built from them."""
