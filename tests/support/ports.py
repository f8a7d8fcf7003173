"""Ports for processes that take a while before they listen."""

import random
import socket

#: Below the ports of outgoing connections, which may take a free port at any time.
_RANGE = range(10_000, 32_000)


def free_port() -> int:
    """Return a port on which nothing listens, and that no outgoing connection will take."""
    choice = random.SystemRandom()
    while True:
        port = choice.choice(_RANGE)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def is_listened_on(port: int) -> bool:
    """Return whether a port of loopback accepts connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
