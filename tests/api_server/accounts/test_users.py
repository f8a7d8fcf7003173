"""`/user` and `/users`: what everybody sees of users, and what administrators alone see and do."""

import asyncio
import functools
from typing import Any
from urllib.parse import quote

import gitlab
import pytest

from api_server.accounts import user_queries
from api_server.state.listing import Page
from api_server.web.routes import Role
from tests.support.forge import Forge, new_name

TEXT, FLAG, NUMBER, NOTHING, MOMENT, LIST = str, bool, int, type(None), "a moment", list
BASIC = {
    "id": NUMBER,
    "username": TEXT,
    "public_email": NOTHING,
    "name": TEXT,
    "state": TEXT,
    "locked": FLAG,
    "avatar_url": NOTHING,
    "web_url": TEXT,
}
FOR_EVERYBODY = BASIC | {
    "created_at": MOMENT,
    "bio": TEXT,
    "location": TEXT,
    "skype": TEXT,
    "linkedin": TEXT,
    "twitter": TEXT,
    "discord": TEXT,
    "website_url": TEXT,
    "organization": TEXT,
    "job_title": TEXT,
    "pronouns": NOTHING,
    "bot": FLAG,
    "work_information": NOTHING,
    "followers": NUMBER,
    "following": NUMBER,
    "is_followed": FLAG,
    "local_time": NOTHING,
}
FOR_ONESELF = FOR_EVERYBODY | {
    "last_sign_in_at": NOTHING,
    "confirmed_at": MOMENT,
    "last_activity_on": TEXT,
    "email": TEXT,
    "theme_id": NUMBER,
    "color_scheme_id": NUMBER,
    "projects_limit": NUMBER,
    "current_sign_in_at": NOTHING,
    "identities": LIST,
    "can_create_group": FLAG,
    "can_create_project": FLAG,
    "two_factor_enabled": FLAG,
    "external": FLAG,
    "private_profile": FLAG,
    "commit_email": TEXT,
    "shared_runners_minutes_limit": NOTHING,
    "extra_shared_runners_minutes_limit": NOTHING,
    "scim_identities": LIST,
}
FOR_ADMINISTRATORS = FOR_ONESELF | {
    "is_admin": FLAG,
    "note": NOTHING,
    "namespace_id": NUMBER,
    "created_by": dict,
    "email_reset_offered_at": NOTHING,
    "using_license_seat": FLAG,
    "is_auditor": FLAG,
    "provisioned_by_group_id": NOTHING,
    "enterprise_group_id": NOTHING,
    "enterprise_group_associated_at": NOTHING,
}
IN_DETAIL = FOR_ADMINISTRATORS | {
    "highest_role": NUMBER,
    "current_sign_in_ip": NOTHING,
    "last_sign_in_ip": NOTHING,
    "sign_in_count": NUMBER,
}


def types_of(body: dict[str, Any]) -> dict[str, Any]:
    return {
        key: MOMENT if key.endswith("_at") and isinstance(value, str) else type(value)
        for key, value in body.items()
    }


async def test_who_sees_which_keys_of_a_user(forge: Forge) -> None:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    shown = [
        ((await bob.api.get(f"/users?username={alice.username}")).body[0], BASIC),
        ((await bob.api.get(f"/users/{alice.id}")).body, FOR_EVERYBODY),
        ((await alice.api.get("/user")).body, FOR_ONESELF),
        ((await forge.root.get(f"/users?username={alice.username}")).body[0], FOR_ADMINISTRATORS),
        ((await forge.root.get(f"/users/{alice.id}")).body, IN_DETAIL),
    ]
    whole = shown[-1][0]
    for body, wanted in shown:
        assert list(body) == list(wanted)
        assert types_of(body) == wanted
        assert body == {key: whole[key] for key in body}
    assert set(types_of((await forge.root.get("/user")).body)) == set(FOR_ADMINISTRATORS)
    assert alice.email not in str(shown[1][0])


async def test_what_people_do_is_shown_as_one_line(forge: Forge) -> None:
    alice = await forge.user("alice", organization="Acme")

    async def told(**values: str) -> tuple[str, str | None]:
        body = (await forge.root.put(f"/users/{alice.id}", values)).body
        return body["job_title"], body["work_information"]

    assert await told(name="Alice") == ("", "Acme")
    assert await told(job_title="Engineer") == ("Engineer", "Engineer at Acme")
    assert await told(organization="") == ("Engineer", "Engineer")


async def test_the_greatest_role_is_shown_to_administrators(forge: Forge) -> None:
    alice = await forge.user("alice")
    for role in (Role.REPORTER, Role.MAINTAINER):
        await forge.project(members={role: alice})
    assert (await forge.root.get(f"/users/{alice.id}")).body["highest_role"] == 40


async def test_a_personal_namespace_is_called_what_its_user_is(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)

    async def namespace() -> dict[str, str]:
        return (await alice.api.get(f"/projects/{project['id']}")).body

    await forge.root.put(f"/users/{alice.id}", {"name": "Alice Second"})
    shown = await namespace()
    assert (shown["namespace"]["name"], shown["namespace"]["path"]) == ("Alice Second", alice.username)
    assert shown["name_with_namespace"] == f"Alice Second / {project['name']}"
    new = new_name("alice")
    await forge.root.put(f"/users/{alice.id}", {"name": "Alice Third", "username": new})
    shown = await namespace()
    assert (shown["namespace"]["name"], shown["path_with_namespace"]) == (
        "Alice Third",
        f"{new}/{project['path']}",
    )


async def test_groups_below_a_renamed_group_are_called_after_it(forge: Forge) -> None:
    top = await forge.group()
    below = await forge.group(parent_id=top["id"], name="Below")
    lowest = await forge.group(parent_id=below["id"], name="Lowest")
    await forge.root.put(f"/groups/{below['id']}", {"name": "Renamed"})
    names = [(await forge.root.get(f"/groups/{one['id']}")).body["full_name"] for one in (top, below, lowest)]
    assert names == [top["name"], f"{top['name']} / Renamed", f"{top['name']} / Renamed / Lowest"]


@pytest.mark.parametrize(
    "email", ["a b@example.org", "a@", "a.@example.org", "a@example..org", "ü@example.org"]
)
async def test_an_address_that_no_mail_reaches_is_refused_wherever_it_is_given(
    forge: Forge, email: str
) -> None:
    alice = await forge.user("alice")
    for answer in (
        await forge.root.put(f"/users/{alice.id}", {"email": email}),
        await forge.root.post(f"/users/{alice.id}/emails", {"email": email}),
    ):
        assert (answer.status, answer.body) == (400, {"message": {"email": ["is invalid"]}})


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


async def test_users_are_found_by_parts_of_their_names(forge: Forge) -> None:
    """From three characters on; what is shorter has to be all of a name. Nothing in it is a wildcard."""
    mark = new_name("zq").replace("-", "")
    first, second, short = [await forge.user(name) for name in (f"{mark}-one", f"{mark}-two", "short")]
    for person, name in ((first, f"Ünal {mark}_x"), (second, f"%{mark}"), (short, "Ø1")):
        await forge.root.put(f"/users/{person.id}", {"name": name})

    async def found(search: str) -> list[int]:
        answer = await first.api.get(f"/users?search={quote(search)}&sort=asc", expect=200)
        return [user["id"] for user in answer.body]

    assert await found(mark.upper()) == await found(mark[1:]) == [first.id, second.id]
    assert await found(f"{mark}-tw") == [second.id]
    assert await found("ünal " + mark[:3]) == [first.id]
    assert await found(f"{mark}_") == [first.id]
    assert await found(f"%{mark}") == [second.id]
    assert await found(mark[:2]) == []
    assert await found("ø1") == [short.id]

    def by_python_gitlab() -> list[int]:
        with gitlab.Gitlab(forge.base, private_token=first.token) as client:
            return [user.id for user in client.users.list(search=mark[1:], iterator=True, per_page=1)]

    assert await asyncio.to_thread(by_python_gitlab) == [second.id, first.id]


async def test_more_than_can_be_looked_up_is_found_too(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the list is read in its own order."""
    mark = new_name("zq").replace("-", "")
    people = [await forge.user(mark) for _ in range(3)]
    listed = functools.partial(
        user_queries.list_users,
        for_administrator=True,
        username=None,
        search=mark,
        active=False,
        blocked=False,
        bots=None,
    )
    by_ids = await listed(forge.database, Page())
    monkeypatch.setattr(user_queries.SEARCH, "find", lambda *_, **__: asyncio.sleep(0))
    in_order = await listed(forge.database, Page())
    assert by_ids == in_order
    assert (in_order.total, in_order.last_id) == (3, people[0].id)


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
    again = await forge.root.post(f"/users/{alice.id}/block")
    assert (again.status, again.body) == (201, None)
    assert (await forge.root.post(f"/users/{alice.id}/unblock")).body is True
    assert (await forge.root.post(f"/users/{alice.id}/unblock")).body is False
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
