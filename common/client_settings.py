"""Settings of both processes about those who connect to them: how long, how many, and who may watch."""

from typing import ClassVar

import typed_settings
from typed_settings import option

from common.settings import count, network, number, other_than, port, timeout


@typed_settings.settings(frozen=True, kw_only=True)
class ClientSettings:
    """What a process puts up with from its clients; `header_timeout` and so on are called the same in both."""

    #: What SIGHUP changes in a running process: fields that are read where they are used. The others wait for a start.
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
        help="seconds in which a request's body has to bring 64 KiB, or its end",
    )
    send_timeout: float = option(
        default=60.0,
        metadata=timeout(),
        help="seconds in which a client has to take something of what is sent to it",
    )
    keepalive_timeout: float = option(
        default=75.0, metadata=timeout(), help="seconds that an idle client connection stays open"
    )
    shutdown_timeout: float = option(
        default=30.0,
        metadata=timeout(0.0),
        help="seconds that requests and background work in flight may take after SIGTERM, all together",
    )
    max_header_bytes: int = option(
        default=8190, metadata=number(1024, 2**20), help="longest request line and header line"
    )
    max_headers: int = option(default=100, metadata=number(16, 10_000), help="most header lines of a request")

    max_connections: int = option(
        default=4096,
        metadata=count(),
        help="most connections of clients, as far as the system's limit of open files allows",
    )
    max_connections_per_address: int = option(
        default=1024,
        metadata=count(),
        help="most connections of one client address (IPv6: of one /64), but of trusted proxies",
    )
    trusted_proxies: list[str] = option(
        factory=list,
        metadata=network(),
        help="addresses and networks of proxies whose X-Forwarded-For tells the client's address",
    )

    listen_fd: int = option(
        default=0,
        metadata=number(0, 65535),
        help="number of an open socket that is listened on in place of host and port, as a supervisor hands it over; "
        "0 is none",
    )
    operations_port: int = option(
        default=0,
        metadata=port(0) | other_than("port"),
        help="port of its own for /-/readiness and /-/metrics; 0 is the public one",
    )
    operations_networks: list[str] = option(
        factory=list,
        metadata=network(),
        help="addresses and networks that may ask for /-/readiness and /-/metrics; "
        "default: loopback, private and link-local ones",
    )
