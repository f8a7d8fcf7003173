"""Hiding secrets in a log that comes in pieces. Pure.

A secret is replaced by as many `x`, so that offsets in the log stay those of the runner. A piece may end in the middle
of a secret: such an end is held back until the next piece shows what it was.

Both the log and the secrets are chosen by strangers: time is linear in their bytes, by Aho and Corasick's algorithm.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import islice, product

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

#: Bytes of all secrets of one job together.
MAX_SECRETS = 128 * 1024
#: Bytes that are compared at most to find out what the end of a piece is the beginning of; what has not been compared
#: by then is held back as well.
_MAX_COMPARED = 4 * 1024 * 1024
#: So many bytes decide first, nearly always alone.
_HEAD = 16
_MASK = b"x"
#: Patterns of bytes that no UTF-8 has, so that they overlap no secret. With few patterns the library would compare
#: whole ones in each place that looks like a beginning, which takes text times secret.
_FILLERS = [bytes(three) for three in islice(product(range(0xF8, 0x100), repeat=3), 65)]


def mask(text: bytes, secrets: Collection[bytes]) -> tuple[bytes, bytes]:
    """`text` with its secrets hidden, and the end of it (raw) that may be the beginning of a secret.

    `text` is what was held of the last piece, and the new piece. However a log is cut into pieces, the result is the
    same; the longest of several secrets that begin in one place counts.
    """
    known = sorted(filter(None, set(secrets)))
    if not known:
        return text, b""
    held = _first_beginning(text, known, 0)
    done: list[bytes] = []
    position = 0
    for start, end in _matches(text, known):
        if held < position:
            held = _first_beginning(text, known, position)
        if held <= start:
            break
        done += [text[position:start], _MASK * (end - start)]
        position = end
    if held < position:
        held = _first_beginning(text, known, position)
    return b"".join([*done, text[position:held]]), text[held:]


def _matches(text: bytes, known: Sequence[bytes]) -> list[tuple[int, int]]:
    """Start and end of each secret: the leftmost one, the longest of those that begin there, then what follows it."""
    # the library would choose a table that takes minutes to make of a long secret
    automaton = BytesAhoCorasick([*known, *_FILLERS], MatchKind.LeftmostLongest, Implementation.ContiguousNFA)
    matches = automaton.find_matches_as_indexes(text)
    return [(start, end) for index, start, end in matches if index < len(known)]


def _first_beginning(text: bytes, known: Sequence[bytes], position: int) -> int:
    """The first place from `position` on from which the rest of `text` is a beginning, not the whole, of a secret; the
    end of `text` where there is none. `known` is sorted."""
    first_bytes = {secret[0] for secret in known}
    compared = 0
    for start in range(max(position, len(text) - max(map(len, known)) + 1), len(text)):
        if text[start] in first_bytes and _goes_on(text[start : start + _HEAD], known):
            compared += len(text) - start
            if compared > _MAX_COMPARED or _goes_on(text[start:], known):
                return start
    return len(text)


def _goes_on(beginning: bytes, known: Sequence[bytes]) -> bool:
    """Whether a secret begins so and is longer: sorted, the first of those follows the text directly."""
    at = bisect_left(known, beginning + b"\0")
    return at < len(known) and known[at].startswith(beginning)
