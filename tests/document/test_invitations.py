"""Area 5: invitations to groups and projects."""

import re
from typing import Any

import attrs
import pytest

from api_server.invitations import queries
from api_server.state.database import Transaction
from api_server.web.routes import Role
from tests.support.forge import Answer, Client, Forge, Person
from tests.support.invitations import KINDS, new_address

from .statements import says

TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@attrs.frozen
class Source:
    """A group or a project, by its path in the API, and a person who may invite."""

    kind: str
    url: str
    path: str
    owner: Person

    async def invite(self, client: Client | None = None, **values: Any) -> Answer:
        sent = {"access_level": 30} | values
        return await (client or self.owner.api).post(f"{self.url}/invitations", sent)

    async def pending(self, query: str = "") -> list[dict[str, Any]]:
        answer = await self.owner.api.get(f"{self.url}/invitations?per_page=100&query={query}")
        assert answer.status == 200, answer
        return list(answer.body)

    async def invited(self, **values: Any) -> str:
        """A new invited address."""
        address = new_address()
        assert (await self.invite(email=address, **values)).body == {"status": "success"}
        return address


@pytest.fixture(scope="module", params=KINDS)
async def source(forge: Forge, request: pytest.FixtureRequest) -> Source:
    owner = await forge.user("owner")
    if request.param == "groups":
        made = await forge.group(owner)
        return Source("groups", f"/groups/{made['id']}", made["full_path"], owner)
    made = await forge.project(owner)
    return Source(
        "projects", f"/projects/{made['id']}", made["path_with_namespace"].replace("/", "%2F"), owner
    )


@says(
    "invitations 1",
    "Invite users by email or user ID to a group or project, list, update and delete pending invitations.",
    "Each endpoint exists for both `/groups/:id/invitations...` and `/projects/:id/invitations...`.",
    "Pending invitation: created by POST, changed by PUT (access_level, expires_at), removed by DELETE.",
)
async def test_an_invitation_is_made_changed_and_removed(source: Source) -> None:
    address = await source.invited()
    one = f"{source.url}/invitations/{address}"
    assert (await source.owner.api.put(one, {"access_level": 40})).status == 200
    assert [pending["access_level"] for pending in await source.pending(address)] == [40]
    assert (await source.owner.api.delete(one)).status == 204
    assert await source.pending(address) == []


@says(
    "invitation",
    "`id` integer, `invite_email` string, `created_at` timestamp, `access_level` integer, `expires_at` timestamp,"
    " `user_name` string, `created_by_name` string.",
)
async def test_what_an_invitation_shows(source: Source) -> None:
    address = await source.invited(expires_at="2999-12-31")
    (shown,) = await source.pending(address)
    assert isinstance(shown.pop("id"), int)
    assert TIMESTAMP.fullmatch(shown.pop("created_at"))
    assert shown == {
        "invite_email": address,
        "access_level": 30,
        "expires_at": "2999-12-31T00:00:00.000Z",
        "user_name": None,  # a text only if the address belongs to a user
        "created_by_name": source.owner.username.title(),
    }


@says(
    "invitation",
    "Access levels (integers): 0 no access, 5 minimal access, 10 Guest, 20 Reporter, 30 Developer, 40 Maintainer,"
    " 50 Owner.",
)
@pytest.mark.parametrize("level", [0, 5, 10, 20, 30, 40, 50])
async def test_access_levels(source: Source, level: int) -> None:
    """All are valid levels; if an invitation cannot have one, this is the recipient's error (5: groups only)."""
    address = new_address()
    answer = await source.invite(email=address, access_level=level)
    if level == 0 or (level == 5 and source.kind == "projects"):
        message = {address: "Access level is not included in the list"}
        assert answer.body == {"status": "error", "message": message}
        return
    assert answer.body == {"status": "success"}
    assert [pending["access_level"] for pending in await source.pending(address)] == [level]


@says(
    "endpoint 31",
    "`id` integer/string required; `email` string (one address or several separated by commas), required if `user_id`"
    " absent;",
    "object with `status`: `success` when all were sent;",
    "| Multiple recipients | emails or user IDs separated by commas in one request | invitation creation (31) |",
)
async def test_one_address_or_several(source: Source) -> None:
    addresses = [new_address() for _ in range(3)]
    for by in (source.url, f"/{source.kind}/{source.path}"):
        sent, addresses = addresses[:2] or [new_address()], addresses[2:]
        answer = await source.owner.api.post(
            f"{by}/invitations", {"email": ",".join(sent), "access_level": 30}
        )
        assert answer.body == {"status": "success"}
        assert all([await source.pending(address) for address in sent])


@says(
    "endpoint 31",
    "`user_id` integer/string (one ID or several separated by commas), required if `email` absent;",
)
async def test_one_id_or_several(forge: Forge, source: Source) -> None:
    people = [await forge.user() for _ in range(3)]
    for sent in (people[0].id, f"{people[1].id},{people[2].id}"):
        assert (await source.invite(user_id=sent)).body == {"status": "success"}
    members = (await source.owner.api.get(f"{source.url}/members?per_page=100")).body
    assert {person.id for person in people} <= {member["id"] for member in members}
    refused = await source.invite()
    assert refused.status == 400


@says(
    "endpoint 31",
    "`access_level` integer required (valid level);",
    "`expires_at` string, date `YEAR-MONTH-DAY`, optional;",
    "`invite_source` string optional;",
)
async def test_parameters_of_an_invitation(source: Source) -> None:
    sent = {"email": new_address()}
    missing = await source.owner.api.post(f"{source.url}/invitations", sent)
    assert (missing.status, missing.body) == (400, {"error": "access_level is missing"})
    address = await source.invited(expires_at="2999-01-02", invite_source="a page")
    assert [pending["expires_at"] for pending in await source.pending(address)] == [
        "2999-01-02T00:00:00.000Z"
    ]
    wrong = await source.invite(email=new_address(), expires_at="soon")
    assert wrong.status == 400


@says("endpoint 31", "`member_role_id` integer optional (custom role, Ultimate only, since release 16.6)")
async def test_a_custom_role(forge: Forge, source: Source) -> None:
    role = await forge.root.post("/member_roles", {"name": f"Auditor {source.url}", "base_access_level": 30})
    person = await forge.user()
    answer = await source.invite(user_id=person.id, member_role_id=role.body["id"])
    assert answer.body == {"status": "success"}
    member = (await source.owner.api.get(f"{source.url}/members/{person.id}")).body
    assert member["member_role"]["id"] == role.body["id"]


@says(
    "endpoint 31",
    "otherwise `status` = `error` and `message` = object mapping each failing email or user identifier to an error"
    " text",
    "Invitation creation reports per-recipient failures inside a body with `status` = `error`; error texts seen state"
    " that the invite email is already taken, that the user already exists in the source, and that the access level is"
    " not in the list.",
)
async def test_errors_are_the_recipients(forge: Forge, source: Source) -> None:
    taken, fresh, member = await source.invited(), new_address(), await forge.user()
    await source.invite(user_id=member.id)
    answer = await source.invite(email=f"{taken},{fresh},{member.email}")
    assert answer.body == {
        "status": "error",
        "message": {
            taken: "Invite email has already been taken",
            member.email: "User already exists in source",
        },
    }
    assert len(await source.pending(fresh)) == 1
    address = new_address()
    wrong = await source.invite(email=address, access_level=0)
    message = {address: "Access level is not included in the list"}
    assert wrong.body == {"status": "error", "message": message}


@says(
    "endpoint 32",
    "`id` required; `page` integer; `per_page` integer; `query` string (exact match on invite email; empty returns"
    " all)",
    "| Page parameters | `page`, `per_page` integers | invitation list (32) |",
)
async def test_the_list_of_invitations(source: Source) -> None:
    one, other = await source.invited(), await source.invited()
    pages = [
        (await source.owner.api.get(f"{source.url}/invitations?page={page}&per_page=1")).body
        for page in (1, 2)
    ]
    assert [len(page) for page in pages] == [1, 1]
    assert pages[0] != pages[1]
    assert [pending["invite_email"] for pending in await source.pending(one)] == [one]
    assert await source.pending(one[1:]) == []
    assert {one, other} <= {pending["invite_email"] for pending in await source.pending()}


@says("endpoint 32", "array of Invitation; direct members only, not those inherited from ancestor groups")
async def test_inherited_invitations_are_not_listed(forge: Forge) -> None:
    group = await forge.group()
    project = await forge.project(namespace_id=group["id"])
    sent = {"email": new_address(), "access_level": 30}
    assert (await forge.root.post(f"/groups/{group['id']}/invitations", sent)).status == 201
    assert (await forge.root.get(f"/projects/{project['id']}/invitations")).body == []


@says(
    "endpoint 33",
    "`id`, `email` string required; `access_level` integer, default 30; `expires_at` string ISO 8601"
    " (`YYYY-MM-DDTHH:MM:SSZ`)",
    "object with `expires_at` and `access_level`",
)
async def test_an_invitation_is_changed(source: Source) -> None:
    address = await source.invited(access_level=20)
    one = f"{source.url}/invitations/{address}"
    changed = await source.owner.api.put(one, {"expires_at": "2999-01-02T00:00:00Z"})
    assert (changed.status, changed.body) == (
        200,
        {"expires_at": "2999-01-02T00:00:00.000Z", "access_level": 30},
    )


@says(
    "endpoint 34",
    "| 34 delete invitation | 204 | success | empty |",
    "| 34 delete invitation | 403 | caller not authorised to delete | |",
    "| 34 delete invitation | 404 | caller authorised, no invitation for that email | |",
    "204 no content; see Errors",
    "`id`, `email` required",
)
async def test_an_invitation_is_deleted(forge: Forge, source: Source) -> None:
    one = f"{source.url}/invitations/{await source.invited()}"
    guest = await forge.user("guest")
    await forge.member(source.kind, int(source.url.rpartition("/")[2]), guest, Role.GUEST)
    assert (await guest.api.delete(one)).status == 403
    gone = await source.owner.api.delete(one)
    assert (gone.status, gone.body) == (204, "")
    assert (await source.owner.api.delete(one)).status == 404


@says("endpoint 34", "| 34 delete invitation | 409 | request valid but deletion failed | |")
async def test_a_deletion_that_fails(forge: Forge, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another request has locked the invitation, for which the deletion waits only a moment here."""
    lock = queries.lock_by_email

    async def lock_at_once(transaction: Transaction, email: str, **place: int | None) -> Any:
        await transaction.run("SET LOCAL lock_timeout = 20")
        return await lock(transaction, email, **place)

    monkeypatch.setattr(queries, "lock_by_email", lock_at_once)
    address = await source.invited()
    async with forge.database.transaction() as other:
        await other.row("SELECT id FROM invitations WHERE email = %(email)s FOR UPDATE", email=address)
        failed = await source.owner.api.delete(f"{source.url}/invitations/{address}")
    assert failed.status == 409
    assert len(await source.pending(address)) == 1


@says("invitations 2", "invitation sender must have access to the target group or project.")
async def test_who_does_not_see_the_target_invites_nobody(forge: Forge) -> None:
    project = await forge.project()
    stranger = await forge.user("stranger")
    sent = {"email": new_address(), "access_level": 30}
    answer = await stranger.api.post(f"/projects/{project['id']}/invitations", sent)
    assert (answer.status, answer.body) == (404, {"message": "404 Project Not Found"})
