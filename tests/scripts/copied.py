"""A copy of the commands in a folder with a space, with a recorder as Python."""

import shutil
import subprocess
from pathlib import Path

from tests.support.checkout import CHECKOUT

VERSION = "3.11.9"
RECORDER = """#!/bin/sh
case "$*" in
-c*) echo VERSION ${3-}; exit ;;
'-I -S -c '*) echo VERSION; exit ;;
'-m venv '*) mkdir -p "$4/bin"; for name in python lint-imports; do cp "$0" "$4/bin/$name"; done ;;
'-m pip --version') ;;
*) line=$(printf '%s|' "$PWD" "${PYTHONPATH-}" "$@"); printf '%s\\n' "$line" >>"$RECORD" ;;
esac
case "$*" in '-m pip '*) ;; *) echo "Python VERSION was here" ;; esac
case "VERSION $*" in *"${FAILING:-nothing at all}"*) exit 1 ;; esac
"""
#: All programs that the commands use besides Python; only in a folder without any other Python this shows.
TOOLS = ["cat", "cksum", "cp", "dirname", "id", "mkdir", "mktemp", "rm", "sed", "sh", "sort", "tail", "tee"]


class Copy:
    """A checkout in a folder with a space, and a PATH with Pythons that record what they are asked to run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = path / "record"
        for folder in ("scripts", ".ci"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(CHECKOUT / folder, path / folder, ignore=ignored)
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(CHECKOUT / name, path / name)
        self.programs = path / "programs"
        self.programs.mkdir()
        for name in TOOLS:
            (self.programs / name).symlink_to(str(shutil.which(name)))
        self.add_python("python3", VERSION)

    def add_python(self, name: str, version: str, script: str = RECORDER) -> Path:
        python = self.programs / name
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(script.replace("VERSION", version))
        python.chmod(0o755)
        return python

    def run(self, command: str, *arguments: str, **environment: str) -> tuple[int, str]:
        """Run a command; return exit status and standard error."""
        done = subprocess.run(
            [str(self.path / command), *arguments],
            cwd="/",
            env={"PATH": str(self.programs), "RECORD": str(self.record), **environment},
            capture_output=True,
            text=True,
        )
        self.printed = done.stdout
        return done.returncode, done.stderr

    def ran(self) -> list[list[str]]:
        """Return working folder, PYTHONPATH and arguments of each run since the last call."""
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        self.record.unlink(missing_ok=True)
        return [line.split("|")[:-1] for line in lines]

    def installed(self) -> list[str]:
        """Return what each run of pip has installed since the last call."""
        return [run[-1] for run in self.ran() if "pip" in run]
