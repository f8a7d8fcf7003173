"""Many clients that read the same object at once, and cost next to nothing themselves."""

import select
import socket
import time

LONGEST = 300.0  # seconds
_PIECE = 1 << 20


def read(port: int, path: str, clients: int, length: int) -> None:
    """All of them read a body of so many bytes to its end; raises `RuntimeError` where one of them does not."""
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    connections = {}
    poller = select.epoll()
    try:
        for _ in range(clients):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(head)
            connection.setblocking(False)
            connections[connection.fileno()] = connection
            poller.register(connection, select.EPOLLIN)
        received = dict.fromkeys(connections, 0)
        _drain(poller, connections, received)
    finally:
        poller.close()
        for connection in connections.values():
            connection.close()
    if not all(length < count < length + 4096 for count in received.values()):  # with the head
        raise RuntimeError(f"Between {min(received.values())} and {max(received.values())} bytes have come.")


def _drain(poller: select.epoll, connections: dict[int, socket.socket], received: dict[int, int]) -> None:
    """The kernel throws the bytes away (MSG_TRUNC): nothing is copied."""
    nowhere, left, deadline = bytearray(_PIECE), len(connections), time.monotonic() + LONGEST
    while left:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{left} clients are not served after {LONGEST:.0f} s.")
        for number, _ in poller.poll(1):
            try:
                count = connections[number].recv_into(nowhere, _PIECE, socket.MSG_TRUNC)
            except BlockingIOError:
                continue
            received[number] += count
            if count == 0:
                poller.unregister(number)
                left -= 1
