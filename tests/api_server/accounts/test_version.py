"""`/version` and `/metadata`."""

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from api_server.settings import Settings
from tests.support.forge import Forge, SharedForges


@pytest.mark.parametrize("path", ["/version", "/metadata"])
async def test_the_version_is_the_dialect_and_is_for_who_is_signed_in(forge: Forge, path: str) -> None:
    assert (await forge.anonymous.get(path)).status == 401
    shown = await forge.root.get(path, expect=200)
    assert shown.body == {
        "version": "17.11.0",
        "revision": f"forgelet {metadata.version('forgelet')}",
        "kas": {"enabled": False, "externalUrl": None, "externalK8sProxyUrl": None, "version": None},
        "enterprise": True,
    }


async def test_the_free_tier_is_no_enterprise(shared_forge: SharedForges) -> None:
    forge = await shared_forge(tier="free")
    assert (await forge.root.get("/version")).body["enterprise"] is False


@pytest.mark.parametrize(
    ("given", "shown"),
    [("17.11", "17.11.0"), ("18.0.2", "18.0.2"), ("16.9-ee", "16.9.0-ee"), ("18.5.1-pre", "18.5.1-pre")],
)
def test_the_version_has_three_numbers(tmp_path: Path, given: str, shown: str) -> None:
    """Scripts and clients split and compare it."""
    settings = Settings(database_url="postgresql:///", data_dir=tmp_path, gitlab_version=given)
    assert settings.dialect == shown


async def test_the_version_is_the_one_that_is_asked_for(new_forge: Callable[..., Any]) -> None:
    async with new_forge(gitlab_version="18.2") as forge:
        assert (await forge.root.get("/metadata")).body["version"] == "18.2.0"
