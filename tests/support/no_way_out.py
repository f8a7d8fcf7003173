"""A block of all connections from the tests' own process to other machines, so that tests do not depend on the
network."""

import asyncio
import ipaddress
import socket
from typing import Any

import aiohappyeyeballs
import pytest

_start_connection = aiohappyeyeballs.start_connection


async def _connect_here(addr_infos: Any, **options: Any) -> socket.socket:
    if any(_is_elsewhere(address[0]) for *_, address in addr_infos):
        await asyncio.Event().wait()
    return await _start_connection(addr_infos, **options)


def _is_elsewhere(host: str) -> bool:
    """Return whether the address is on the internet or reserved for examples (RFC 5737). Networks answer such
    addresses differently: some refuse, some answer every request with a page."""
    address = ipaddress.ip_address(host)
    return not (address.is_loopback or address.is_unspecified)


@pytest.fixture(scope="session", autouse=True)
def nothing_leaves() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aiohappyeyeballs, "start_connection", _connect_here)
        yield
