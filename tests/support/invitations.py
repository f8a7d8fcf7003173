"""Functions that invite people to groups and projects, and look at the results."""

import datetime
import re
from typing import Any

from api_server.state.secrets import INVITATION_TOKEN
from api_server.web.context import SERVICES
from tests.support.forge import Answer, Client, Forge, Person, new_name

KINDS = ("groups", "projects")
TAKEN = "Invite email has already been taken"
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def today() -> datetime.date:
    """Return the day in UTC, as the service counts days. Call it late, since a run of tests may last beyond
    midnight."""
    return datetime.datetime.now(datetime.UTC).date()


def new_address() -> str:
    return f"{new_name('somebody')}@example.org"


async def source_of(forge: Forge, kind: str, **values: Any) -> str:
    """Return the path of a new group or project that `forge.root` manages."""
    made = await (forge.group(**values) if kind == "groups" else forge.project(**values))
    return f"/{kind}/{made['id']}"


async def invite(client: Client, source: str, **values: Any) -> Answer:
    return await client.post(f"{source}/invitations", {"access_level": 30} | values)


async def invite_by_mail(forge: Forge, address: str, **values: Any) -> dict[str, Any]:
    """Invite an address without an account to a new project; return the project."""
    project = await forge.project(description="<b>Tools</b> for everybody")
    answer = await invite(forge.root, f"/projects/{project['id']}", email=address, **values)
    assert answer.body == {"status": "success"}
    return project


async def page_of(forge: Forge, email: str) -> str:
    """Return the path of the page to which the newest invitation of that address links."""
    seed = await forge.database.value(
        "SELECT token_seed FROM invitations WHERE lower(email) = lower(%(email)s) ORDER BY id DESC",
        email=email,
    )
    return f"/-/invites/{forge.server.app[SERVICES].vault.derived_token(INVITATION_TOKEN, seed)}"


async def invited_to(client: Client, source: str) -> list[str]:
    answer = await client.get(f"{source}/invitations?per_page=100")
    assert answer.status == 200, answer
    return [invitation["invite_email"] for invitation in answer.body]


async def members_of(client: Client, source: str) -> dict[int, int]:
    """Return the access levels of direct members by user id."""
    answer = await client.get(f"{source}/members?per_page=100")
    return {member["id"]: member["access_level"] for member in answer.body}


async def managers_of(forge: Forge, kind: str) -> tuple[str, dict[str, Person]]:
    """Return the path of a new public source, and a person for each role in it."""
    source = await source_of(forge, kind, visibility="public")
    return source, await forge.people(int(source.rpartition("/")[2]), kind)
