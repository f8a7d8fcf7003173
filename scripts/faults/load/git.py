"""Real git, as a user and as the one who counts afterwards."""

from collections import Counter
from pathlib import Path

from scripts.faults.ledger import Ledger
from tests.support.git_client import Git, Ran


async def subjects(clone: Git, *refs: str) -> "Counter[str]":
    """How often each first line stands above a commit that these branches hold."""
    text = await clone("log", "--format=%s", *(f"refs/heads/{ref}" for ref in refs), "--")
    return Counter(text.splitlines())


async def mirror_of(folder: Path, url: str) -> Git:
    """A clone of everything, made anew."""
    await Git(Path("/"))("clone", "--quiet", "--mirror", url, str(folder))
    return Git(folder)


#: What git says of a push that the server would not take, and of those the ones that say what hinders it for now: by
#: then the answer's status has been sent.
_NO = ("rejected", "error: 500", "error: 4", "denied")
_FOR_NOW = ("try again", "No space left on device", "couldn't write")


async def attempt(ledger: Ledger, git: Git, *arguments: str) -> Ran:
    """Runs git; that it has not ended after a minute is a finding, and a failure like others."""
    try:
        return await git.run(*arguments)
    except TimeoutError:
        ledger.find(f"git {arguments[0]} was not over after a minute")
        return Ran(-1, "")


def was_refused(ran: Ran) -> bool:
    """Whether the server said no for good."""
    return any(word in ran.output for word in _NO) and not any(word in ran.output for word in _FOR_NOW)
