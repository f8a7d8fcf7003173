"""Every write that succeeds leaves its event in the audit trail (decision D7)."""

import re
from typing import Any

import attrs
import pytest

from api_server.web.access import Role
from api_server.web.routes import Route
from tests.support.forge import Client, Forge, new_name
from tests.support.route_table import ROUTES, name_of

#: The modules whose writes are in the table below.
MODULES = ("users", "emails", "tokens", "groups", "projects", "members", "branches", "settings", "repository")
#: Writes that are like another one of the table.
ALIKE = {
    "DELETE /user/emails/{email_id}",
    "POST /users/{id}/unblock",
    "POST /projects/{id}/unarchive",
    "DELETE /personal_access_tokens/self",
    "POST /personal_access_tokens/self/rotate",
}
#: Writes without an event, and why.
UNAUDITED = {
    "POST /projects/{id}/repository/branches": "git's own history tells",
    "DELETE /projects/{id}/repository/branches/{name}": "git's own history tells",
    "POST /projects/{id}/repository/commits": "git's own history tells",
    "POST /projects/{id}/repository/tags": "git's own history tells",
    "DELETE /projects/{id}/repository/tags/{name}": "git's own history tells",
    "POST /projects/{id}/repository/files/{path}": "git's own history tells",
    "PUT /projects/{id}/repository/files/{path}": "git's own history tells",
    "DELETE /projects/{id}/repository/files/{path}": "git's own history tells",
}


@attrs.frozen
class Write:
    """A request that changes something, and the types of the events that it leaves."""

    method: str
    path: str
    body: dict[str, Any]
    events: tuple[str, ...]


_PROJECT, _GROUP = "/projects/{project}", "/groups/{group}"
WRITES = [
    Write(
        "POST",
        "/users",
        {"username": "{new}", "name": "n", "email": "{new}@example.org", "force_random_password": True},
        ("user_created",),
    ),
    Write("PUT", "/users/{user}", {"name": "another"}, ("user_updated",)),
    Write("POST", "/users/{user}/block", {}, ("user_blocked",)),
    Write("DELETE", "/users/{user}", {}, ("user_destroyed",)),
    Write("POST", "/user/static_object_token/rotate", {}, ("static_object_token_rotated",)),
    Write("POST", "/user/emails", {"email": "{new}@example.org"}, ("email_created",)),
    Write("POST", "/users/{user}/emails", {"email": "{new}@example.org"}, ("email_created",)),
    Write("DELETE", "/users/{user}/emails/{email}", {}, ("email_destroyed",)),
    Write(
        "POST",
        "/users/{user}/personal_access_tokens",
        {"name": "n", "scopes": ["api"]},
        ("personal_access_token_created",),
    ),
    Write("DELETE", "/personal_access_tokens/{token}", {}, ("personal_access_token_revoked",)),
    Write(
        "POST",
        "/personal_access_tokens/{token}/rotate",
        {},
        ("personal_access_token_revoked", "personal_access_token_created"),
    ),
    Write("POST", "/groups", {"name": "n", "path": "{new}"}, ("group_created",)),
    Write(
        "PUT",
        _GROUP,
        {"name": "another", "path": "{new}", "visibility": "private"},
        ("group_name_updated", "group_path_updated", "group_visibility_level_updated"),
    ),
    Write("DELETE", _GROUP, {}, ("group_destroyed",)),
    Write("POST", "/projects", {"path": "{new}"}, ("project_created",)),
    Write(
        "PUT",
        _PROJECT,
        {"name": "another", "path": "{new}", "visibility": "public"},
        ("project_name_updated", "project_path_updated", "project_visibility_level_updated"),
    ),
    Write("POST", f"{_PROJECT}/archive", {}, ("project_archived",)),
    Write("DELETE", _PROJECT, {}, ("project_destroyed",)),
    Write(
        "PUT",
        f"{_PROJECT}/transfer",
        {"namespace": "{group}"},
        ("project_namespace_updated",),
    ),
    *(
        write
        for source in (_GROUP, _PROJECT)
        for write in (
            Write(
                "POST", f"{source}/members", {"user_id": "{user}", "access_level": 30}, ("member_created",)
            ),
            Write("PUT", f"{source}/members/{{member}}", {"access_level": 40}, ("member_updated",)),
            Write("DELETE", f"{source}/members/{{member}}", {}, ("member_destroyed",)),
        )
    ),
    Write("POST", f"{_PROJECT}/protected_branches", {"name": "new"}, ("protected_branch_created",)),
    Write(
        "PATCH",
        f"{_PROJECT}/protected_branches/main",
        {"push_access_level": 0, "allow_force_push": True},
        ("protected_branch_updated", "protected_branch_updated"),
    ),
    Write("DELETE", f"{_PROJECT}/protected_branches/main", {}, ("protected_branch_removed",)),
    Write(
        "PUT",
        "/application/settings",
        {"default_projects_limit": 7},
        ("application_setting_updated",),
    ),
]


def test_every_write_is_in_the_table_or_has_a_reason() -> None:
    writes = [
        route
        for route in ROUTES
        if route.method != "GET" and route.handler.__module__.split(".")[2] in MODULES
    ]
    missing = {name_of(route) for route in writes if not any(_is(route, write) for write in WRITES)}
    assert missing == ALIKE | set(UNAUDITED)


def _is(route: Route, write: Write) -> bool:
    pattern = re.sub(r"{[^}]+}", "[^/]+", route.path)
    return route.method == write.method and re.fullmatch(pattern, write.path) is not None


@pytest.mark.parametrize("write", WRITES, ids=lambda write: f"{write.method} {write.path}")
async def test_a_write_leaves_its_events(own_forge: Forge, write: Write) -> None:
    names = await _things(own_forge)
    last = await own_forge.database.value("SELECT coalesce(max(id), 0) FROM audit_events")
    body = {
        key: value.format(**names) if isinstance(value, str) else value for key, value in write.body.items()
    }
    answer = await own_forge.root.request(write.method, write.path.format(**names), json=body)
    assert answer.status in (200, 201, 202, 204), answer
    rows = await own_forge.database.rows(
        "SELECT event_type, author_id, ip_address, details::text AS details FROM audit_events"
        " WHERE id > %(last)s ORDER BY id",
        last=last,
    )
    assert sorted(row.event_type for row in rows) == sorted(write.events)
    assert all(row.author_id == 1 and row.ip_address == "127.0.0.1" for row in rows)
    assert not any("flpat-" in row.details or "flso-" in row.details for row in rows)


async def _things(forge: Forge) -> dict[str, Any]:
    """Something of each kind to change, by the names that the table's paths use."""
    user, member = await forge.user(), await forge.user("member")
    group = await forge.group()
    project = await forge.project(members={Role.DEVELOPER: member})
    await forge.member("groups", group["id"], member, Role.DEVELOPER)
    await forge.root.post(f"/projects/{project['id']}/protected_branches", {"name": "main"})
    own = Client(forge.session, forge.base, await forge.token(user.id))
    token = await own.get("/personal_access_tokens/self")
    email = await own.post("/user/emails", {"email": f"{new_name('second')}@example.org"})
    return {
        "user": user.id,
        "member": member.id,
        "group": group["id"],
        "project": project["id"],
        "token": token.body["id"],
        "email": email.body["id"],
        "new": new_name("new"),
    }
