"""A push as bytes, which a test can send as slowly as it needs."""

import base64
import hashlib
import io
import struct
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import attrs

from tests.support.forge import Forge, Person
from tests.support.git_client import Git
from tests.support.waiting import until

NO_COMMIT = "0" * 40


def packet(line: bytes) -> bytes:
    return b"%04x%s" % (len(line) + 4, line)


def commands(*updates: tuple[str, str, str]) -> bytes:
    """Return the head of a push that moves refs: (old, new, ref)."""
    lines = [f"{old} {new} {ref}".encode() for old, new, ref in updates]
    lines[0] += b"\0report-status side-band-64k"
    return b"".join(map(packet, lines)) + b"0000"


async def pack_of(git: Git, revision: str) -> bytes:
    """Return all objects of a history, as `git push` sends them."""
    bundle = git.folder / "all.bundle"
    await git("bundle", "create", "--quiet", str(bundle), revision)
    return bundle.read_bytes().partition(b"\n\n")[2]


@attrs.frozen
class Told:
    """git's answer: the messages to the user and the results of the refs."""

    status: int
    text: str


async def send_push(
    forge: Forge, path: str, person: Person | None, body: bytes | AsyncIterator[bytes], token: str = ""
) -> Told:
    """Send a POST to /git-receive-pack."""
    return await post(forge, path, person, "git-receive-pack", body, token)


def credentials(token: str) -> str:
    """Return the value of the Authorization header, as git sends it."""
    return "Basic " + base64.b64encode(f"x:{token}".encode()).decode()


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
        headers["Authorization"] = credentials(secret)
    headers["Content-Type"] = f"application/x-{service}-request"
    data = io.BytesIO(body) if isinstance(body, bytes) else body
    async with forge.session.post(f"{forge.base}/{path}.git/{service}", data=data, headers=headers) as answer:
        return Told(answer.status, (await answer.read()).decode(errors="replace"))


def processes(repository: Path) -> Sequence[Path]:
    """Return the folders in /proc of the git processes that run for a repository."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if command.startswith(b"git\0") and str(repository).encode() in command:
            found.append(folder)
    return found


async def until_git_runs(repository: Path) -> None:
    await until(lambda: processes(repository))


async def until_no_git_runs(repository: Path) -> None:
    await until(lambda: not processes(repository))


def growing_pack(sizes: Sequence[int]) -> bytes:
    """Return a pack of one blob and of deltas on top of each other: few bytes for objects of these sizes, each of
    which is at least as large as the one before."""
    entries = [_entry(3, sizes[0], b"", bytes(sizes[0]))]
    for base, size in pairwise(sizes):
        delta = _varint(base) + _varint(size) + b"".join(_copies(base, size))
        entries.append(_entry(6, len(delta), _varint_back(len(entries[-1])), delta))
    pack = b"PACK" + struct.pack(">II", 2, len(entries)) + b"".join(entries)
    return pack + hashlib.sha1(pack).digest()


def _entry(kind: int, size: int, base: bytes, content: bytes) -> bytes:
    head, size = [kind << 4 | size & 15], size >> 4
    while size:
        head[-1] |= 0x80
        head.append(size & 0x7F)
        size >>= 7
    return bytes(head) + base + zlib.compress(content, 9)


def _copies(base: int, size: int) -> Iterator[bytes]:
    """Yield delta instructions that copy the base's beginning until there are `size` bytes."""
    while size:
        length = min(base, size, 0xFFFFFF)
        yield bytes([0xF0]) + length.to_bytes(3, "little")
        size -= length


def _varint(number: int) -> bytes:
    out = []
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _varint_back(offset: int) -> bytes:
    """Return the offset of a delta's base, which lies before it, as in gitformat-pack(5)."""
    out = [offset & 0x7F]
    while offset := offset >> 7:
        offset -= 1
        out.insert(0, 0x80 | offset & 0x7F)
    return bytes(out)
