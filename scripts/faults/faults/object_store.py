"""An S3 that is slow, gone, or refuses."""

import asyncio
from random import Random

from scripts.faults.ground import Ground

_SLOW_DOWN = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\nContent-Length: 91\r\n\r\n"
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>    "
)
_FORBIDDEN = (
    b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\nConnection: close\r\nContent-Length: 73\r\n\r\n"
    b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error> "
)


async def slow(ground: Ground, random: Random) -> None:
    """Each piece of a conversation with it takes its time."""
    assert ground.object_store is not None
    ground.object_store.delay = random.uniform(0.1, 1.0)
    await asyncio.sleep(random.uniform(2, 5))
    ground.object_store.delay = 0.0


async def gone(ground: Ground, random: Random) -> None:
    """Its connections are reset, and new ones end at once."""
    assert ground.object_store is not None
    ground.object_store.refusing = True
    ground.object_store.drop()
    await asyncio.sleep(random.uniform(1, 4))
    ground.object_store.refusing = False


async def refuses(ground: Ground, random: Random) -> None:
    """It answers 503 Slow Down, or 403."""
    assert ground.object_store is not None
    ground.object_store.instead = random.choice((_SLOW_DOWN, _FORBIDDEN))
    await asyncio.sleep(random.uniform(1, 4))
    ground.object_store.instead = b""
    ground.object_store.drop()
