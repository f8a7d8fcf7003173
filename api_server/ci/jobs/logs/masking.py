"""Hiding secrets in a log that comes in pieces. Pure.

A secret is replaced by as many `x`, so that offsets in the log stay those of the runner. A piece may end in the middle
of a secret: such an end is held back until the next piece shows what it was.
"""

import re
from collections.abc import Collection

_MASK = b"x"


def mask(text: bytes, secrets: Collection[bytes]) -> tuple[bytes, bytes]:
    """`text` with its secrets hidden, and the end of it (raw) that may be the beginning of a secret.

    `text` is what was held of the last piece, and the new piece. However a log is cut into pieces, the result is the
    same; the longest of several secrets that begin in one place counts.
    """
    known = sorted(filter(None, secrets), key=len, reverse=True)
    if not known:
        return text, b""
    beginnings = _beginnings(text, known)
    done: list[bytes] = []
    position = 0
    for match in re.finditer(b"|".join(map(re.escape, known)), text):
        if any(position <= start <= match.start() for start in beginnings):
            break
        done += [text[position : match.start()], _MASK * len(match[0])]
        position = match.end()
    held = next((start for start in beginnings if start >= position), len(text))
    return b"".join([*done, text[position:held]]), text[held:]


def _beginnings(text: bytes, secrets: Collection[bytes]) -> list[int]:
    """The places from which the rest of `text` is a beginning, not the whole, of a secret."""
    first_bytes = {secret[0] for secret in secrets}
    return [
        start
        for start in range(max(0, len(text) - max(map(len, secrets)) + 1), len(text))
        if text[start] in first_bytes
        and any(len(text) - start < len(secret) and secret.startswith(text[start:]) for secret in secrets)
    ]
