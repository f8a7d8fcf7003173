"""Push, fetch and lock large files as users of git-lfs do, and print a line for each call."""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from calls import TOKEN, api, call, person, with_credentials

CONFIGURATION = """
[user]
    name = Alice
    email = alice@example.org
[filter "lfs"]
    clean = git-lfs clean -- %f
    smudge = git-lfs smudge -- %f
    process = git-lfs filter-process
    required = true
[lfs]
    locksverify = true
"""
LARGE = os.urandom(300_000)
OID = hashlib.sha256(LARGE).hexdigest()


def git(folder: Path, *command: str) -> str:
    """Run git; return its output. Raise `AssertionError` with its messages if it fails."""
    result = subprocess.run(
        ["git", *command], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, f"git {command[0]}: {result.stdout} {result.stderr}"
    return result.stdout


def refused(folder: Path, *command: str) -> str:
    """Run git; return its messages. Raise `AssertionError` if it does not fail."""
    try:
        git(folder, *command)
    except AssertionError as problem:
        return str(problem)
    raise AssertionError("was not refused")


def main(place: Path) -> None:
    url = api("POST", "projects", name="app", initialize_with_readme=True)["http_url_to_repo"]
    bob = person("bob")
    api("POST", "projects/1/members", user_id=bob["id"], access_level=30)
    first, other, third = place / "mine", place / "other", place / "third"
    git(place, "clone", "-q", with_credentials(url, "root", TOKEN), "mine")
    git(first, "lfs", "install", "--local")
    with call("files", "track, push"):
        git(first, "lfs", "track", "*.bin")
        (first / "large.bin").write_bytes(LARGE)
        git(first, "add", ".")
        git(first, "commit", "-qm", "A large file")
        git(first, "push", "-q", "origin", "main")
    with call("files", "what is in git is a pointer"):
        pointer = git(first, "cat-file", "-p", "HEAD:large.bin")
        assert f"oid sha256:{OID}" in pointer, pointer
    with call("files", "push of what is there already"):
        (first / "same.bin").write_bytes(LARGE)
        git(first, "add", ".")
        git(first, "commit", "-qm", "The same once more")
        git(first, "push", "-q", "origin", "main")
    with call("files", "clone"):
        git(place, "clone", "-q", with_credentials(url, "bob", bob["token"]), "other")
        assert (other / "large.bin").read_bytes() == LARGE
    with call("files", "pull of one path"):
        skip = {"GIT_LFS_SKIP_SMUDGE": "1"}
        os.environ |= skip
        try:
            git(place, "clone", "-q", with_credentials(url, "bob", bob["token"]), "third")
        finally:
            del os.environ["GIT_LFS_SKIP_SMUDGE"]
        git(third, "lfs", "pull", "--include", "large.bin")
        assert (third / "large.bin").read_bytes() == LARGE
        assert (third / "same.bin").stat().st_size < 200
    with call("files", "fetch --all"):
        git(third, "lfs", "fetch", "--all")
    with call("files", "fsck"):
        git(other, "lfs", "fsck")
    with call("files", "ls-files"):
        assert git(other, "lfs", "ls-files", "--name-only").split() == ["large.bin", "same.bin"]
    with call("files", "prune with a look at the server"):
        git(other, "lfs", "prune", "--verify-remote")
    with call("files", "migrate import"):
        (first / "old.dat").write_bytes(LARGE[:1000])
        git(first, "add", ".")
        git(first, "commit", "-qm", "Not in LFS")
        git(first, "lfs", "migrate", "import", "--include=*.dat", "--include-ref=refs/heads/main", "--yes")
        git(first, "push", "-q", "origin", "HEAD:refs/heads/migrated")
        git(first, "reset", "-q", "--hard", "origin/main")
    locks(first, other)


def locks(first: Path, other: Path) -> None:
    with call("locks", "lock"):
        git(first, "lfs", "lock", "large.bin")
    with call("locks", "lock of what is locked is refused"):
        assert "already" in refused(other, "lfs", "lock", "large.bin")
    with call("locks", "locks"):
        assert "large.bin" in git(other, "lfs", "locks")
    with call("locks", "locks --verify tells own ones from others'"):
        assert git(first, "lfs", "locks", "--verify").startswith("O")
        assert not git(other, "lfs", "locks", "--verify").startswith("O")
    with call("locks", "locks --path"):
        assert git(other, "lfs", "locks", "--path", "same.bin") == ""
    with call("locks", "push of a file that somebody else has locked is refused"):
        (other / "large.bin").chmod(0o644)
        (other / "large.bin").write_bytes(LARGE[::-1])
        git(other, "commit", "-qam", "Changed")
        assert "large.bin" in refused(other, "push", "-q", "origin", "HEAD:refs/heads/of-bob")
    with call("locks", "unlock"):
        git(first, "lfs", "unlock", "large.bin")
    with call("locks", "push after it is unlocked"):
        git(other, "push", "-q", "origin", "HEAD:refs/heads/of-bob")
    with call("locks", "unlock --force of another's lock"):
        git(other, "lfs", "lock", "same.bin")
        git(first, "lfs", "unlock", "--force", "same.bin")
        assert git(first, "lfs", "locks") == ""


with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "configuration").write_text(CONFIGURATION)
    os.environ |= {
        "GIT_CONFIG_GLOBAL": f"{folder}/configuration",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }
    main(Path(folder))
    sys.stdout.flush()
