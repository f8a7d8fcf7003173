"""Pieces of a body in memory read like one."""

from hypothesis import given
from hypothesis import strategies as st

from storage_edge.storage.spool import SMALL, Gathered

PIECES = st.lists(st.sampled_from([1, 2, 100, SMALL - 1, SMALL, SMALL + 1, 3 * SMALL]), max_size=12)


@given(PIECES, st.data())
def test_what_came_is_read_from_anywhere(sizes: list[int], data: st.DataObject) -> None:
    gathered, whole = Gathered(), b""
    for number, size in enumerate(sizes):
        piece = bytes([number]) * size
        whole += piece
        gathered.add(piece)
        offset = data.draw(st.integers(0, len(whole) - 1))
        read = gathered.read(offset, data.draw(st.integers(1, 2 * SMALL)))
        assert read
        assert bytes(read) == whole[offset : offset + len(read)]
    assert b"".join(gathered.pieces) == whole
    if data.draw(st.booleans()):
        gathered.add(b"end")
        whole += b"end"
    assert gathered.whole() == whole
    assert gathered.whole() is gathered.whole()
    if whole:
        assert bytes(gathered.read(0, len(whole))) == whole


@given(st.integers(1, 5000))
def test_what_drips_is_few_pieces(count: int) -> None:
    gathered = Gathered()
    for _ in range(count):
        gathered.add(b"x" * 7)
    assert len(gathered.pieces) <= 1 + 7 * count // (SMALL - 7)


def test_a_body_that_came_at_once_is_not_copied() -> None:
    gathered, piece = Gathered(), bytes(SMALL)
    gathered.add(piece)
    assert gathered.whole() is piece
