"""`/version` and `/metadata`."""

from collections.abc import Callable
from importlib import metadata
from typing import Any

import pytest

from api_server.accounts.version import DIALECT
from tests.support.forge import Forge


@pytest.mark.parametrize("path", ["/version", "/metadata"])
async def test_the_version_is_the_dialect_and_is_for_who_is_signed_in(forge: Forge, path: str) -> None:
    assert (await forge.anonymous.get(path)).status == 401
    shown = await forge.root.get(path)
    assert shown.status == 200
    assert shown.body == {
        "version": DIALECT,
        "revision": f"forgelet {metadata.version('forgelet')}",
        "kas": {"enabled": False, "externalUrl": None, "externalK8sProxyUrl": None, "version": None},
        "enterprise": True,
    }


async def test_the_free_tier_is_no_enterprise(new_forge: Callable[..., Any]) -> None:
    async with new_forge(tier="free") as forge:
        assert (await forge.root.get("/version")).body["enterprise"] is False


def test_the_dialect_is_a_version_in_three_parts() -> None:
    """Scripts and clients split and compare it."""
    assert [part.isdecimal() for part in DIALECT.split(".")] == [True] * 3
