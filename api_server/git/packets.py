"""Lines of git's protocols (gitprotocol-common(5), "pkt-line Format")."""

FLUSH = b"0000"


def packet(line: bytes) -> bytes:
    """Return a line of at most 65,516 bytes with its length before it."""
    return b"%04x%s" % (len(line) + 4, line)
