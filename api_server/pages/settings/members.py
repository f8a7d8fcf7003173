"""`/<project>/-/project_members` and `/groups/<group>/-/group_members`: members, their roles, and invitations."""

from collections.abc import Mapping
from typing import Any

import attrs
from aiohttp import web

from api_server.accounts.path_rules import FULL_PATH
from api_server.accounts.user_queries import find_user_by_username
from api_server.invitations import handlers as invitations
from api_server.namespaces import member_handlers
from api_server.namespaces.access import group, project
from api_server.namespaces.members import manager, source_of
from api_server.namespaces.resources import Group, Project
from api_server.pages import page
from api_server.pages.lists import act
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.pages.settings import frame
from api_server.web import context
from api_server.web.errors import ApiError, invalid, reason_of
from api_server.web.pagination import MAX_PER_PAGE
from api_server.web.routes import Role, ask

pages = Pages()

OF_PROJECT = "/{project}/-/project_members"
OF_GROUP = f"/groups/{{group:{FULL_PATH}}}/-/group_members"
#: The addresses of the pages, by the paths of their routes.
_HOMES = {OF_PROJECT: OF_PROJECT, OF_GROUP: "/groups/{group}/-/group_members"}
_ROLES = [Role.GUEST, Role.PLANNER, Role.REPORTER, Role.DEVELOPER, Role.MAINTAINER, Role.OWNER]


@attrs.frozen(kw_only=True)
class ListMembers:
    page: int = 1
    search: str = ""


@pages.get(OF_PROJECT, access=project())
@pages.get(OF_GROUP, access=group())
async def show_members(
    request: web.Request, visitor: Visitor, params: ListMembers, resource: Project | Group
) -> web.Response:
    """List direct and inherited members by id, and for visitors who manage them also the invitations."""
    query = {"page": params.page, "query": params.search or None}
    members = await page.read_list(request, member_handlers.list_all_members, resource, **query)
    ids = ",".join(str(member["id"]) for member in members.rows)
    direct = {"user_ids": ids or "0", "per_page": MAX_PER_PAGE}
    direct_members = await page.read(request, member_handlers.list_members, resource, **direct)
    manages = resource.role >= manager(source_of(resource).kind)
    invited = []
    if manages:
        invited = await page.read(request, invitations.list_invitations, resource, per_page=MAX_PER_PAGE)
    return frame.answer(
        request,
        visitor,
        resource,
        "members.html",
        tab="members",
        members_path=_page_of(resource),
        members=members.rows,
        direct={member["id"]: member for member in direct_members},
        pages=members.pages,
        invitations=invited,
        manages=manages,
        roles=[(int(role), role.title) for role in _ROLES if role <= resource.role],
        titles={int(role): role.title for role in Role},
        search=params.search,
        today=context.services(request).database.now.date().isoformat(),
    )


@pages.post(f"{OF_PROJECT}/invite", access=project(Role.MAINTAINER), form_page=show_members)
@pages.post(f"{OF_GROUP}/invite", access=group(Role.OWNER), form_page=show_members)
async def invite(
    request: web.Request, visitor: Visitor, form: Form, resource: Project | Group
) -> web.Response:
    """Make users members at once, and invite others by mail. Raise 422 if nobody was invited."""
    names = [name for name in str(form.get("recipients", "")).replace(",", " ").split() if name]
    users, problems = await _ids_of(request, [name for name in names if "@" not in name.removeprefix("@")])
    fields = {
        "email": [name for name in names if "@" in name.removeprefix("@")],
        "user_id": list(users),
        "access_level": form.get("access_level"),
        "expires_at": form.get("expires_at"),
    }
    if users or fields["email"]:
        problems |= await _invite(request, resource, fields, users)
    elif not problems:
        problems[""] = "Enter at least one username or email address."
    invited_count = len(names) - len(problems)
    sentences = [f"{name}: {text}" if name else text for name, text in problems.items()]
    if invited_count <= 0:
        raise invalid({"recipients": sentences}, status=422)
    summary = f"{page.plural(invited_count, 'person', 'people')} invited or added."
    return page.see_other(request, visitor, _page_of(resource), " ".join([summary, *sentences]))


async def _ids_of(request: web.Request, usernames: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the user names by the ids of their users, and the problems by the names that nobody has."""
    users: dict[str, str] = {}
    problems: dict[str, str] = {}
    for name in usernames:
        user = await find_user_by_username(context.services(request).database, name.removeprefix("@"))
        if user is None:
            problems[name] = "No user with this username."
        else:
            users[str(user.id)] = name
    return users, problems


async def _invite(
    request: web.Request, resource: Project | Group, fields: Mapping[str, Any], users: Mapping[str, str]
) -> dict[str, str]:
    """Invite the recipients, and return the problems by recipient. Raise 422 if all are refused."""
    try:
        answer = await page.read(request, invitations.invite, resource, **fields)
    except ApiError as refusal:
        if refusal.status == 201:  # GitLab's way to refuse all recipients
            raise invalid({"recipients": [reason_of(refusal)]}, status=422) from None
        if reason_of(refusal).startswith("Email "):
            raise invalid({"recipients": ["One of the email addresses is invalid."]}, status=422) from None
        raise
    return {users.get(name, name): f"{text}." for name, text in answer.get("message", {}).items()}


@pages.post(f"{OF_PROJECT}/leave", access=project())
@pages.post(f"{OF_GROUP}/leave", access=group())
async def leave(request: web.Request, visitor: Visitor, resource: Project | Group) -> web.Response:
    """End the visitor's own membership, after which she may not see the page any more."""
    await ask(request, member_handlers.remove_member, resource, user_id=visitor.user_id)
    return page.see_other(request, visitor, "/", f"You have left {resource.full_path}.")


def _page_of(resource: Project | Group) -> str:
    kind = "project" if isinstance(resource, Project) else "group"
    return f"{frame.home(resource)}/-/{kind}_members"


for _path, _access in ((OF_PROJECT, project), (OF_GROUP, group)):
    _manager = _access(Role.MAINTAINER if _path == OF_PROJECT else Role.OWNER)
    act(
        pages,
        f"{_path}/{{user_id}}/update",
        member_handlers.update_member,
        "Role updated.",
        access=_manager,
        home=_HOMES[_path],
        form_page=show_members,
    )
    act(
        pages,
        f"{_path}/{{user_id}}/remove",
        member_handlers.remove_member,
        "Member removed.",
        access=_manager,
        home=_HOMES[_path],
    )
    act(
        pages,
        f"{_path}/invitations/{{email:.+}}/update",
        invitations.update_invitation,
        "Invitation updated.",
        access=_manager,
        home=_HOMES[_path],
        form_page=show_members,
    )
    act(
        pages,
        f"{_path}/invitations/{{email:.+}}/withdraw",
        invitations.delete_invitation,
        "Invitation withdrawn. Its link no longer works.",
        access=_manager,
        home=_HOMES[_path],
    )
