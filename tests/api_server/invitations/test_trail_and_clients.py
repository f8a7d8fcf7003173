"""What the audit trail tells of invitations, and python-gitlab's managers of them."""

import asyncio
from urllib.parse import quote

import gitlab
import pytest

from tests.support.forge import Forge
from tests.support.invitations import TAKEN, invite, managers_of, new_address


async def test_what_happens_to_an_invitation_is_audited(forge: Forge) -> None:
    """D7, with GitLab's names; the details are texts."""
    source, people = await managers_of(forge, "projects")
    owner, address = people["owner"], new_address()
    path = f"{source}/invitations/{quote(address)}"
    await invite(owner.api, source, email=address, expires_at="2999-01-01")
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
