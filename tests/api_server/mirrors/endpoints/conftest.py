"""A server that answers about mirrors without running them."""

import socket
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from api_server.outbound.outgoing import RESOLVER
from tests.support.forge import Forge, running_forge


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
    app[RESOLVER] = ExampleResolver()


@pytest.fixture(scope="session")
async def answering(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Forge]:
    """Its queue stands still; it calls no local addresses, and example.org resolves."""
    folder = tmp_path_factory.mktemp("answering")
    async with running_forge(new_database(), folder, resolve_examples, work=False) as running:
        yield running
