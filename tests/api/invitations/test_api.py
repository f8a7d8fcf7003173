"""Endpoints 31-34 for groups and projects (decision D8)."""

import asyncio
import datetime
import re
from typing import Any
from urllib.parse import quote

import gitlab
import pytest

from api_server.areas.invitations import recipients
from tests.support.forge import Answer, Client, Forge, Person, new_name

KINDS = ("groups", "projects")
TAKEN = "Invite email has already been taken"
TODAY = datetime.datetime.now(datetime.UTC).date()
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def new_address() -> str:
    return f"{new_name('somebody')}@example.org"


async def _source(forge: Forge, kind: str, **values: Any) -> str:
    """The path of a new group or project, which `forge.root` manages."""
    made = await (forge.group(**values) if kind == "groups" else forge.project(**values))
    return f"/{kind}/{made['id']}"


async def _invite(client: Client, source: str, **values: Any) -> Answer:
    return await client.post(f"{source}/invitations", {"access_level": 30} | values)


async def _invited(client: Client, source: str) -> list[str]:
    answer = await client.get(f"{source}/invitations?per_page=100")
    assert answer.status == 200, answer
    return [invitation["invite_email"] for invitation in answer.body]


async def _members(client: Client, source: str) -> dict[int, int]:
    """Access levels of direct members by user id."""
    answer = await client.get(f"{source}/members?per_page=100")
    return {member["id"]: member["access_level"] for member in answer.body}


async def _managers(forge: Forge, kind: str) -> tuple[str, dict[str, Person]]:
    """A public source, and a person of each role in it."""
    source = await _source(forge, kind, visibility="public")
    people = {"stranger": await forge.user("stranger")}
    for name, level in {"guest": 10, "reporter": 20, "developer": 30, "maintainer": 40, "owner": 50}.items():
        people[name] = await forge.user(name)
        added = await forge.root.post(
            f"{source}/members", {"user_id": people[name].id, "access_level": level}
        )
        assert added.status == 201
    return source, people


# --- 31: who gets in, and how ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_new_address_is_invited(forge: Forge, kind: str) -> None:
    """Endpoints 31 and 32: 201 `{"status": "success"}`, and a pending invitation with the document's keys."""
    source, address = await _source(forge, kind), new_address()
    answer = await _invite(forge.root, source, email=address, expires_at="2999-12-31")
    assert (answer.status, answer.body) == (201, {"status": "success"})
    listed = (await forge.root.get(f"{source}/invitations")).body
    assert RFC_3339.fullmatch(listed[0].pop("created_at"))
    assert isinstance(listed[0].pop("id"), int)
    assert listed == [
        {
            "invite_email": address,
            "access_level": 30,
            "expires_at": "2999-12-31T00:00:00.000Z",
            "user_name": None,
            "created_by_name": "Administrator",
        }
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["email", "EMAIL", "user_id"])
async def test_somebody_who_is_known_is_a_member_at_once(forge: Forge, kind: str, by: str) -> None:
    """By her confirmed address, however it is spelled, or by id; nothing is pending."""
    source, person = await _source(forge, kind), await forge.user()
    how = {"email": person.email, "EMAIL": person.email.upper(), "user_id": person.id}[by]
    answer = await _invite(forge.root, source, **{by.lower(): how})
    assert (answer.status, answer.body) == (201, {"status": "success"})
    assert (await _members(forge.root, source))[person.id] == 30
    assert await _invited(forge.root, source) == []


async def _add_address(forge: Forge, person: Person, *, confirmed: bool) -> str:
    address = new_address()
    async with forge.database.transaction() as transaction:
        await transaction.row(
            "INSERT INTO user_emails (user_id, email, confirmed_at)"
            " VALUES (%(id)s, %(email)s, CASE WHEN %(confirmed)s THEN now() END)",
            id=person.id,
            email=address,
            confirmed=confirmed,
        )
    return address


async def test_a_confirmed_secondary_address_is_as_good(forge: Forge) -> None:
    source, person = await _source(forge, "projects"), await forge.user()
    address = await _add_address(forge, person, confirmed=True)
    await _invite(forge.root, source, email=address)
    assert person.id in await _members(forge.root, source)


async def test_an_unconfirmed_address_is_invited_like_a_stranger(forge: Forge) -> None:
    """Primary or secondary: pending, and the user is not linked."""
    source, person = await _source(forge, "projects"), await forge.user()
    secondary = await _add_address(forge, person, confirmed=False)
    unconfirmed = await forge.user(skip_confirmation=False)
    await _invite(forge.root, source, email=f"{secondary},{unconfirmed.email}")
    assert sorted(await _invited(forge.root, source)) == sorted([secondary, unconfirmed.email])
    listed = (await forge.root.get(f"{source}/invitations")).body
    assert [invitation["user_name"] for invitation in listed] == [None, None]


async def test_unknown_ids_are_ignored(forge: Forge) -> None:
    answer = await _invite(forge.root, await _source(forge, "groups"), user_id="987654321, 987654322")
    assert (answer.status, answer.body) == (201, {"status": "success"})


async def test_the_same_person_by_address_and_id_is_one_member(forge: Forge) -> None:
    source, person = await _source(forge, "groups"), await forge.user()
    answer = await _invite(forge.root, source, email=person.email, user_id=person.id)
    assert answer.body == {"status": "success"}
    assert (await _members(forge.root, source))[person.id] == 30


@pytest.mark.parametrize("as_array", [False, True])
async def test_lists_are_arrays_or_texts_with_commas(forge: Forge, as_array: bool) -> None:
    source, people = await _source(forge, "projects"), [await forge.user() for _ in range(2)]
    addresses, ids = [new_address(), new_address()], [person.id for person in people]
    values: dict[str, Any] = {"email": addresses, "user_id": ids}
    if not as_array:
        values = {"email": f" {addresses[0]} , {addresses[1]}", "user_id": f"{ids[0]}, {ids[1]}"}
    assert (await _invite(forge.root, source, **values)).body == {"status": "success"}
    assert sorted(await _invited(forge.root, source)) == sorted(addresses)
    assert set(ids) <= set(await _members(forge.root, source))


async def test_forms_and_brackets_work_as_well(forge: Forge) -> None:
    source, address = await _source(forge, "projects"), new_address()
    form = {"access_level": "20", "email[]": address}
    answer = await forge.root.post(f"{source}/invitations", data=form)
    assert (answer.status, await _invited(forge.root, source)) == (201, [address])


async def test_the_same_text_twice_is_once(forge: Forge) -> None:
    source, address = await _source(forge, "groups"), new_address()
    assert (await _invite(forge.root, source, email=f"{address},{address}")).body == {"status": "success"}
    assert await _invited(forge.root, source) == [address]


async def test_the_same_address_in_two_spellings_is_one_invitation(forge: Forge) -> None:
    """The key of the failure is the address as typed."""
    source, address = await _source(forge, "groups"), new_address()
    answer = await _invite(forge.root, source, email=[address, address.upper()])
    assert answer.status == 201
    assert answer.body == {"status": "error", "message": {address.upper(): TAKEN}}
    assert await _invited(forge.root, source) == [address]


async def test_failures_of_some_do_not_keep_out_the_others(forge: Forge) -> None:
    """D8: who is invited or a member already is that recipient's error, 201 all the same, `message` of texts."""
    source = await _source(forge, "projects")
    invited, fresh = new_address(), new_address()
    member, newcomer = await forge.user(), await forge.user()
    await _invite(forge.root, source, email=invited, user_id=member.id, access_level=20)
    answer = await _invite(
        forge.root, source, email=[invited.upper(), fresh], user_id=[member.id, newcomer.id], access_level=40
    )
    assert (answer.status, answer.body) == (
        201,
        {
            "status": "error",
            "message": {invited.upper(): TAKEN, member.username: "User already exists in source"},
        },
    )
    members = await _members(forge.root, source)
    assert (members[member.id], members[newcomer.id]) == (20, 40)
    assert await _invited(forge.root, source) == [invited, fresh]
    by_address = await _invite(forge.root, source, email=member.email)
    assert by_address.body["message"] == {member.email: "User already exists in source"}


async def test_a_role_below_the_inherited_one_is_refused(forge: Forge) -> None:
    group, person = await forge.group(name="Tools"), await forge.user()
    await _invite(forge.root, f"/groups/{group['id']}", user_id=person.id, access_level=30)
    for source in (
        await _source(forge, "groups", parent_id=group["id"]),
        await _source(forge, "projects", namespace_id=group["id"]),
    ):
        refused = await _invite(forge.root, source, user_id=person.id, access_level=20)
        assert refused.body == {
            "status": "error",
            "message": {
                person.username: "Access level should be greater than or equal to Developer inherited membership"
                " from group Tools"
            },
        }
        equal = await _invite(forge.root, source, user_id=person.id, access_level=30)
        assert equal.body == {"status": "success"}


@pytest.mark.parametrize("recipient", ["email", "user_id"])
async def test_a_date_in_the_past_is_refused_and_today_is_not(forge: Forge, recipient: str) -> None:
    source, person = await _source(forge, "projects"), await forge.user()
    value: Any = new_address() if recipient == "email" else person.id
    key = value if recipient == "email" else person.username
    yesterday = str(TODAY - datetime.timedelta(days=1))
    past = await _invite(forge.root, source, **{recipient: value}, expires_at=yesterday)
    assert past.body == {"status": "error", "message": {key: "Expires at cannot be a date in the past"}}
    tomorrow = str(TODAY + datetime.timedelta(days=1))
    assert (await _invite(forge.root, source, **{recipient: value}, expires_at=tomorrow)).body == {
        "status": "success"
    }
    today = await _invite(forge.root, source, email=new_address(), expires_at=str(TODAY))
    assert today.body == {"status": "success"}


async def test_several_problems_of_one_are_one_sentence(forge: Forge) -> None:
    source, address = await _source(forge, "projects"), new_address()
    answer = await _invite(forge.root, source, email=address, access_level=0, expires_at="2020-01-01")
    assert answer.body["message"] == {
        address: "Access level is not included in the list and Expires at cannot be a date in the past"
    }


@pytest.mark.parametrize(
    ("kind", "level", "fits"),
    [(kind, level, True) for kind in KINDS for level in (10, 15, 20, 30, 40, 50)]
    + [("groups", 5, True), ("projects", 5, False), ("groups", 0, False), ("projects", 0, False)],
)
async def test_levels(forge: Forge, kind: str, level: int, fits: bool) -> None:
    """Levels that a membership there cannot have are the recipient's error."""
    source, address = await _source(forge, kind), new_address()
    answer = await _invite(forge.root, source, email=address, access_level=level)
    assert answer.status == 201
    expected: dict[str, Any] = {"status": "success"}
    if not fits:
        expected = {"status": "error", "message": {address: "Access level is not included in the list"}}
    assert answer.body == expected


# --- 31: what is refused as a whole ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "body"),
    [
        ({"email": "a@example.org", "access_level": None}, {"error": "access_level is empty"}),
        (
            {"email": "a@example.org", "access_level": 1234},
            {"error": "access_level does not have a valid value"},
        ),
        (
            {"email": "a@example.org", "access_level": -1},
            {"error": "access_level does not have a valid value"},
        ),
        ({"email": "nonsense"}, {"error": "email contains an invalid email address"}),
        (
            {"email": ["b@example.org", "a b@example.org"]},
            {"error": "email contains an invalid email address"},
        ),
        (
            {"email": "a@example.org\r\nBcc: c@example.org"},
            {"error": "email contains an invalid email address"},
        ),
        ({"user_id": "alice"}, {"error": "user_id is invalid"}),
        ({"email": "a@example.org", "expires_at": "soon"}, {"error": "expires_at is invalid"}),
        ({}, {"message": "400 Bad request - Must provide either email or user_id as a parameter"}),
        (
            {"email": " ", "user_id": ""},
            {"message": "400 Bad request - Must provide either email or user_id as a parameter"},
        ),
    ],
)
async def test_requests_that_cannot_be_read(forge: Forge, values: dict[str, Any], body: Any) -> None:
    """400, and nobody is invited."""
    source = await _source(forge, "projects")
    answer = await _invite(forge.root, source, **values)
    assert (answer.status, answer.body) == (400, body)
    assert await _invited(forge.root, source) == []


async def test_a_level_has_to_be_given(forge: Forge) -> None:
    source = await _source(forge, "groups")
    answer = await forge.root.post(f"{source}/invitations", {"email": new_address()})
    assert (answer.status, answer.body) == (400, {"error": "access_level is missing"})


async def test_more_than_a_hundred_recipients_are_refused_as_a_whole(forge: Forge) -> None:
    """Addresses and ids count together; a hundred are fine."""
    source = await _source(forge, "projects")
    addresses = [new_address() for _ in range(100)]
    answer = await _invite(forge.root, source, email=addresses, user_id=[1])
    assert (answer.status, answer.body) == (
        201,
        {
            "status": "error",
            "message": "Too many users specified (limit is 100)",
            "reason": "too_many_invites_error",
        },
    )
    assert await _invited(forge.root, source) == []
    assert (await _invite(forge.root, source, email=addresses)).body == {"status": "success"}
    assert len(await _invited(forge.root, source)) == 100


async def test_commas_alone_are_nobody(forge: Forge) -> None:
    answer = await _invite(forge.root, await _source(forge, "groups"), email=" , ,")
    assert (answer.status, answer.body) == (
        201,
        {"status": "error", "message": "Invites cannot be blank", "reason": "blank_invites_error"},
    )


@pytest.mark.parametrize(("tier", "status"), [("premium", 403), ("ultimate", 201)])
async def test_custom_roles_are_of_the_ultimate_tier(new_forge: Any, tier: str, status: int) -> None:
    async with new_forge(tier=tier) as forge:
        source, person, address = await _source(forge, "groups"), await forge.user(), new_address()
        answer = await _invite(forge.root, source, email=address, user_id=person.id, member_role_id=7)
        assert answer.status == status
        if status == 403:
            assert (
                answer.body["message"] == "403 Forbidden - custom roles is not available on the premium tier"
            )
            assert (await _invite(forge.root, source, email=address)).status == 201
        else:
            stored = await forge.database.rows(
                "SELECT member_role_id FROM invitations UNION ALL"
                " SELECT member_role_id FROM members WHERE user_id = %(id)s",
                id=person.id,
            )
            assert [row.member_role_id for row in stored] == [7, 7]


# --- who may --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_who_may(forge: Forge, kind: str) -> None:
    """Maintainers of projects, Owners of groups; 401 without a token, 404 for what is hidden."""
    source, people = await _managers(forge, kind)
    able = {"maintainer", "owner"} if kind == "projects" else {"owner"}
    for name, person in people.items():
        address = new_address()
        path = f"{source}/invitations/{quote(address)}"
        answers = [
            await _invite(person.api, source, email=address),
            await person.api.get(f"{source}/invitations"),
            await person.api.put(path, {"access_level": 20}),
            await person.api.delete(path),
        ]
        expected = [201, 200, 200, 204] if name in able else [403] * 4
        assert [answer.status for answer in answers] == expected, name
    hidden = await _source(forge, kind, visibility="private")
    stranger = people["stranger"].api
    for client, status in ((stranger, 404), (forge.anonymous, 401)):
        answers = [
            await _invite(client, hidden, email=new_address()),
            await client.get(f"{hidden}/invitations"),
            await client.put(f"{hidden}/invitations/a%40example.org", {"access_level": 20}),
            await client.delete(f"{hidden}/invitations/a%40example.org"),
        ]
        assert [answer.status for answer in answers] == [status] * 4


async def test_nobody_below_owner_has_to_do_with_owners(forge: Forge) -> None:
    """B.1: a project's Maintainer neither grants Owner nor touches an invitation for one."""
    source, people = await _managers(forge, "projects")
    maintainer, address = people["maintainer"].api, new_address()
    assert (await _invite(maintainer, source, email=new_address(), access_level=50)).status == 403
    assert (await _invite(people["owner"].api, source, email=address, access_level=50)).status == 201
    path = f"{source}/invitations/{quote(address)}"
    assert (await maintainer.put(path, {"access_level": 30})).status == 403
    assert (await maintainer.delete(path)).status == 403
    mine = new_address()
    await _invite(maintainer, source, email=mine)
    raised = await maintainer.put(f"{source}/invitations/{quote(mine)}", {"access_level": 50})
    assert raised.status == 403
    assert await _invited(maintainer, source) == [address, mine]


# --- 32 -------------------------------------------------------------------------------------------------------------


async def test_listing(forge: Forge) -> None:
    """Oldest first; of exactly this source; `query` is the whole address; pages of both kinds."""
    group = await forge.group()
    above = f"/groups/{group['id']}"
    source = await _source(forge, "projects", namespace_id=group["id"])
    await _invite(forge.root, above, email=new_address())
    addresses = [new_address() for _ in range(3)]
    for address in addresses:
        await _invite(forge.root, source, email=address)
    assert await _invited(forge.root, source) == addresses

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
    source, person = await _source(forge, "groups"), await forge.user()
    await _invite(forge.root, source, email=person.email)
    assert await _invited(forge.root, source) == []


async def test_tokens_are_never_shown(forge: Forge) -> None:
    """D8: GitLab's `invite_token` is not in the answer."""
    source = await _source(forge, "projects")
    await _invite(forge.root, source, email=new_address())
    answer = await forge.root.get(f"{source}/invitations")
    assert "token" not in str(answer.body)


# --- 33 and 34 ------------------------------------------------------------------------------------------------------


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
    source, address = await _source(forge, "projects"), new_address()
    await _invite(forge.root, source, email=address, access_level=20, expires_at="2999-01-01")
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
    source, address = await _source(forge, "projects"), new_address()
    await _invite(forge.root, source, email=address)
    answer = await forge.root.put(f"{source}/invitations/{quote(address)}", values)
    assert (answer.status, answer.body) == (400, body)


async def test_odd_addresses_are_found_in_the_path(forge: Forge) -> None:
    """`+`, dots, `%` and other spellings; what is not there is 404."""
    source = await _source(forge, "projects")
    for address in (f"a.b+c-{new_name('x')}@sub.example.org", f"100%25{new_name('x')}@example.org"):
        await _invite(forge.root, source, email=address)
        path = f"{source}/invitations/{quote(address.upper(), safe='')}"
        assert (await forge.root.put(path, {"access_level": 40})).status == 200
        gone = await forge.root.delete(path)
        assert (gone.status, gone.body) == (204, "")
        for method in ("PUT", "DELETE"):
            missing = await forge.root.request(method, path)
            assert (missing.status, missing.body) == (404, {"message": "404 Not Found"})


async def test_one_sources_invitation_is_not_anothers(forge: Forge) -> None:
    group = await forge.group()
    project = await _source(forge, "projects", namespace_id=group["id"])
    address = new_address()
    await _invite(forge.root, f"/groups/{group['id']}", email=address)
    assert (await forge.root.delete(f"{project}/invitations/{quote(address)}")).status == 404
    assert await _invited(forge.root, f"/groups/{group['id']}") == [address]


@pytest.mark.parametrize("kind", KINDS)
async def test_deleting_without_an_address_deletes_nothing(forge: Forge, kind: str) -> None:
    """What python-gitlab sends for an invitation that it has listed."""
    source, address = await _source(forge, kind), new_address()
    await _invite(forge.root, source, email=address)
    for method in ("PUT", "DELETE"):
        answer = await forge.root.request(method, f"{source}/invitations")
        assert answer.status == 405
    assert await _invited(forge.root, source) == [address]


# --- at the same time -----------------------------------------------------------------------------------------------


async def test_the_same_address_twice_at_a_time_is_one_invitation(forge: Forge) -> None:
    source, address = await _source(forge, "projects"), new_address()
    answers = await asyncio.gather(*(_invite(forge.root, source, email=address) for _ in range(8)))
    assert sorted(answer.body["status"] for answer in answers) == ["error"] * 7 + ["success"]
    assert await _invited(forge.root, source) == [address]


async def test_the_same_people_in_any_order_at_a_time_never_wait_for_ever(forge: Forge) -> None:
    source, people = await _source(forge, "projects"), [await forge.user() for _ in range(4)]
    addresses = [new_address() for _ in range(4)]
    ids = [person.id for person in people]
    answers = await asyncio.gather(
        *(
            _invite(forge.root, source, email=addresses[::step], user_id=ids[::step])
            for step in (1, -1, 1, -1)
        )
    )
    assert [answer.status for answer in answers] == [201] * 4
    assert sorted(answer.body["status"] for answer in answers) == ["error"] * 3 + ["success"]
    assert sorted(await _invited(forge.root, source)) == sorted(addresses)
    assert set(ids) <= set(await _members(forge.root, source))


# --- the trail ------------------------------------------------------------------------------------------------------


async def test_what_happens_to_an_invitation_is_audited(forge: Forge) -> None:
    """D7, with GitLab's names; the details are texts."""
    source, people = await _managers(forge, "projects")
    owner, address = people["owner"], new_address()
    path = f"{source}/invitations/{quote(address)}"
    await _invite(owner.api, source, email=address, expires_at="2999-01-01")
    await owner.api.put(path, {"access_level": 40})
    await owner.api.put(path, {"access_level": 40})
    await owner.api.delete(path)
    events = (await owner.api.get(f"{source}/audit_events?author_id={owner.id}&sort=asc")).body
    always = {"event_name", "custom_message", "author_name", "author_email", "author_class", "target_id",
              "target_type", "target_details", "ip_address", "entity_path"}  # fmt: skip
    own = [{k: v for k, v in event["details"].items() if k not in always} for event in events]
    assert [event["details"]["event_name"] for event in events] == [
        "member_created",
        "member_updated",
        "member_destroyed",
    ]
    assert own == [
        {"add": "user_access", "as": "Developer", "expires_at": "2999-01-01", "invite_email": address},
        {
            "change": "access_level",
            "from": "Developer",
            "to": "Maintainer",
            "as": "Maintainer",
            "expiry_from": "2999-01-01",
            "expiry_to": "2999-01-01",
            "invite_email": address,
        },
        {"remove": "user_access", "as": "Maintainer", "invite_email": address},
    ]


# --- clients --------------------------------------------------------------------------------------------------------


async def test_python_gitlab_invites(forge: Forge) -> None:
    """Lists as JSON arrays; an `error` in a 201 is raised; deleting a listed invitation is refused."""
    group, project = await forge.group(), await forge.project()
    addresses = [new_address(), new_address()]

    def use() -> None:
        client = gitlab.Gitlab(forge.base, private_token=forge.root.token)
        for source in (client.groups.get(group["id"]), client.projects.get(project["id"])):
            created = source.invitations.create({"email": addresses, "access_level": 20})
            assert created.status == "success"
            with pytest.raises(gitlab.exceptions.GitlabInvitationError) as raised:
                source.invitations.create({"email": addresses[0], "access_level": 20})
            assert raised.value.error_message == {addresses[0]: TAKEN}
            listed = source.invitations.list(get_all=True)
            assert [invitation.invite_email for invitation in listed] == addresses
            with pytest.raises(gitlab.exceptions.GitlabError) as refused:
                listed[0].delete()
            assert refused.value.response_code in (404, 405)
            source.invitations.update(addresses[0], {"access_level": 40})
            assert source.invitations.list(query=addresses[0], get_all=True)[0].access_level == 40
            source.invitations.delete(addresses[0])
            assert len(source.invitations.list(get_all=True)) == 1

    await asyncio.to_thread(use)


# --- reading recipients ---------------------------------------------------------------------------------------------


def test_sentences() -> None:
    assert recipients.sentence({"expires_at": ["is a"]}) == "Expires at is a"
    assert recipients.sentence({"a": ["x"], "b": ["y"], "c": ["z"]}) == "A x, B y and C z"
