"""Users, how everybody and administrators see them, their e-mail addresses, and custom roles."""

import asyncio
import functools
from typing import Any
from urllib.parse import quote

import gitlab
import pytest

from api_server.accounts import member_role_queries, user_queries
from api_server.state.listing import Page
from api_server.web.routes import Role
from tests.support.browser import PASSWORD, browsing
from tests.support.forge import Client, Forge, new_name
from tests.support.invitations import KINDS, invite, new_address, page_of, source_of
from tests.support.waiting import until_somebody_waits

MOMENT = "a moment"
TYPES = {
    "text": str, "flag": bool, "number": int, "none": type(None), "moment": MOMENT, "list": list, "object": dict,
}  # fmt: skip


def _types(names: str) -> dict[str, Any]:
    """Return the names with the types of their values, in this order."""
    return {name: TYPES[kind] for name, kind in (each.split(":") for each in names.split())}


BASIC = _types("""
    id:number username:text public_email:none name:text state:text locked:flag avatar_url:none
    web_url:text
""")
FOR_EVERYBODY = BASIC | _types("""
    created_at:moment bio:text location:text skype:text linkedin:text twitter:text discord:text
    website_url:text organization:text job_title:text pronouns:none bot:flag work_information:none
    followers:number following:number is_followed:flag local_time:none
""")
FOR_ONESELF = FOR_EVERYBODY | _types("""
    last_sign_in_at:none confirmed_at:moment last_activity_on:text email:text theme_id:number
    color_scheme_id:number projects_limit:number current_sign_in_at:none identities:list
    can_create_group:flag can_create_project:flag two_factor_enabled:flag external:flag
    private_profile:flag commit_email:text shared_runners_minutes_limit:none
    extra_shared_runners_minutes_limit:none scim_identities:list
""")
FOR_ADMINISTRATORS = FOR_ONESELF | _types("""
    is_admin:flag note:none namespace_id:number created_by:object email_reset_offered_at:none
    using_license_seat:flag is_auditor:flag provisioned_by_group_id:none enterprise_group_id:none
    enterprise_group_associated_at:none
""")
IN_DETAIL = FOR_ADMINISTRATORS | _types("""
    highest_role:number current_sign_in_ip:none last_sign_in_ip:none sign_in_count:number
""")


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
    """Decision D11: other users learn neither whose an address is, nor whether it belongs to anybody."""
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
    """Parts of a name have at least three characters; a shorter text has to be the whole name. No character is a
    wildcard."""
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
    """If the search matches more users than can be looked up, the list is read in its own order, with the same
    result."""
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
        await forge.root.put(f"/users/{person.id}", {"name": name, "external": person is blocked})
    assert (await forge.root.post(f"/users/{blocked.id}/block")).body is True

    async def found(query: str, by: Client = forge.root) -> set[int]:
        return {user["id"] for user in (await by.get(f"/users?search={name}&{query}")).body}

    assert await found("") == {active.id, blocked.id}
    assert await found("active=true") == {active.id}
    assert await found("blocked=true") == {blocked.id}
    assert await found("exclude_active=true") == {blocked.id}
    assert await found("exclude_external=true") == {active.id}
    assert await found("external=true", active.api) == {blocked.id}
    for only_administrators in ("admins=true", "created_after=2100-01-01", "created_before=2000-01-01"):
        assert await found(only_administrators) == set()
        assert await found(only_administrators, active.api) == {active.id, blocked.id}


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


TAKEN = {"message": {"email": ["has already been taken"]}}


def _address() -> str:
    return f"{new_name('second')}@example.org"


async def _events(forge: Forge, user_id: int) -> list[tuple[str, str, str]]:
    answer = await forge.root.get(
        f"/audit_events?entity_type=User&entity_id={user_id}&target_type=Email&sort=asc"
    )
    details = [event["details"] for event in answer.body]
    return [(event["event_name"], event["custom_message"], event["target_details"]) for event in details]


async def test_an_own_address_is_added_unconfirmed_shown_and_removed(forge: Forge) -> None:
    alice, address = await forge.user("alice"), _address()
    made = await alice.api.post("/user/emails", {"email": address}, expect=201)
    assert made.body == {"id": made.body["id"], "email": address, "confirmed_at": None}
    path = f"/user/emails/{made.body['id']}"
    assert (await alice.api.get(path)).body == made.body
    assert (await alice.api.get("/user/emails")).body == [made.body], (
        "the account's own address is not among them"
    )
    assert (await alice.api.delete(path)).status == 204
    gone = await alice.api.get(path)
    assert (gone.status, gone.body) == (404, {"message": "404 Email Not Found"})
    assert (await alice.api.delete(path)).body == {"message": "404 Email Not Found"}
    assert await _events(forge, alice.id) == [
        ("email_created", "Added email address", address),
        ("email_destroyed", "Removed email address", address),
    ]


async def test_an_administrator_adds_confirmed_ones_for_others(forge: Forge) -> None:
    alice, address = await forge.user("alice"), _address()
    path = f"/users/{alice.id}/emails"
    made = await forge.root.post(path, {"email": address, "skip_confirmation": True})
    assert (made.status, made.body["confirmed_at"] is not None) == (201, True)
    unconfirmed = await forge.root.post(path, {"email": _address()})
    assert unconfirmed.body["confirmed_at"] is None
    assert (await forge.root.get(path)).body == [made.body, unconfirmed.body]
    assert (await forge.root.delete(f"{path}/{made.body['id']}")).status == 204
    assert (await forge.root.get(path)).body == [unconfirmed.body]


async def test_others_addresses_are_for_administrators_only(forge: Forge) -> None:
    alice, mallory = await forge.user("alice"), await forge.user("mallory")
    made = await forge.root.post(f"/users/{alice.id}/emails", {"email": _address()})
    email = f"/users/{alice.id}/emails/{made.body['id']}"
    for person in (alice, mallory):
        assert (await person.api.get(f"/users/{alice.id}/emails")).status == 403
        assert (await person.api.post(f"/users/{alice.id}/emails", {"email": _address()})).status == 403
        assert (await person.api.delete(email)).status == 403
    own = f"/user/emails/{made.body['id']}"
    assert (await mallory.api.get(own)).status == 404
    assert (await mallory.api.delete(own)).status == 404
    assert (await forge.root.delete(f"/users/{mallory.id}/emails/{made.body['id']}")).status == 404
    assert (await alice.api.get(own)).status == 200
    assert (await forge.anonymous.get("/user/emails")).status == 401
    for answer in (
        await forge.root.get("/users/999999999/emails"),
        await forge.root.post("/users/999999999/emails", {"email": _address()}),
        await forge.root.delete("/users/999999999/emails/1"),
    ):
        assert (answer.status, answer.body) == (404, {"message": "404 User Not Found"})


async def test_a_reading_token_reads_only(forge: Forge) -> None:
    alice = await forge.user("alice")
    reader = Client(forge.session, forge.base, await forge.token(alice.id, ("read_user",)))
    assert (await reader.get("/user/emails")).status == 200
    assert (await reader.post("/user/emails", {"email": _address()})).status == 403


@pytest.mark.parametrize(
    ("values", "body"),
    [
        ({}, {"error": "email is missing"}),
        ({"email": ""}, {"error": "email is empty"}),
        ({"email": "alice"}, {"message": {"email": ["is invalid"]}}),
        ({"email": "a@b\r\nBcc: c@example.org"}, {"message": {"email": ["is invalid"]}}),
    ],
)
async def test_what_is_no_address_is_refused(forge: Forge, values: dict, body: dict) -> None:
    answer = await forge.root.post("/user/emails", values)
    assert (answer.status, answer.body) == (400, body)


async def test_an_address_is_one_users_only(forge: Forge) -> None:
    """No other user gets the address, whether it is confirmed or not, primary or secondary, and however it is spelled.
    This applies to new accounts and to changes."""
    alice, bob, second = await forge.user("alice"), await forge.user("bob"), _address()
    assert (await alice.api.post("/user/emails", {"email": second})).status == 201
    for email in (second, second.upper(), alice.email.upper(), bob.email):
        answer = await bob.api.post("/user/emails", {"email": email})
        assert (answer.status, answer.body) == (400, TAKEN)
    account = {"username": new_name("carol"), "name": "Carol", "force_random_password": True}
    answer = await forge.root.post("/users", account | {"email": second.upper()})
    assert (answer.status, answer.body) == (409, {"message": "Email has already been taken"})
    answer = await forge.root.put(f"/users/{bob.id}", {"email": second})
    assert (answer.status, answer.body) == (409, {"message": "Email has already been taken"})


async def test_the_same_address_at_a_time_is_one_users_only(forge: Forge) -> None:
    people, address = [await forge.user() for _ in range(4)], _address()
    account = {
        "username": new_name("carol"),
        "name": "Carol",
        "email": address,
        "force_random_password": True,
    }
    answers = await asyncio.gather(
        *(person.api.post("/user/emails", {"email": address}) for person in people),
        forge.root.post("/users", account),
    )
    assert sum(answer.status == 201 for answer in answers) == 1


async def test_a_second_address_that_becomes_the_accounts_is_not_listed_twice(forge: Forge) -> None:
    alice, second = await forge.user("alice"), _address()
    await forge.root.post(f"/users/{alice.id}/emails", {"email": second, "skip_confirmation": True})
    assert (await forge.root.put(f"/users/{alice.id}", {"email": second})).body["email"] == second
    assert (await forge.root.get(f"/users/{alice.id}/emails")).body == []


async def test_confirmed_addresses_match_invitations_and_unconfirmed_ones_do_not(forge: Forge) -> None:
    alice, confirmed, unconfirmed = await forge.user("alice"), _address(), _address()
    project = await forge.project()
    await forge.root.post(f"/users/{alice.id}/emails", {"email": confirmed, "skip_confirmation": True})
    await alice.api.post("/user/emails", {"email": unconfirmed})
    path = f"/projects/{project['id']}"
    for email in (unconfirmed, confirmed.upper()):
        answer = await forge.root.post(f"{path}/invitations", {"email": email, "access_level": 30})
        assert answer.body == {"status": "success"}
    pending = (await forge.root.get(f"{path}/invitations")).body
    assert [(invitation["invite_email"], invitation["user_name"]) for invitation in pending] == [
        (unconfirmed, None)
    ]
    assert (await forge.root.get(f"{path}/members/{alice.id}")).body["access_level"] == 30


async def test_python_gitlab_manages_addresses(forge: Forge) -> None:
    alice, address = await forge.user("alice"), _address()

    def use() -> None:
        with gitlab.Gitlab(forge.base, private_token=alice.api.token) as own:
            own.auth()
            made = own.user.emails.create({"email": address})
            assert [email.email for email in own.user.emails.list()] == [address]
            assert own.user.emails.get(made.id).confirmed_at is None
            made.delete()
        with gitlab.Gitlab(forge.base, private_token=forge.root.token) as admin:
            user = admin.users.get(alice.id)
            user.emails.create({"email": address, "skip_confirmation": True})
            (email,) = user.emails.list()
            assert email.confirmed_at
            email.delete()

    await asyncio.to_thread(use)


CARRIED = "400 Bad request - Role is assigned to one or more members. Remove role from all members, then delete role."


async def _role(forge: Forge, level: int = 30) -> dict[str, Any]:
    name = new_name("Auditor")
    values = {"name": name, "base_access_level": level, "description": "Looks at things"}
    answer = await forge.root.post("/member_roles", values)
    expected = {
        "id": answer.body["id"],
        "group_id": None,
        "name": name,
        "description": "Looks at things",
        "base_access_level": level,
    }
    assert (answer.status, answer.body) == (201, expected)
    return expected


async def test_administrators_make_list_and_remove_them(forge: Forge) -> None:
    role = await _role(forge)
    taken = await forge.root.post("/member_roles", {"name": role["name"], "base_access_level": 20})
    assert (taken.status, taken.body) == (400, {"message": {"name": ["has already been taken"]}})
    assert role in (await forge.root.get("/member_roles?per_page=100")).body
    assert (await forge.root.delete(f"/member_roles/{role['id']}")).status == 204
    assert (await forge.root.delete(f"/member_roles/{role['id']}")).body == {
        "message": "404 Member Role Not Found"
    }


@pytest.mark.parametrize("kind", KINDS)
async def test_somebody_who_is_known_carries_it_at_once_and_loses_it_with_its_level(
    forge: Forge, kind: str
) -> None:
    role, person = await _role(forge), await forge.user()
    source = await source_of(forge, kind)
    answer = await invite(forge.root, source, user_id=person.id, member_role_id=role["id"])
    assert answer.body == {"status": "success"}
    member = f"{source}/members/{person.id}"
    assert (await forge.root.get(member)).body["member_role"] == role
    (created, *_) = (await forge.root.get(f"{source}/audit_events?event_type=member_created")).body
    assert created["details"]["member_role_id"] == str(role["id"])
    refused = await forge.root.delete(f"/member_roles/{role['id']}")
    assert (refused.status, refused.body) == (400, {"message": CARRIED})
    later = await forge.root.put(member, {"access_level": 30, "expires_at": "2999-01-01"})
    assert later.body["member_role"] == role
    assert "member_role" not in (await forge.root.put(member, {"access_level": 20})).body
    assert (await forge.root.delete(f"/member_roles/{role['id']}")).status == 204


async def test_somebody_who_is_invited_carries_it_when_she_accepts(forge: Forge) -> None:
    role, address = await _role(forge), new_address()
    source = await source_of(forge, "projects")
    answer = await invite(forge.root, source, email=address, member_role_id=role["id"])
    assert answer.body == {"status": "success"}
    assert (await forge.root.delete(f"/member_roles/{role['id']}")).body == {"message": CARRIED}
    person = await forge.user(email=address, password=PASSWORD)
    page = await page_of(forge, address)
    async with browsing(forge) as browser:
        await browser.sign_in(person, return_to=page)
        await browser.send(f"{page}/accept")
    assert (await forge.root.get(f"{source}/members/{person.id}")).body["member_role"] == role


async def test_a_role_that_is_being_given_while_it_is_removed_stays(forge: Forge) -> None:
    role, person = await _role(forge), await forge.user()
    source = await source_of(forge, "projects")
    assert (await invite(forge.root, source, user_id=person.id)).body == {"status": "success"}
    async with forge.database.transaction() as giving:
        await member_role_queries.hold(giving, role["id"])
        removing = asyncio.create_task(forge.root.delete(f"/member_roles/{role['id']}"))
        await until_somebody_waits(forge.database)
        await giving.run(
            "UPDATE members SET member_role_id = %(role)s WHERE user_id = %(user)s",
            role=role["id"],
            user=person.id,
        )
    refused = await removing
    assert (refused.status, refused.body) == (400, {"message": CARRIED})
