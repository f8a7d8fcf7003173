"""Forms that create and delete branches and tags, and that create, edit and delete releases."""

from typing import Any

import attrs
from aiohttp import web

from api_server.code import repository_handlers
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.files import EDIT
from api_server.pages.page import url_path
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.releases import handlers as releases
from api_server.web.routes import ask

pages = Pages()

#: Maximum number of links in the form of a new release.
_MAX_LINKS = 3


@attrs.frozen(kw_only=True)
class NewRef:
    """The parameters of the form. `ref` is the branch, tag or commit at which the new branch or tag begins."""

    ref: str = ""


@attrs.frozen(kw_only=True)
class Named:
    name: str


@pages.get("/{project}/-/branches/new", access=EDIT)
async def show_new_branch(
    request: web.Request, visitor: Visitor, params: NewRef, project: Project
) -> web.Response:
    ref = params.ref or project.default_branch
    return page.answer(request, visitor, "projects/new_branch.html", project=project, ref=ref)


@pages.post("/{project}/-/branches", access=EDIT, form_page=show_new_branch)
async def create_branch(request: web.Request, visitor: Visitor, form: Form, project: Project) -> web.Response:
    branch = await page.read(request, repository_handlers.create_branch, project, **form)
    path = f"/{project.full_path}/-/tree/{url_path(branch['name'])}"
    return page.see_other(request, visitor, path, f"Branch {branch['name']} created.")


@pages.post("/{project}/-/branches/delete", access=EDIT)
async def delete_branch(
    request: web.Request, visitor: Visitor, params: Named, project: Project
) -> web.Response:
    await ask(request, repository_handlers.delete_branch, project, name=params.name)
    path = f"/{project.full_path}/-/branches"
    return page.see_other(request, visitor, path, f"Branch {params.name} deleted.")


@pages.get("/{project}/-/tags/new", access=EDIT)
async def show_new_tag(
    request: web.Request, visitor: Visitor, params: NewRef, project: Project
) -> web.Response:
    ref = params.ref or project.default_branch
    return page.answer(request, visitor, "projects/new_tag.html", project=project, ref=ref)


@pages.post("/{project}/-/tags", access=EDIT, form_page=show_new_tag)
async def create_tag(request: web.Request, visitor: Visitor, form: Form, project: Project) -> web.Response:
    tag = await page.read(request, repository_handlers.create_tag, project, **form)
    path = f"/{project.full_path}/-/tags"
    return page.see_other(request, visitor, path, f"Tag {tag['name']} created.")


@pages.post("/{project}/-/tags/delete", access=EDIT)
async def delete_tag(request: web.Request, visitor: Visitor, params: Named, project: Project) -> web.Response:
    """Delete the tag, and its release if it has one."""
    await ask(request, repository_handlers.delete_tag, project, name=params.name)
    path = f"/{project.full_path}/-/tags"
    return page.see_other(request, visitor, path, f"Tag {params.name} deleted.")


@attrs.frozen(kw_only=True)
class NewRelease:
    tag_name: str = ""


@attrs.frozen(kw_only=True)
class OneRelease:
    tag: str


@pages.get("/{project}/-/releases/new", access=EDIT)
async def show_new_release(
    request: web.Request, visitor: Visitor, params: NewRelease, project: Project
) -> web.Response:
    return page.answer(
        request,
        visitor,
        "projects/new_release.html",
        project=project,
        tag_name=params.tag_name,
        most_links=_MAX_LINKS,
    )


@pages.post("/{project}/-/releases", access=EDIT, form_page=show_new_release)
async def create_release(
    request: web.Request, visitor: Visitor, form: Form, project: Project
) -> web.Response:
    """Create a release of an existing tag, or of a new tag at `ref`."""
    fields = {**form, "assets": {"links": _links(form)}}
    if not fields.get("released_at"):
        fields.pop("released_at", None)
    release = await page.read(request, releases.create_release, project, **fields)
    return _to_release(request, visitor, project, release["tag_name"], f"Release {release['name']} created.")


def _links(form: Form) -> list[dict[str, Any]]:
    """Return the links whose fields are not both empty."""
    rows = [
        {"name": form.get(f"link_name_{number}", ""), "url": form.get(f"link_url_{number}", "")}
        for number in range(_MAX_LINKS)
    ]
    return [row for row in rows if row["name"] or row["url"]]


@pages.get("/{project}/-/releases/{tag:.+}/edit", access=EDIT)
async def show_edit_release(
    request: web.Request, visitor: Visitor, params: OneRelease, project: Project
) -> web.Response:
    release = await page.read(request, releases.show_release, project, tag_name=params.tag)
    return page.answer(request, visitor, "projects/edit_release.html", project=project, release=release)


@pages.post("/{project}/-/releases/{tag:.+}/edit", access=EDIT, form_page=show_edit_release)
async def update_release(
    request: web.Request, visitor: Visitor, params: OneRelease, form: Form, project: Project
) -> web.Response:
    release = await page.read(request, releases.show_release, project, tag_name=params.tag)
    fields = {"name": form.get("name", ""), "description": form.get("description", "")}
    # The field has whole seconds only: if it was not changed, the stored moment must stay as it is.
    if (moment := str(form.get("released_at", ""))) not in ("", release["released_at"][: len(moment)]):
        fields["released_at"] = moment
    await ask(request, releases.update_release, project, tag_name=params.tag, **fields)
    return _to_release(request, visitor, project, params.tag, "Changes saved.")


@attrs.frozen(kw_only=True)
class OneLink(OneRelease):
    link_id: int


_LINKS = "/{project}/-/release_links"


@pages.post(_LINKS, access=EDIT, form_page=show_edit_release)
async def create_link(
    request: web.Request, visitor: Visitor, params: OneRelease, form: Form, project: Project
) -> web.Response:
    await ask(request, releases.create_link, project, **form, tag_name=params.tag)
    return _to_release(request, visitor, project, params.tag, "Link added.", "/edit")


@pages.post(f"{_LINKS}/{{link_id}}/update", access=EDIT, form_page=show_edit_release)
async def update_link(
    request: web.Request, visitor: Visitor, params: OneLink, form: Form, project: Project
) -> web.Response:
    fields = {**form, "tag_name": params.tag, "link_id": params.link_id}
    await ask(request, releases.update_link, project, **fields)
    return _to_release(request, visitor, project, params.tag, "Link updated.", "/edit")


@pages.post(f"{_LINKS}/{{link_id}}/delete", access=EDIT)
async def delete_link(
    request: web.Request, visitor: Visitor, params: OneLink, project: Project
) -> web.Response:
    await ask(request, releases.delete_link, project, tag_name=params.tag, link_id=params.link_id)
    return _to_release(request, visitor, project, params.tag, "Link deleted.", "/edit")


@pages.post("/{project}/-/releases/{tag:.+}/delete", access=EDIT)
async def delete_release(
    request: web.Request, visitor: Visitor, params: OneRelease, project: Project
) -> web.Response:
    """Delete the release, but not its tag."""
    await ask(request, releases.delete_release, project, tag_name=params.tag)
    path = f"/{project.full_path}/-/releases"
    return page.see_other(request, visitor, path, f"Release deleted. The tag {params.tag} is kept.")


def _to_release(
    request: web.Request, visitor: Visitor, project: Project, tag: str, text: str, below: str = ""
) -> web.Response:
    path = f"/{project.full_path}/-/releases/{url_path(tag)}{below}"
    return page.see_other(request, visitor, path, text)
