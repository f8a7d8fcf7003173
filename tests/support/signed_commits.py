"""Commits with signatures as git stores them; the signatures are not valid."""

import pygit2


def signed(repository: pygit2.Repository, sha: str, kind: str) -> str:
    """Create a copy of a commit with a signature of this kind (`PGP`, `SSH`, ...); return its SHA."""
    content = repository[sha].peel(pygit2.Commit).read_raw().decode()
    armour = f"-----BEGIN {kind} SIGNATURE-----\n\nU2lnbmVk\n-----END {kind} SIGNATURE-----"
    return str(repository.create_commit_with_signature(content, armour))
