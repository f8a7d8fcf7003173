"""`/version` and `/metadata`."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.forge import Forge


@pytest.mark.parametrize("path", ["/version", "/metadata"])
async def test_the_version_has_three_parts_and_is_for_who_is_signed_in(forge: Forge, path: str) -> None:
    assert (await forge.anonymous.get(path)).status == 401
    shown = await forge.root.get(path)
    assert shown.status == 200
    assert len(shown.body["version"].split(".")) == 3
    assert shown.body == {
        "version": shown.body["version"],
        "revision": f"v{shown.body['version']}",
        "kas": {"enabled": False, "externalUrl": None, "externalK8sProxyUrl": None, "version": None},
        "enterprise": True,
    }


async def test_the_free_tier_is_no_enterprise(new_forge: Callable[..., Any]) -> None:
    async with new_forge(tier="free") as forge:
        assert (await forge.root.get("/version")).body["enterprise"] is False
