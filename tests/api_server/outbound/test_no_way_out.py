"""The suite's own promise: it needs no network, and none changes what it says."""

import aiohttp
import pytest


async def test_what_tests_send_to_other_machines_is_lost() -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ConnectionTimeoutError):
            await session.get("http://203.0.113.7/", timeout=aiohttp.ClientTimeout(sock_connect=0.2))
