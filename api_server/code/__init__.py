"""Repositories through git and the API: refs, branches, protection, files, git over HTTP, LFS."""
