"""Small bare repositories made with git's plumbing."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import attrs

MAIN = "refs/heads/main"

_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "alice",
    "GIT_AUTHOR_EMAIL": "alice@example.org", "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "alice", "GIT_COMMITTER_EMAIL": "alice@example.org",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
}  # fmt: skip


@attrs.frozen
class BareRepository:
    path: Path

    @classmethod
    def create(cls, path: Path) -> "BareRepository":
        command = ["git", "init", "--quiet", "--bare", "--initial-branch=main", str(path)]
        subprocess.run(command, env=_ENVIRONMENT, check=True)
        return cls(path)

    def git(self, *arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            ["git", f"--git-dir={self.path}", *arguments],
            input=stdin,
            env=_ENVIRONMENT,
            text=True,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self, message: str, *parents: str) -> str:
        """Create a commit without files; the same message and parents give the same commit everywhere."""
        tree = self.git("mktree")
        flags = [flag for parent in parents for flag in ("-p", parent)]
        return self.git("commit-tree", tree, "-m", message, *flags)

    def tag_object(self, name: str, sha: str) -> str:
        head = f"object {sha}\ntype commit\ntag {name}\n"
        return self.git("mktag", stdin=f"{head}tagger alice <alice@example.org> 1767225600 +0000\n\nx\n")

    def set_refs(self, refs: Mapping[str, str | None]) -> None:
        """Write refs by full name, or delete them if the value is None."""
        lines = [f"update {name} {sha}" if sha else f"delete {name}" for name, sha in refs.items()]
        self.git("update-ref", "--stdin", stdin="".join(f"{line}\n" for line in lines))

    def refs(self) -> dict[str, str]:
        lines = self.git("for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        return dict(line.split(" ") for line in lines)

    def add_hook(self, name: str, script: str) -> None:
        """Install a hook in shell."""
        hook = self.path / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\n{script}\n")
        hook.chmod(0o755)
