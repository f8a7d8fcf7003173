"""On what was measured."""

import os
import platform
import re
import subprocess
from pathlib import Path

from forgelet.local import postgres_binaries


def described() -> dict[str, str]:
    """Processor, Python, PostgreSQL and git; no names of hosts."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "processor": f"{len(os.sched_getaffinity(0))} x {found[1].strip() if found else platform.machine()}",
        "load before": f"{os.getloadavg()[0]:.2f}",
        "Python": platform.python_version(),
        "PostgreSQL": _last_word([str(postgres_binaries.preferred().postgres), "--version"]),
        "git": _last_word(["git", "--version"]),
    }


def _last_word(command: list[str]) -> str:
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d[\d.]*", said)
    return found[0] if found else said.strip()
