"""A personal access token ends when the day of its expiry begins, in UTC, by the application's clock."""

import datetime

import pytest

from tests.support.clock import MovedClock, shared_forge_with_clock
from tests.support.forge import Client, Forge, SharedForges

#: Of an expiry, counted from today, and whether the token still works.
DAYS = [(-1, False), (0, False), (1, True)]


@pytest.fixture
async def clocked(shared_forge: SharedForges) -> tuple[Forge, MovedClock]:
    return await shared_forge_with_clock(shared_forge)


async def _token(forge: Forge, clock: MovedClock, days: int) -> tuple[str, Client]:
    """Path and client of a new token that expires so many days from today."""
    user = await forge.user()
    made = await forge.root.post(
        f"/users/{user.id}/personal_access_tokens",
        {"name": "a", "scopes": ["api"], "expires_at": str(clock.today + datetime.timedelta(days))},
        expect=201,
    )
    client = Client(forge.session, forge.base, made.body["token"])
    return f"/personal_access_tokens/{made.body['id']}", client


@pytest.mark.parametrize(("days", "works"), DAYS)
async def test_a_token_works_until_its_day_of_expiry_begins(
    clocked: tuple[Forge, MovedClock], days: int, works: bool
) -> None:
    forge, clock = clocked
    path, client = await _token(forge, clock, days)
    assert (await client.get("/user")).status == (200 if works else 401)
    shown = (await forge.root.get(path)).body
    assert shown["active"] is works
    for state in ("active", "inactive"):
        listed = await forge.root.get(f"/personal_access_tokens?user_id={shown['user_id']}&state={state}")
        assert (shown["id"] in [token["id"] for token in listed.body]) is (works == (state == "active"))
    assert (await forge.root.post(f"{path}/rotate")).status == (200 if works else 400)


async def test_a_token_ends_with_the_first_moment_of_the_day(clocked: tuple[Forge, MovedClock]) -> None:
    forge, clock = clocked
    _, client = await _token(forge, clock, 1)
    clock.move(hours=23, minutes=59, seconds=59)
    assert (await client.get("/user")).status == 200
    clock.move(seconds=1)
    refused = await client.get("/user")
    assert (refused.status, refused.body["error_description"]) == (
        401,
        "Token is expired. You can either do re-authorization or token refresh.",
    )


async def test_a_rotated_token_lives_for_a_week(clocked: tuple[Forge, MovedClock]) -> None:
    forge, clock = clocked
    path, _ = await _token(forge, clock, 1)
    rotated = (await forge.root.post(f"{path}/rotate")).body
    assert rotated["expires_at"] == str(clock.today + datetime.timedelta(7))
    assert rotated["created_at"] == f"{clock.now:%Y-%m-%dT%H:%M:%S}.000Z"
