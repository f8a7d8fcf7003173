"""Servers that tests share: by their settings, with a limit, and none is stopped while it is used."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import forge as support
from tests.support.forge import Forge, SharedForges


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Settings of servers that have stopped; a server is its settings here."""
    ended: list[dict[str, Any]] = []

    @contextlib.asynccontextmanager
    async def running(_url: str, _folder: Path, **settings: Any) -> AsyncIterator[dict[str, Any]]:
        yield settings
        ended.append(settings)

    monkeypatch.setattr(support, "running_forge", running)
    return ended


@contextlib.contextmanager
def no_database() -> Iterator[str]:
    yield ""


async def test_a_server_runs_for_all_who_ask_for_its_settings(stopped: list[dict[str, Any]]) -> None:
    forges = SharedForges(no_database, Path, most=2)
    free = await forges(tier="free", work=False)
    assert await forges(tier="free") is free, "without background work, unless it is asked for"
    assert await forges(tier="free", work=True) is not free
    await forges.stop()
    assert stopped == [{"tier": "free", "work": False}, {"tier": "free", "work": True}]


async def test_the_least_recently_used_goes_but_none_that_is_used(stopped: list[dict[str, Any]]) -> None:
    forges = SharedForges(no_database, Path, most=2)
    first, second, _ = [await forges(number=number) for number in range(3)]
    assert stopped == [], "of one module"
    forges.release()
    assert await forges(number=0) is first
    await forges(number=3)
    assert [each["number"] for each in stopped] == [1, 2]
    assert await forges(number=1) is not second


async def test_settings_of_a_running_server_change_for_a_while(forge: Forge) -> None:
    before = forge.settings.variables_limit
    with forge.changed_settings(variables_limit=before + 1):
        assert forge.settings.variables_limit == before + 1
    assert forge.settings.variables_limit == before
    with pytest.raises(AssertionError, match="tier"), forge.changed_settings(tier="free"):
        """The server has to be started with it."""


async def test_settings_of_the_instance_change_for_a_while(forge: Forge) -> None:
    path = "/application/settings"
    before = (await forge.root.get(path)).body["default_projects_limit"]
    async with forge.instance_settings(default_projects_limit=7):
        assert (await forge.root.put(path, {"default_projects_limit": 8})).status == 200
    assert (await forge.root.get(path)).body["default_projects_limit"] == before
