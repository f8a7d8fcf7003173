"""A push made of bytes, which a test sends as slowly as it likes."""

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import attrs

from tests.support.forge import Forge, Person
from tests.support.git_client import Git

NO_COMMIT = "0" * 40


def packet(line: bytes) -> bytes:
    return b"%04x%s" % (len(line) + 4, line)


def commands(*updates: tuple[str, str, str]) -> bytes:
    """The head of a push that moves refs: (old, new, ref)."""
    lines = [f"{old} {new} {ref}".encode() for old, new, ref in updates]
    lines[0] += b"\0report-status side-band-64k"
    return b"".join(map(packet, lines)) + b"0000"


async def pack_of(git: Git, revision: str) -> bytes:
    """All objects of a history, as `git push` sends them."""
    bundle = git.folder / "all.bundle"
    await git("bundle", "create", "--quiet", str(bundle), revision)
    return bundle.read_bytes().partition(b"\n\n")[2]


@attrs.frozen
class Told:
    """What git's answer says: to the user, and of each ref."""

    status: int
    text: str


async def send_push(
    forge: Forge, path: str, person: Person | None, body: bytes | AsyncIterator[bytes], token: str = ""
) -> Told:
    """POSTs to /git-receive-pack."""
    return await post(forge, path, person, "git-receive-pack", body, token)


async def post(
    forge: Forge,
    path: str,
    person: Person | None,
    service: str,
    body: bytes | AsyncIterator[bytes],
    token: str = "",
    **headers: str,
) -> Told:
    secret = token or (person.token if person else "")
    if secret:
        headers["Authorization"] = "Basic " + base64.b64encode(f"x:{secret}".encode()).decode()
    headers["Content-Type"] = f"application/x-{service}-request"
    async with forge.session.post(f"{forge.base}/{path}.git/{service}", data=body, headers=headers) as answer:
        return Told(answer.status, (await answer.read()).decode(errors="replace"))


def processes(repository: Path) -> Sequence[Path]:
    """Folders in /proc of the gits that are running for a repository."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if command.startswith(b"git\0") and str(repository).encode() in command:
            found.append(folder)
    return found


async def until_git_runs(repository: Path, *, count: int = 1) -> None:
    async with asyncio.timeout(20):
        while len(processes(repository)) < count:
            await asyncio.sleep(0.01)


async def until_no_git_runs(repository: Path) -> None:
    async with asyncio.timeout(30):
        while processes(repository):
            await asyncio.sleep(0.02)
