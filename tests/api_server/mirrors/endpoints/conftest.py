"""A server that answers about mirrors without running them."""

import socket

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from api_server.outbound.client import RESOLVER
from api_server.web.context import SERVICES
from tests.support.forge import Forge, SharedForges


class ExampleResolver(AbstractResolver):
    """Knows *.example.org (a documentation address, or one that a name begins with: `10-0-0-1.example.org`)."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        if not host.endswith(".example.org"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        first = host.partition(".")[0].replace("-", ".")
        address = first if first[0].isdigit() else "192.0.2.10"
        family = socket.AF_INET
        return [ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)]

    async def close(self) -> None:
        """Nothing is open."""


def resolve_examples(app: web.Application) -> None:
    app[SERVICES][RESOLVER] = ExampleResolver()


@pytest.fixture(scope="module")
async def answering(shared_forge: SharedForges) -> Forge:
    """Its queue stands still; it calls no local addresses, and example.org resolves."""
    return await shared_forge(change_app=resolve_examples)
