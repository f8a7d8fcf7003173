"""Commits that somebody has signed, as git stores them; nobody has made these signatures."""

import pygit2


def signed(repository: pygit2.Repository, sha: str, kind: str) -> str:
    """The SHA of a copy of a commit with a signature of this kind (`PGP`, `SSH`, ...)."""
    content = repository[sha].peel(pygit2.Commit).read_raw().decode()
    armour = f"-----BEGIN {kind} SIGNATURE-----\n\nU2lnbmVk\n-----END {kind} SIGNATURE-----"
    return str(repository.create_commit_with_signature(content, armour))
