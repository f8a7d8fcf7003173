"""Reading what is stored at a bounded rate, to find out whether it is still what was stored."""

import asyncio
import hashlib
from pathlib import Path
from typing import Final

PIECE: Final = 256 * 1024


async def digest(path: Path, bytes_per_second: int) -> str:
    """SHA-256 of a file in hexadecimal; nothing when it cannot be read."""
    found, offset = hashlib.sha256(), 0
    while True:
        piece = await asyncio.to_thread(_read, path, offset)
        if piece is None:
            return ""
        if not piece:
            return found.hexdigest()
        found.update(piece)
        offset += len(piece)
        await asyncio.sleep(len(piece) / bytes_per_second)


def _read(path: Path, offset: int) -> bytes | None:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(PIECE)
    except OSError:
        return None
