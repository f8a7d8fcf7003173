"""Real git, as a user and as the one who counts afterwards."""

from collections import Counter
from pathlib import Path

from tests.support.git_client import Git, Ran


async def subjects(clone: Git, *refs: str) -> "Counter[str]":
    """How often each first line stands above a commit that these branches hold."""
    text = await clone("log", "--format=%s", *(f"refs/heads/{ref}" for ref in refs), "--")
    return Counter(text.splitlines())


async def mirror_of(folder: Path, url: str) -> Git:
    """A clone of everything, made anew."""
    await Git(Path("/"))("clone", "--quiet", "--mirror", url, str(folder))
    return Git(folder)


def was_refused(ran: Ran) -> bool:
    """Whether the server said no, without a word of trying again, where it might have been cut off or busy."""
    said_no = any(word in ran.output for word in ("rejected", "error: 500", "error: 4", "denied"))
    return said_no and "try again" not in ran.output
