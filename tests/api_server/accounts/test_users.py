"""`/user` and `/users`: what everybody sees of users, and what administrators alone see and do."""

import pytest

from tests.support.forge import Forge, new_name

#: What users tell of themselves to administrators only.
PRIVATE = {
    "confirmed_at",
    "last_activity_on",
    "email",
    "projects_limit",
    "can_create_group",
    "can_create_project",
    "two_factor_enabled",
    "external",
    "is_admin",
    "namespace_id",
}


async def test_private_fields_are_for_administrators_and_oneself(forge: Forge) -> None:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    own = (await alice.api.get("/user")).body
    by_root = (await forge.root.get(f"/users/{alice.id}")).body
    listed_for_root = (await forge.root.get(f"/users?username={alice.username}")).body
    assert own == by_root == listed_for_root[0]
    assert set(own) > PRIVATE
    by_bob = (await bob.api.get(f"/users/{alice.id}")).body
    assert (await bob.api.get(f"/users?username={alice.username}")).body == [by_bob]
    assert by_bob == {key: value for key, value in own.items() if key not in PRIVATE}
    assert alice.email not in str(by_bob)


async def test_private_addresses_are_found_by_administrators_only(forge: Forge) -> None:
    """Decision D11: nobody else learns whose an address is, or that it is anybody's."""
    alice, bob = (
        await forge.user("alice", public_email=f"{new_name('public')}@example.org"),
        await forge.user("bob"),
    )
    public = (await bob.api.get(f"/users/{alice.id}")).body["public_email"]

    async def found(search: str) -> dict[str, list[int]]:
        answers = {"root": await forge.root.get(f"/users?search={search}")}
        answers["bob"] = await bob.api.get(f"/users?search={search}")
        return {name: [user["id"] for user in answer.body] for name, answer in answers.items()}

    assert await found(alice.email.upper()) == {"root": [alice.id], "bob": []}
    assert await found(public.upper()) == {"root": [alice.id], "bob": [alice.id]}
    assert await found(alice.username) == {"root": [alice.id], "bob": [alice.id]}
    assert await found(alice.email[:-1]) == {"root": [], "bob": []}


async def test_the_list_can_be_narrowed_to_the_active_or_the_blocked(forge: Forge) -> None:
    name = new_name("Somebody")
    active, blocked = await forge.user(), await forge.user()
    for person in (active, blocked):
        await forge.root.put(f"/users/{person.id}", {"name": name})
    assert (await forge.root.post(f"/users/{blocked.id}/block")).body is True

    async def found(query: str) -> set[int]:
        return {user["id"] for user in (await forge.root.get(f"/users?search={name}&{query}")).body}

    assert await found("") == {active.id, blocked.id}
    assert await found("active=true") == {active.id}
    assert await found("blocked=true") == {blocked.id}


async def test_a_blocked_user_has_no_tokens_that_work(forge: Forge) -> None:
    alice = await forge.user("alice")
    await forge.root.post(f"/users/{alice.id}/block")
    refused = await alice.api.get("/user")
    assert (refused.status, refused.body) == (
        403,
        {"message": "403 Forbidden - Your account has been blocked."},
    )
    assert (await forge.root.post(f"/users/{alice.id}/unblock")).body is True
    assert (await alice.api.get("/user")).status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("DELETE", ""), ("POST", "/block"), ("POST", "/unblock"), ("PUT", "")],
)
async def test_accounts_are_changed_by_administrators_and_nobody_removes_herself(
    forge: Forge, method: str, path: str
) -> None:
    alice, root = await forge.user("alice"), (await forge.root.get("/user")).body["id"]
    assert (await alice.api.request(method, f"/users/{alice.id}{path}")).status == 403
    assert (await forge.anonymous.request(method, f"/users/{alice.id}{path}")).status == 401
    missing = await forge.root.request(method, f"/users/999999999{path}")
    assert (missing.status, missing.body) == (404, {"message": "404 User Not Found"})
    if (method, path) in (("DELETE", ""), ("POST", "/block")):
        verb = "delete" if method == "DELETE" else "block"
        refused = await forge.root.request(method, f"/users/{root}{path}")
        assert (refused.status, refused.body) == (
            403,
            {"message": f"403 Forbidden - You cannot {verb} yourself"},
        )
