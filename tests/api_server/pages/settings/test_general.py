"""General settings of a project, its members and its invitations."""

from typing import Any

import pytest

from api_server.pages.settings import general
from api_server.web.routes import Role
from tests.api_server.pages.settings.conftest import Scene
from tests.support.browser import Browser, browsing
from tests.support.forge import new_name


async def test_maintainers_open_it_and_nobody_below(scene: Scene) -> None:
    page = f"{scene.of_project}/-/edit"
    async with scene.browsing("developer") as browser:
        assert (await browser.get(page)).status == 403
        await browser.send(f"{page}/update", name="Another")
        assert browser.status == 403
    async with browsing(scene.forge) as stranger:
        assert (await stranger.get(page)).path == "/-/sign_in"
    async with scene.browsing("maintainer") as browser:
        await browser.get(f"{scene.of_project}/edit")
        assert (browser.status, browser.path) == (200, page)
        assert "Delete project" not in browser.text
        for path in ("archive", "path", "transfer", "delete"):
            await browser.send(f"{page}/{path}", confirmation=scene.project["path_with_namespace"])
            assert browser.status == 403
    assert (await scene.read())["name"] == scene.project["name"]


async def test_what_was_saved_is_what_the_api_has(scene: Scene, owner: Browser) -> None:
    page = f"{scene.of_project}/-/edit"
    await owner.get(page)
    await owner.send(
        f"{page}/update",
        name="Another <name>",
        description="With\ntwo lines",
        default_branch="main",
        repository_access_level="private",
        builds_access_level="disabled",
        visibility="private",
    )
    assert (owner.status, owner.path, "Settings saved." in owner.text) == (200, page, True)
    saved = await scene.read()
    assert (saved["name"], saved["description"]) == ("Another <name>", "With\ntwo lines")
    assert (saved["repository_access_level"], saved["builds_access_level"]) == ("private", "disabled")
    assert "Another &lt;name&gt;" in owner.text


async def test_a_refused_form_comes_back(scene: Scene, owner: Browser) -> None:
    page = f"{scene.of_project}/-/edit"
    await owner.get(page)
    await owner.send(f"{page}/update", name="N" * 300, default_branch="no such branch")
    assert (owner.status, "N" * 300 in owner.text, 'id="name-problem"' in owner.text) == (400, True, True)
    await owner.send(f"{page}/update", name="Fine", visibility="public")  # in a private group
    assert (owner.status, "public is not allowed in a private group." in owner.text) == (400, True)
    assert (await scene.read())["name"] == scene.project["name"]


async def test_a_project_is_archived_and_used_again(scene: Scene, owner: Browser) -> None:
    page = f"{scene.of_project}/-/edit"
    await owner.get(page)
    await owner.send(f"{page}/archive")
    assert (owner.path, "Project archived." in owner.text) == (page, True)
    assert (await scene.read())["archived"]
    await owner.send(f"{page}/unarchive")
    assert not (await scene.read())["archived"]


async def test_a_project_moves_and_its_old_address_leads_to_the_new_one(
    scene: Scene, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = new_name("moved")
    await owner.get(f"{scene.of_project}/-/edit")
    await owner.send(f"{scene.of_project}/-/edit/path", path="no/path")
    assert (owner.status, 'id="move-path-problem"' in owner.text) == (400, True)
    await owner.send(f"{scene.of_project}/-/edit/path", path=name)
    moved = f"/{scene.group['full_path']}/{name}"
    assert (owner.status, owner.path) == (200, f"{moved}/-/edit")
    assert (await owner.get(f"{scene.of_project}/-/edit")).path == f"{moved}/-/edit"
    assert f'<option value="{scene.owner.username}">' in owner.text
    monkeypatch.setattr(general, "MAX_PER_PAGE", 1)  # values that the form does not offer are typed
    assert 'name="namespace" type="text"' in (await owner.get(f"{moved}/-/edit")).text
    await owner.send(f"{moved}/-/edit/transfer", namespace=scene.owner.username)
    assert owner.path == f"/{scene.owner.username}/{name}/-/edit"
    assert (await scene.read())["path_with_namespace"] == f"{scene.owner.username}/{name}"


async def test_a_project_is_deleted_by_who_types_its_path(scene: Scene, owner: Browser) -> None:
    page, path = f"{scene.of_project}/-/edit", scene.project["path_with_namespace"]
    await owner.get(page)
    for typed in ("", scene.project["path"], path.upper()):
        await owner.send(f"{page}/delete", confirmation=typed)
        assert (owner.status, f"Type {path} to confirm." in owner.text) == (422, True)
    await owner.send(f"{page}/delete", confirmation=f" {path} ")
    assert (owner.path, f"Project {path} deleted." in owner.text) == ("/", True)
    assert (await scene.owner.api.get(scene.api)).status == 404


async def test_a_group_is_changed_and_deleted_by_its_owners(scene: Scene, owner: Browser) -> None:
    page, api = f"{scene.of_group}/-/edit", f"/groups/{scene.group['id']}"
    name = new_name("renamed")
    await owner.get(page)
    await owner.send(f"{page}/update", name="", path=name)
    assert (owner.status, 'id="name-problem"' in owner.text) == (400, True)
    fields = {"description": "D", "visibility": "internal", "project_creation_level": "noone"}
    await owner.send(f"{page}/update", name="New name", path=name, **fields)
    assert (owner.status, owner.path) == (200, f"/groups/{name}/-/edit")
    saved = (await scene.owner.api.get(api)).body
    assert fields.items() <= saved.items()
    assert (saved["name"], saved["full_path"]) == ("New name", name)
    async with scene.browsing("maintainer") as browser:  # of a project in it
        assert (await browser.get(f"/groups/{name}/-/edit")).status == 403
    await owner.send(f"/groups/{name}/-/edit/delete", confirmation=scene.group["full_path"])
    assert (owner.status, f"Type {name} to confirm." in owner.text) == (422, True)
    await owner.send(f"/groups/{name}/-/edit/delete", confirmation=name)
    assert (owner.path, f"Group {name} deleted." in owner.text) == ("/", True)
    assert (await scene.owner.api.get(api)).status == 404


@pytest.mark.parametrize("path", ["update", "archive", "path", "transfer", "delete"])
async def test_general_forms_that_are_not_ours_do_nothing(scene: Scene, owner: Browser, path: str) -> None:
    before = await scene.read()
    await owner.get(f"{scene.of_project}/-/edit")
    fields = {"name": "Another", "path": "another", "namespace": scene.owner.username}
    fields["confirmation"] = scene.project["path_with_namespace"]
    await owner.send(f"{scene.of_project}/-/edit/{path}", csrf_token="another", **fields)
    assert owner.status == 403
    assert await scene.read() == before


def page_of(scene: Scene) -> str:
    return f"{scene.of_project}/-/project_members"


async def roles_in(scene: Scene) -> dict[int, int]:
    """Return the direct members' roles, by user id."""
    members = await scene.read("/members?per_page=100")
    return {member["id"]: member["access_level"] for member in members}


async def invitations_of(scene: Scene) -> list[tuple[str, int, Any]]:
    invitations = await scene.read("/invitations")
    return [(each["invite_email"], each["access_level"], each["expires_at"]) for each in invitations]


async def test_everybody_who_sees_the_project_sees_its_members_and_managers_may_invite(scene: Scene) -> None:
    guest = scene.people["guest"]
    for role, manages in (("guest", False), ("developer", False), ("maintainer", True), ("owner", True)):
        async with scene.browsing(role) as browser:
            await browser.get(page_of(scene))
            assert (browser.status, f"@{guest.username}" in browser.text) == (200, True)
            assert ("Invite members" in browser.text) == manages
            assert f"/{guest.id}/update" in browser.text if manages else "/update" not in browser.text
    async with browsing(scene.forge) as stranger:
        assert (await stranger.get(page_of(scene))).path == "/-/sign_in"
    async with browsing(scene.forge, scene.people["stranger"]) as outsider:
        assert (await outsider.get(page_of(scene))).status == 404


async def test_people_are_invited_by_user_name_and_by_address_at_once(
    scene: Scene, maintainer: Browser
) -> None:
    one, two = await scene.forge.user("one"), await scene.forge.user("two")
    address = f"{new_name('new')}@example.org"
    await maintainer.get(page_of(scene))
    recipients = f"{one.username}, @{two.username} {address}, nobody-is-called-so"
    await maintainer.send(
        f"{page_of(scene)}/invite", recipients=recipients, access_level="20", expires_at="2999-12-31"
    )
    assert (maintainer.status, maintainer.path) == (200, page_of(scene))
    assert "3 people invited or added. nobody-is-called-so: No user with this username." in maintainer.text
    roles = await roles_in(scene)
    assert (roles[one.id], roles[two.id]) == (20, 20)
    assert await invitations_of(scene) == [(address, 20, "2999-12-31T00:00:00.000Z")]
    assert address in maintainer.text


async def test_a_refused_invitation_comes_back_with_what_was_typed(scene: Scene, maintainer: Browser) -> None:
    guest = scene.people["guest"]
    await maintainer.get(page_of(scene))
    for recipients, sentence in (
        (guest.username, f"{guest.username}: User already exists in source."),
        ("nobody-is-called-so", "nobody-is-called-so: No user with this username."),
        (" , ", "Enter at least one username or email address."),
        ("not@an-address", "One of the email addresses is invalid."),
    ):
        await maintainer.send(f"{page_of(scene)}/invite", recipients=recipients, access_level="30")
        assert (maintainer.status, sentence in maintainer.text) == (422, True), maintainer.text
        assert 'id="recipients-problem"' in maintainer.text
    await maintainer.send(f"{page_of(scene)}/invite", recipients="new@example.org", access_level="77")
    assert (maintainer.status, 'id="access_level-problem"' in maintainer.text) == (400, True)
    assert 'value="new@example.org"' in maintainer.text
    assert await invitations_of(scene) == []


async def test_maintainers_do_not_make_owners(scene: Scene, maintainer: Browser) -> None:
    await maintainer.get(page_of(scene))
    assert '<option value="50"' not in maintainer.text
    await maintainer.send(f"{page_of(scene)}/invite", recipients="new@example.org", access_level="50")
    assert maintainer.status == 403
    owner = scene.people["owner"]
    assert f"/{owner.id}/update" not in maintainer.text
    await maintainer.send(f"{page_of(scene)}/{owner.id}/update", access_level="10")
    assert maintainer.status == 403
    assert (await roles_in(scene))[owner.id] == 50


async def test_a_role_is_changed_and_a_membership_ended(scene: Scene, maintainer: Browser) -> None:
    guest = scene.people["guest"]
    await maintainer.get(page_of(scene))
    await maintainer.send(f"{page_of(scene)}/{guest.id}/update", access_level="30", expires_at="2001-01-01")
    assert (maintainer.status, "cannot be a date in the past" in maintainer.text) == (400, True)
    await maintainer.send(f"{page_of(scene)}/{guest.id}/update", access_level="30", expires_at="2999-12-31")
    assert "Role updated." in maintainer.text
    assert (await roles_in(scene))[guest.id] == 30
    await maintainer.send(f"{page_of(scene)}/{guest.id}/remove", back=f"{page_of(scene)}?search=guest")
    assert maintainer.path_qs == f"{page_of(scene)}?search=guest"
    assert "Member removed." in maintainer.text
    assert guest.id not in await roles_in(scene)
    assert [event["author_id"] for event in await scene.events("member_destroyed")] == [
        scene.people["maintainer"].id
    ]


async def test_an_invitation_is_changed_and_withdrawn(scene: Scene, maintainer: Browser) -> None:
    address = "odd/name+tag@example.org"
    invited = {"email": address, "access_level": 10}
    assert (await scene.owner.api.post(f"{scene.api}/invitations", invited)).status == 201
    await maintainer.get(page_of(scene))
    path = f"{page_of(scene)}/invitations/odd%2Fname%2Btag%40example.org"
    assert f'action="{path.replace("%2F", "/")}/update"' in maintainer.text
    await maintainer.send(f"{path}/update", access_level="20", expires_at="2999-12-31")
    assert "Invitation updated." in maintainer.text
    assert await invitations_of(scene) == [(address, 20, "2999-12-31T00:00:00.000Z")]
    await maintainer.send(f"{path}/withdraw")
    assert "Invitation withdrawn." in maintainer.text
    assert await invitations_of(scene) == []
    await maintainer.send(f"{path}/withdraw")
    assert "Nothing was done: it is not there any more." in maintainer.text


async def test_one_leaves_by_oneself(scene: Scene) -> None:
    guest = scene.people["guest"]
    async with scene.browsing("guest") as browser:
        await browser.get(page_of(scene))
        await browser.send(f"{page_of(scene)}/leave")
        assert (browser.status, browser.path) == (200, "/")
        assert f"You have left {scene.project['path_with_namespace']}." in browser.text
        assert (await browser.get(page_of(scene))).status == 404
    assert guest.id not in await roles_in(scene)


async def test_a_group_has_the_same_page_for_its_owners(scene: Scene, owner: Browser) -> None:
    reporter = await scene.forge.new_member(scene.group["id"], Role.REPORTER, source="groups")
    page = f"{scene.of_group}/-/group_members"
    address = f"{new_name('new')}@example.org"
    await owner.get(page)
    await owner.send(f"{page}/invite", recipients=address, access_level="30")
    assert (owner.status, owner.path, "1 person invited or added." in owner.text) == (200, page, True)
    await owner.send(f"{page}/{reporter.id}/update", access_level="40")
    api = f"/groups/{scene.group['id']}"
    assert (await scene.owner.api.get(f"{api}/members/{reporter.id}")).body["access_level"] == 40
    await owner.send(f"{page}/invitations/{address}/withdraw")
    assert (await scene.owner.api.get(f"{api}/invitations")).body == []
    async with browsing(scene.forge, reporter) as browser:
        await browser.get(page)
        assert (browser.status, "Invite members" in browser.text) == (200, False)
        await browser.send(f"{page}/invite", recipients=address, access_level="30")
        assert browser.status == 403


async def test_members_of_a_group_above_are_shown_as_such(scene: Scene, maintainer: Browser) -> None:
    above = await scene.forge.new_member(scene.group["id"], Role.REPORTER, source="groups")
    await maintainer.get(f"{page_of(scene)}?search={above.username}")
    assert (above.username in maintainer.text, ">inherited</td>" in maintainer.text) == (True, True)
    assert f"/{above.id}/update" not in maintainer.text
    await maintainer.get(f"{page_of(scene)}?search=nobody-is-called-so")
    assert "No members match the search." in maintainer.text


@pytest.mark.parametrize(
    "path", ["invite", "leave", "1/update", "1/remove", "invitations/a@example.org/update"]
)
async def test_forms_that_are_not_ours_do_nothing(scene: Scene, maintainer: Browser, path: str) -> None:
    await maintainer.get(page_of(scene))
    before = await roles_in(scene)
    fields = {"recipients": "new@example.org", "access_level": "30"}
    await maintainer.send(f"{page_of(scene)}/{path}", csrf_token="another", **fields)
    assert maintainer.status == 403
    assert (await roles_in(scene), await invitations_of(scene)) == (before, [])
