"""The ports that `up` takes for its servers: it holds the sockets for as long as it runs, and the servers inherit them.

So a free port stays ours from the moment that it is known, and whoever answers there is a process that we have started.
"""

import contextlib
import socket

import attrs

from forgelet.local.processes import CannotStart
from forgelet.local.variables import Addresses


@attrs.frozen
class Ports:
    """Both sockets, without the edge's where there is none."""

    wanted: Addresses
    api: socket.socket
    edge: socket.socket | None

    @property
    def addresses(self) -> Addresses:
        """With the ports that there really are."""
        edge_port = None if self.edge is None else _port(self.edge)
        return attrs.evolve(self.wanted, api_port=_port(self.api), edge_port=edge_port)

    def close(self) -> None:
        for one in filter(None, (self.api, self.edge)):
            one.close()


def take(wanted: Addresses) -> Ports:
    """The sockets at `wanted`, where a port 0 is any free one. Raises `CannotStart` for a port that another process
    listens on, or that this account may not listen on."""
    if wanted.api_port == wanted.edge_port != 0:
        raise CannotStart(
            f"--api-port and --edge-port are both {wanted.api_port}; choose two different ports"
        )
    with contextlib.ExitStack() as taken:
        api = taken.enter_context(_bound(wanted.host, wanted.api_port, "--api-port"))
        edge = None
        if wanted.edge_port is not None:
            edge = taken.enter_context(_bound(wanted.host, wanted.edge_port, "--edge-port"))
        taken.pop_all()
        return Ports(wanted, api, edge)


def _bound(host: str, port: int, option: str) -> socket.socket:
    """Not listened on: whoever is too early is refused, as where there is nobody."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        one.bind((host, port))
    except OSError as problem:
        one.close()
        raise CannotStart(
            f"Port {port} of {host} cannot be used ({problem.strerror}); choose another {option}"
        ) from None
    return one


def _port(one: socket.socket) -> int:
    return int(one.getsockname()[1])
