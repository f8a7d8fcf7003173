"""Further addresses of users: `/user/emails` and `/users/:id/emails`."""

import asyncio

import gitlab
import pytest

from tests.support.forge import Client, Forge, new_name

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
    """Confirmed or not, of an account or beside it, in whatever spelling; new accounts and changes included."""
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
