"""Zip archives: small ones, and ones with very many members, which are written directly because this is faster."""

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator


def archive(**files: bytes) -> bytes:
    """Return an archive of these files (with `__` for `/` in names)."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as writer:
        for name, content in files.items():
            writer.writestr(name.replace("__", "/"), content)
    return packed.getvalue()


def many_members(count: int, content: bytes = b"x") -> Iterator[bytes]:
    """Yield an archive of this many files `d/<number>` with the same content, in pieces."""
    crc, size = zlib.crc32(content), len(content)
    directory = bytearray()
    position = 0
    for number in range(count):
        name = b"d/%08d" % number
        numbers = struct.pack("<3L2H", crc, size, size, len(name), 0)
        piece = struct.pack("<4s5H", b"PK\3\4", 20, 0, 0, 0, 0x21) + numbers + name + content
        directory += struct.pack("<4s6H", b"PK\1\2", 20, 20, 0, 0, 0, 0x21) + numbers
        directory += struct.pack("<3H2L", 0, 0, 0, 0, position) + name
        position += len(piece)
        yield piece
    yield bytes(directory)
    end = position + len(directory)
    yield struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(directory), position)
    yield struct.pack("<4sLQL", b"PK\6\7", 0, end, 1)
    yield struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
