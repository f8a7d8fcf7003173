"""The frame of the pages of settings, with a navigation of the sections that the visitor may open."""

from typing import Any

import attrs
from aiohttp import web

from api_server.namespaces.resources import Group, Project
from api_server.pages import page
from api_server.pages.sessions import Visitor
from api_server.web.routes import Role


@attrs.frozen
class Section:
    """A page of settings. `path` is appended to the address of the project or group."""

    title: str
    path: str
    role: Role


OF_PROJECT = [
    Section("General", "/-/edit", Role.MAINTAINER),
    Section("Repository", "/-/settings/repository", Role.MAINTAINER),
    Section("Merge requests", "/-/settings/merge_requests", Role.MAINTAINER),
    Section("CI/CD", "/-/settings/ci_cd", Role.MAINTAINER),
    Section("Audit events", "/-/audit_events", Role.DEVELOPER),
]
OF_GROUP = [
    Section("General", "/-/edit", Role.OWNER),
    Section("CI/CD", "/-/settings/ci_cd", Role.OWNER),
    Section("Audit events", "/-/audit_events", Role.DEVELOPER),
]


def home(resource: Project | Group) -> str:
    """Return the address of the page of a project or a group."""
    return f"/{resource.full_path}" if isinstance(resource, Project) else f"/groups/{resource.full_path}"


def values(request: web.Request, resource: Project | Group) -> dict[str, Any]:
    """Return the values for the template of a page of settings: `frame`, the template that it extends; the `resource`
    and `home`, its address; and the `sections` that the visitor may open."""
    is_project = isinstance(resource, Project)
    base = home(resource)
    sections = [
        (section.title, f"{base}{section.path}", request.path.startswith(f"{base}{section.path}"))
        for section in (OF_PROJECT if is_project else OF_GROUP)
        if resource.role >= section.role
    ]
    return {
        "frame": f"settings/{'project' if is_project else 'group'}.html",
        "project" if is_project else "group": resource,
        "resource": resource,
        "home": base,
        "sections": sections,
        "tab": "settings",
    }


def answer(
    request: web.Request,
    visitor: Visitor,
    resource: Project | Group,
    template: str,
    status: int = 200,
    **page_values: Any,
) -> web.Response:
    """Return a page of settings or, with another `tab`, a page with the same frame, such as the members."""
    common = values(request, resource) | {"back": page.address(request)}
    return page.answer(request, visitor, f"settings/{template}", status, **common | page_values)
