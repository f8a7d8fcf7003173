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
    pattern = re.compile(b"|".join(map(re.escape, known)))
    done: list[bytes] = []
    position = 0
    while True:
        match = pattern.search(text, position)
        held = _beginning_of_secret(text, position, known)
        if held is not None and (match is None or held <= match.start()):
            return b"".join([*done, text[position:held]]), text[held:]
        if match is None:
            return b"".join([*done, text[position:]]), b""
        done += [text[position : match.start()], _MASK * len(match[0])]
        position = match.end()


def _beginning_of_secret(text: bytes, position: int, secrets: Collection[bytes]) -> int | None:
    """The first place from which the rest of `text` is a beginning, not the whole, of a secret."""
    longest = max(map(len, secrets))
    first_bytes = {secret[0] for secret in secrets}
    for start in range(max(position, len(text) - longest + 1), len(text)):
        if text[start] not in first_bytes:
            continue
        rest = text[start:]
        if any(len(rest) < len(secret) and secret.startswith(rest) for secret in secrets):
            return start
    return None
