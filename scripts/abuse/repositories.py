"""The repository that attacks read: large files, a large change, an exploding tree; and packs as no git makes them."""

import hashlib
import os
import struct
import subprocess
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from common.logs import redact

LARGE_FILE = "large.bin"
MEDIUM_FILE = "medium.bin"
CHANGED_LINES = 400
#: Ten folders in each of ten folders, and so on: a million paths out of a few objects.
BOMB_DEPTH = 6


@attrs.frozen
class Sizes:
    """Bytes of the files that are asked for whole and that are read slowly, and files of the large change."""

    large: int = 200 * 2**20
    medium: int = 9 * 2**20
    changed_files: int = 3000


_COMMITTER = "committer alice <alice@example.org> 1700000000 +0000"


def make_repository(folder: Path, project: str, sizes: Sizes, *, host: str, token: str) -> str:
    """Makes the branches `start`, `main` and `bomb` and pushes them to `project`; the full SHA of the large change
    between the first two."""
    _git(folder, "init", "--quiet", "--bare", ".")
    with subprocess.Popen(["git", "fast-import", "--quiet"], cwd=folder, stdin=subprocess.PIPE) as importer:
        assert importer.stdin is not None
        for piece in _stream(sizes):
            importer.stdin.write(piece)
    if importer.returncode:
        raise RuntimeError("git fast-import failed.")
    _git(folder, "branch", "start", "main~1")
    _git(folder, "branch", "bomb", _bomb(folder))
    remote = f"http://attacker@{host}/{project}.git"
    helper = folder / "credentials"
    helper.touch(mode=0o600)
    helper.write_text(f"http://attacker:{token}@{host}\n")
    with_credentials = ["-c", f"credential.helper=store --file='{helper}'"]
    _git(folder, *with_credentials, "push", "--quiet", remote, "start", "main", "bomb")
    return _git(folder, "rev-parse", "main").strip()


def _stream(sizes: Sizes) -> Iterator[bytes]:
    yield from _file(1, sizes.large)
    yield from _file(2, sizes.medium)
    yield _commit("main", "Large files")
    yield b"M 100644 :1 " + LARGE_FILE.encode() + b"\nM 100644 :2 " + MEDIUM_FILE.encode() + b"\n\n"
    yield _commit("main", "A large change")
    for number in range(sizes.changed_files):
        text = b"".join(b"%d of %d\n" % (line, number) for line in range(CHANGED_LINES))
        yield b"M 100644 inline src/%d/%d.txt\n" % (number % 100, number) + _data(text)
    yield b"\n"


def _bomb(folder: Path) -> str:
    """The commit of a tree in which each folder has the same folder ten times."""
    blob = _git(folder, "hash-object", "-w", "--stdin", stdin="x").strip()
    tree = _git(folder, "mktree", stdin=f"100644 blob {blob}\tleaf\n").strip()
    for _ in range(BOMB_DEPTH):
        entries = "".join(f"040000 tree {tree}\td{number}\n" for number in range(10))
        tree = _git(folder, "mktree", stdin=entries).strip()
    name = {
        f"GIT_{who}_{what}": "alice@example.org"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    return _git(folder, "commit-tree", tree, "-m", "A bomb", environment=name).strip()


def _file(mark: int, size: int) -> Iterator[bytes]:
    yield f"blob\nmark :{mark}\ndata {size}\n".encode()
    piece = bytes(range(256)) * 4096
    for at in range(0, size, len(piece)):
        yield piece[: size - at]
    yield b"\n"


def _commit(branch: str, message: str) -> bytes:
    return f"commit refs/heads/{branch}\n{_COMMITTER}\n".encode() + _data(message.encode())


def _data(content: bytes) -> bytes:
    return b"data %d\n" % len(content) + content + b"\n"


def _git(folder: Path, *arguments: str, stdin: str = "", environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        input=stdin,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"git {arguments[0]} failed: {redact(done.stderr)}")
    return done.stdout


_BLOB, _OFS_DELTA = 3, 6
_COPIED = 0xFFFFFF  # the most that one instruction of a delta copies


def pkt_line(line: bytes) -> bytes:
    """A pkt-line."""
    return f"{len(line) + 4:04x}".encode() + line


def push_body(ref: str, pack: bytes) -> bytes:
    """The body of a push that creates `ref`; what it is to point at does not exist."""
    command = f"{'0' * 40} {'1' * 40} {ref}".encode() + b"\0 report-status\n"
    return pkt_line(command) + b"0000" + pack


def delta_bomb(copies: int = 100) -> bytes:
    """A blob of 16 MiB in a few bytes, and a delta that copies it; a hundred copies are 1.6 GiB when unpacked."""
    base = bytes(_COPIED)
    compressed = _deflated(base)
    instructions = b"\xf0\xff\xff\xff" * copies  # offset 0, three bytes of size
    delta = _delta_size(len(base)) + _delta_size(_COPIED * copies) + instructions
    first = _heading(_BLOB, len(base)) + compressed
    second = _heading(_OFS_DELTA, len(delta)) + _offset(len(first)) + _deflated(delta)
    body = b"PACK" + struct.pack(">II", 2, 2) + first + second
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def _deflated(data: bytes) -> bytes:
    return zlib.compress(data, 9)


def _heading(kind: int, size: int) -> bytes:
    first, size = (kind << 4) | (size & 0x0F), size >> 4
    heading = bytearray()
    while size:
        heading.append(first | 0x80)
        first, size = size & 0x7F, size >> 7
    return bytes([*heading, first])


def _offset(distance: int) -> bytes:
    reversed_digits = [distance & 0x7F]
    while distance := distance >> 7:
        distance -= 1
        reversed_digits.append(0x80 | (distance & 0x7F))
    return bytes(reversed(reversed_digits))


def _delta_size(size: int) -> bytes:
    digits = bytearray()
    while size > 0x7F:
        digits.append(0x80 | (size & 0x7F))
        size >>= 7
    return bytes([*digits, size])
