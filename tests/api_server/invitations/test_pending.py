"""Endpoints 32-34: listing, changing and deleting invitations that nobody has answered (decision D8)."""

import re
from typing import Any
from urllib.parse import quote

import pytest

from api_server.invitations import queries
from api_server.state.database import Transaction
from tests.support.forge import Forge, new_name
from tests.support.invitations import KINDS, invite, invited_to, new_address, source_of


async def test_listing(forge: Forge) -> None:
    """Oldest first; of exactly this source; `query` is the whole address; pages of both kinds."""
    group = await forge.group()
    above = f"/groups/{group['id']}"
    source = await source_of(forge, "projects", namespace_id=group["id"])
    await invite(forge.root, above, email=new_address())
    addresses = [new_address() for _ in range(3)]
    for address in addresses:
        await invite(forge.root, source, email=address)
    assert await invited_to(forge.root, source) == addresses

    async def listed(query: str) -> list[str]:
        answer = await forge.root.get(f"{source}/invitations?{query}")
        return [invitation["invite_email"] for invitation in answer.body]

    assert await listed(f"query={quote(addresses[1].upper())}") == [addresses[1]]
    assert await listed(f"query={quote(addresses[1][:-1])}") == []
    assert await listed("query=") == addresses
    assert await listed("per_page=2&page=2") == addresses[2:]
    first = await forge.root.get(f"{source}/invitations?pagination=keyset&per_page=2")
    following = re.search(r"<([^>]+)>", first.headers["Link"])
    assert following
    assert [i["invite_email"] for i in (await forge.root.get(following[1])).body] == addresses[2:]


async def test_who_has_come_is_not_listed(forge: Forge) -> None:
    source, person = await source_of(forge, "groups"), await forge.user()
    await invite(forge.root, source, email=person.email)
    assert await invited_to(forge.root, source) == []


async def test_tokens_are_never_shown(forge: Forge) -> None:
    """D8: GitLab's `invite_token` is not in the answer."""
    source = await source_of(forge, "projects")
    await invite(forge.root, source, email=new_address())
    answer = await forge.root.get(f"{source}/invitations")
    assert "token" not in str(answer.body)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"access_level": 40}, {"access_level": 40, "expires_at": "2999-01-01T00:00:00.000Z"}),
        ({}, {"access_level": 30, "expires_at": "2999-01-01T00:00:00.000Z"}),
        (
            {"expires_at": "2999-02-03T10:11:12Z"},
            {"access_level": 30, "expires_at": "2999-02-03T00:00:00.000Z"},
        ),
        ({"expires_at": None, "access_level": 20}, {"access_level": 20, "expires_at": None}),
        ({"expires_at": "", "access_level": 20}, {"access_level": 20, "expires_at": None}),
    ],
)
async def test_changing_an_invitation(forge: Forge, values: dict[str, Any], expected: Any) -> None:
    """D8: a level that is not given is 30; null ends the expiry; a date that is not sent stays."""
    source, address = await source_of(forge, "projects"), new_address()
    await invite(forge.root, source, email=address, access_level=20, expires_at="2999-01-01")
    answer = await forge.root.put(f"{source}/invitations/{quote(address)}", values)
    assert (answer.status, answer.body) == (200, expected)
    listed = (await forge.root.get(f"{source}/invitations")).body[0]
    assert {key: listed[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("values", "body"),
    [
        ({"access_level": 7}, {"error": "access_level does not have a valid value"}),
        ({"access_level": 0}, {"message": {"access_level": ["is not included in the list"]}}),
        ({"expires_at": "2020-01-01"}, {"message": {"expires_at": ["cannot be a date in the past"]}}),
    ],
)
async def test_changes_that_cannot_be(forge: Forge, values: dict[str, Any], body: Any) -> None:
    source, address = await source_of(forge, "projects"), new_address()
    await invite(forge.root, source, email=address)
    answer = await forge.root.put(f"{source}/invitations/{quote(address)}", values)
    assert (answer.status, answer.body) == (400, body)


async def test_odd_addresses_are_found_in_the_path(forge: Forge) -> None:
    """`+`, dots, `%` and other spellings; what is not there is 404."""
    source = await source_of(forge, "projects")
    for address in (f"a.b+c-{new_name('x')}@sub.example.org", f"100%25{new_name('x')}@example.org"):
        await invite(forge.root, source, email=address)
        path = f"{source}/invitations/{quote(address.upper(), safe='')}"
        assert (await forge.root.put(path, {"access_level": 40})).status == 200
        gone = await forge.root.delete(path)
        assert (gone.status, gone.body) == (204, "")
        for method in ("PUT", "DELETE"):
            missing = await forge.root.request(method, path)
            assert (missing.status, missing.body) == (404, {"message": "404 Not Found"})


async def test_one_sources_invitation_is_not_anothers(forge: Forge) -> None:
    group = await forge.group()
    project = await source_of(forge, "projects", namespace_id=group["id"])
    address = new_address()
    await invite(forge.root, f"/groups/{group['id']}", email=address)
    assert (await forge.root.delete(f"{project}/invitations/{quote(address)}")).status == 404
    assert await invited_to(forge.root, f"/groups/{group['id']}") == [address]


@pytest.mark.parametrize("kind", KINDS)
async def test_deleting_without_an_address_deletes_nothing(forge: Forge, kind: str) -> None:
    """What python-gitlab sends for an invitation that it has listed."""
    source, address = await source_of(forge, kind), new_address()
    await invite(forge.root, source, email=address)
    for method in ("PUT", "DELETE"):
        answer = await forge.root.request(method, f"{source}/invitations")
        assert answer.status == 405
    assert await invited_to(forge.root, source) == [address]


async def test_an_invitation_that_somebody_else_holds_is_a_conflict(
    forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of endpoint 34: 409 where the request is right and deleting fails. The invitation stays as it was."""
    lock = queries.lock_by_email

    async def lock_at_once(transaction: Transaction, email: str, **place: int | None) -> Any:
        await transaction.run("SET LOCAL lock_timeout = 20")
        return await lock(transaction, email, **place)

    monkeypatch.setattr(queries, "lock_by_email", lock_at_once)
    source, address = await source_of(forge, "projects"), new_address()
    await invite(forge.root, source, email=address)
    path = f"{source}/invitations/{quote(address)}"
    async with forge.database.transaction() as holder:
        await holder.row("SELECT id FROM invitations WHERE email = %(email)s FOR UPDATE", email=address)
        for method in ("DELETE", "PUT"):
            answer = await forge.root.request(method, path)
            assert (answer.status, answer.body) == (409, {"message": "409 Conflict: Resource lock"})
    assert await invited_to(forge.root, source) == [address]
    assert (await forge.root.delete(path)).status == 204
