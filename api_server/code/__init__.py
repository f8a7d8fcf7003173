"""Repositories in the API and over git: refs, branches, protection, files, git over HTTP, LFS."""
