"""How often users may ask the API, once administrators bound it."""

import asyncio
import datetime
from collections.abc import Callable
from pathlib import Path

import gitlab
import pytest

from tests.support.clock import forge_with_clock

PATH = "/application/settings"


def throttled(requests: int, seconds: int) -> dict[str, object]:
    return {
        "throttle_authenticated_api_enabled": True,
        "throttle_authenticated_api_requests_per_period": requests,
        "throttle_authenticated_api_period_in_seconds": seconds,
    }


async def test_each_user_has_her_share_of_each_period(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    async with forge_with_clock(new_database(), tmp_path) as (forge, clock):
        alice, bob = await forge.user("alice"), await forge.user("bob")
        clock.move(seconds=60 - clock().timestamp() % 60)  # to the begin of a period
        assert (await forge.root.put(PATH, throttled(2, 60))).status == 200
        assert [(await alice.api.get("/user")).status for _ in range(2)] == [200, 200]
        clock.move(seconds=15.5)
        refused = await alice.api.get("/projects")
        assert (refused.status, refused.body) == (429, "Retry later\n")
        reset = int(clock().timestamp() // 60 + 1) * 60
        told = {name: refused.headers[name] for name in refused.headers if name.startswith("RateLimit")}
        assert told | {"Retry-After": refused.headers["Retry-After"]} == {
            "Retry-After": "45",
            "RateLimit-Limit": "2",
            "RateLimit-Name": "throttle_authenticated_api",
            "RateLimit-Observed": "3",
            "RateLimit-Remaining": "0",
            "RateLimit-Reset": str(reset),
            "RateLimit-ResetTime": f"{datetime.datetime.fromtimestamp(reset, datetime.UTC):%a, %d %b %Y %H:%M:%S} GMT",
        }
        await asyncio.to_thread(refused_to_python_gitlab, forge.base, alice.token)
        assert (await bob.api.get("/user")).status == 200
        clock.move(seconds=45)
        assert (await alice.api.get("/user")).status == 200


async def test_administrators_can_always_set_it_higher(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    async with forge_with_clock(new_database(), tmp_path) as (forge, _clock):
        alice = await forge.user("alice")
        assert (await forge.root.put(PATH, throttled(1, 86_400))).status == 200
        assert [(await forge.root.get("/user")).status for _ in range(2)] == [200, 429]
        assert [(await alice.api.get(PATH)).status for _ in range(2)] == [403, 429], "for administrators only"
        assert (await forge.root.get(PATH)).status == 200
        assert (await forge.root.put(PATH, throttled(9, 86_400))).status == 200
        assert (await forge.root.get("/user")).status == 200


def refused_to_python_gitlab(base: str, token: str) -> None:
    with gitlab.Gitlab(base, private_token=token) as client, pytest.raises(gitlab.GitlabHttpError) as refused:
        client.http_get("/user", obey_rate_limit=False)
    assert (refused.value.response_code, str(refused.value)) == (429, "429: Retry later\n")
