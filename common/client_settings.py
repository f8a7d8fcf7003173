"""Settings of both processes about their clients: timeouts, limits, and who may see metrics."""

from typing import ClassVar

import typed_settings
from typed_settings import option

from common.settings import count, network, number, other_than, port, timeout


@typed_settings.settings(frozen=True, kw_only=True)
class ClientSettings:
    """The settings about clients, which have the same names in both processes."""

    #: The settings that SIGHUP changes in a running process, because they are read where they are used. The others
    #: need a restart.
    reloaded: ClassVar[frozenset[str]] = frozenset(
        {
            "header_timeout",
            "body_timeout",
            "send_timeout",
            "keepalive_timeout",
            "shutdown_timeout",
            "max_connections",
            "max_connections_per_address",
            "operations_networks",
        }
    )

    header_timeout: float = option(
        default=20.0, metadata=timeout(), help="seconds that a client may take to send the head of a request"
    )
    body_timeout: float = option(
        default=30.0,
        metadata=timeout(),
        help="seconds in which a request's body must bring 64 KiB or end",
    )
    send_timeout: float = option(
        default=60.0,
        metadata=timeout(),
        help="seconds in which a client must read some of the answer",
    )
    keepalive_timeout: float = option(
        default=75.0, metadata=timeout(), help="seconds that an idle client connection stays open"
    )
    shutdown_timeout: float = option(
        default=30.0,
        metadata=timeout(0.0),
        help="seconds that running requests and background work may take after SIGTERM, all together",
    )
    max_header_bytes: int = option(
        default=8190, metadata=number(1024, 2**20), help="longest request line and header line, in bytes"
    )
    max_headers: int = option(
        default=100, metadata=number(16, 10_000), help="maximum number of header lines in a request"
    )

    max_connections: int = option(
        default=4096,
        metadata=count(),
        help="maximum number of client connections, if the system's limit of open files allows it",
    )
    max_connections_per_address: int = option(
        default=1024,
        metadata=count(),
        help="maximum number of connections from one client address (IPv6: one /64), except trusted proxies",
    )
    trusted_proxies: list[str] = option(
        factory=list,
        metadata=network(),
        help="addresses and networks of proxies whose X-Forwarded-For is used as the client's address",
    )

    listen_fd: int = option(
        default=0,
        metadata=number(0, 65535),
        help="number of an open socket to listen on instead of host and port, passed by a supervisor; 0 is none",
    )
    operations_port: int = option(
        default=0,
        metadata=port(0) | other_than("port"),
        help="separate port for /-/readiness and /-/metrics; 0 is the public port",
    )
    operations_networks: list[str] = option(
        factory=list,
        metadata=network(),
        help="addresses and networks that may read /-/readiness and /-/metrics; default: loopback, private and "
        "link-local addresses",
    )
