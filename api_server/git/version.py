"""Which git there has to be on PATH."""

import re
import subprocess

from common.mistakes import Mistake

#: The first that has `core.fsync`, by which what a push has been told is done survives a power cut.
OLDEST = (2, 36)


def check_git() -> str:
    """The version of the git on PATH, such as "2.39". Raises `Mistake` where it is missing or too old."""
    needed = f"git {'.'.join(map(str, OLDEST))} or newer is needed"
    try:
        said = subprocess.run(["git", "--version"], capture_output=True, text=True, check=False).stdout
    except OSError as problem:
        raise Mistake(f"{needed}, and none can be run ({problem.strerror}): install it on PATH") from None
    found = re.match(r"git version (\d+)\.(\d+)", said)
    if found is None:
        raise Mistake(f"{needed}, and the git on PATH does not say which it is: install it on PATH")
    if (int(found[1]), int(found[2])) < OLDEST:
        raise Mistake(f"{needed}, the one on PATH is {found[1]}.{found[2]}: upgrade it")
    return f"{found[1]}.{found[2]}"
