"""Inviting people to groups and projects, and looking at who has come of it."""

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
    """In UTC, as the service counts days; asked for late, because a run of tests may last beyond midnight."""
    return datetime.datetime.now(datetime.UTC).date()


def new_address() -> str:
    return f"{new_name('somebody')}@example.org"


async def source_of(forge: Forge, kind: str, **values: Any) -> str:
    """The path of a new group or project, which `forge.root` manages."""
    made = await (forge.group(**values) if kind == "groups" else forge.project(**values))
    return f"/{kind}/{made['id']}"


async def invite(client: Client, source: str, **values: Any) -> Answer:
    return await client.post(f"{source}/invitations", {"access_level": 30} | values)


async def invite_by_mail(forge: Forge, address: str, **values: Any) -> dict[str, Any]:
    """The new project that somebody without an account was invited to."""
    project = await forge.project(description="<b>Tools</b> for everybody")
    answer = await invite(forge.root, f"/projects/{project['id']}", email=address, **values)
    assert answer.body == {"status": "success"}
    return project


async def page_of(forge: Forge, email: str) -> str:
    """The path of the page that the newest invitation of that address links to."""
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
    """Access levels of direct members by user id."""
    answer = await client.get(f"{source}/members?per_page=100")
    return {member["id"]: member["access_level"] for member in answer.body}


async def managers_of(forge: Forge, kind: str) -> tuple[str, dict[str, Person]]:
    """A public source, and a person of each role in it."""
    source = await source_of(forge, kind, visibility="public")
    return source, await forge.people(int(source.rpartition("/")[2]), kind)
