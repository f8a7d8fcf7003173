"""`/<project>/-/settings/repository`: mirrors, and the protection of branches and tags."""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web

from api_server.code import protected_ref_handlers as protected
from api_server.mirrors import handlers as mirrors
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.lists import act
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.pages.settings import frame, queries
from api_server.pages.settings.queries import QueuedRun
from api_server.web import context
from api_server.web.errors import invalid
from api_server.web.pagination import MAX_PER_PAGE
from api_server.web.routes import Role, ask

pages = Pages()

PAGE = "/{project}/-/settings/repository"
MAINTAINER = project(Role.MAINTAINER)

#: What to do about the last error of a mirror, by regular expressions that its text matches.
_REMEDIES: Final = {
    "authentication failed|permission denied|could not read username|access denied|\\b401\\b|\\b403\\b": "The target"
    " rejects the credentials. Change them, or give their account write access to the repository.",
    "host key|known_hosts": "The target's SSH host key is not the known one. If the new key is right, update the"
    " mirror's SSH host keys.",
    "could not resolve|no address|name or service": "The host name in the URL cannot be resolved. Correct the URL.",
    "failed to connect|timed out|took too long|refused: nothing|could not be reached|connection": "The target does not"
    " respond. Check that it is running, then sync.",
    "url is invalid|not allowed|blocked": "This service is not allowed to send requests to this address. Ask an"
    " administrator to allow it.",
    "not found|does not appear to be|\\b404\\b": "The repository does not exist, or the account has no access to it."
    " Correct the URL, or create the repository.",
    "diverged": "Branches on the target have diverged, and this mirror keeps divergent refs. Merge their commits here,"
    " or let the mirror overwrite them.",
    "hook declined|protected|rejected": "The target's own rules reject some branches. Allow the account to push them.",
}
_USUAL_REMEDY = "Correct the target, its URL or the credentials, then sync."


def remedy(last_error: str) -> str:
    """Return one or two sentences about what to do."""
    text = last_error.lower()
    return next((advice for pattern, advice in _REMEDIES.items() if re.search(pattern, text)), _USUAL_REMEDY)


def why_it_waits(mirror: Mapping[str, Any], run: QueuedRun | None) -> str:
    """Return in a sentence what happens next with the mirror."""
    if not mirror["enabled"]:
        return "The mirror is disabled. Enable it under Edit to push changes."
    if mirror["update_status"] == "started":
        return "An update is running."
    if run is None:
        return "Updates after the next change of the repository, or with Sync now."
    if run.scheduled_at is None:
        return "Will be updated shortly."
    return f"Will be retried at {run.scheduled_at:%Y-%m-%d %H:%M} UTC."


@pages.get(PAGE, access=MAINTAINER)
async def show_repository_settings(request: web.Request, visitor: Visitor, project: Project) -> web.Response:
    rows = await page.read(request, mirrors.list_mirrors, project, per_page=MAX_PER_PAGE)
    queued = await queries.queued_runs(context.services(request).database, project.id)
    runs = {run.mirror_id: run for run in queued}
    for mirror in rows:
        run = runs.get(mirror["id"])
        mirror["next"] = why_it_waits(mirror, run)
        mirror["is_soon"] = mirror["enabled"] and run is not None and run.scheduled_at is None
        mirror["remedy"] = remedy(mirror["last_error"]) if mirror["last_error"] else ""
        mirror["public_key"] = await _public_key(request, project, mirror)
    return frame.answer(
        request,
        visitor,
        project,
        "repository.html",
        mirrors=rows,
        branches=await page.read(request, protected.list_protected_branches, project, per_page=MAX_PER_PAGE),
        tags=await page.read(request, protected.list_protected_tags, project, per_page=MAX_PER_PAGE),
    )


async def _public_key(request: web.Request, project: Project, mirror: Mapping[str, Any]) -> str | None:
    """Return the key that the target has to accept, or None if the mirror has no key."""
    if mirror["auth_method"] != "ssh_public_key":
        return None
    entity = await page.read(request, mirrors.show_public_key, project, mirror_id=str(mirror["id"]))
    return str(entity["public_key"]) if entity["public_key"] else None


@pages.post(f"{PAGE}/mirrors", access=MAINTAINER, form_page=show_repository_settings)
async def create_mirror(request: web.Request, visitor: Visitor, form: Form, project: Project) -> web.Response:
    await ask(request, mirrors.create_mirror, project, **_mirror(form))
    return _back(request, visitor, project, "Mirror created.")


@pages.post(f"{PAGE}/mirrors/{{mirror_id}}", access=MAINTAINER, form_page=show_repository_settings)
async def update_mirror(request: web.Request, visitor: Visitor, form: Form, project: Project) -> web.Response:
    mirror_id = request.match_info["mirror_id"]
    await ask(request, mirrors.update_mirror, project, mirror_id=mirror_id, **_mirror(form))
    return _back(request, visitor, project, "Mirror updated.")


def _mirror(form: Form) -> dict[str, Any]:
    """Return the API's parameters. The API takes user name and password as part of the URL, but the form has fields for
    them. Raise 422 if the URL has no place for them, or a chosen expression is missing."""
    branches, url = form.get("branches"), str(form.get("url", "")).strip()
    fields = {
        "url": _with_credentials(url, str(form.get("user", "")), str(form.get("password", ""))),
        "enabled": form.get("enabled", "false"),
        "auth_method": form.get("auth_method"),
        "keep_divergent_refs": form.get("keep_divergent_refs", "false"),
        "only_protected_branches": branches == "protected",
    }
    expression = str(form.get("mirror_branch_regex", "")).strip()
    if branches == "regex" and not expression:
        raise invalid(
            {"mirror_branch_regex": ["Enter a regular expression, or choose other branches."]}, status=422
        )
    keys = [line for line in str(form.get("host_keys", "")).splitlines() if line.strip()]
    return (
        fields
        | ({"mirror_branch_regex": expression if branches == "regex" else ""} if "branches" in form else {})
        | ({"host_keys": keys} if keys else {})
    )


def _with_credentials(url: str, user: str, password: str) -> str:
    """Return the URL with the typed user name and password, or unchanged if there are none. Raise 422 if it has no
    place for them."""
    if not (user or password):
        return url
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise invalid({"url": ["is invalid"]}, status=422)
    host, slash, path = rest.partition("/")
    bare = host.rpartition("@")[2]
    secret = f":{quote(password, safe='')}" if password else ""
    return f"{scheme}://{quote(user, safe='')}{secret}@{bare}{slash}{path}"


act(
    pages,
    f"{PAGE}/mirrors/{{mirror_id}}/sync",
    mirrors.sync_mirror,
    "The mirror will be updated shortly.",
    access=MAINTAINER,
    home=PAGE,
)
act(
    pages,
    f"{PAGE}/mirrors/{{mirror_id}}/delete",
    mirrors.delete_mirror,
    "Mirror deleted. The target repository keeps its content.",
    access=MAINTAINER,
    home=PAGE,
)
act(
    pages,
    f"{PAGE}/branches",
    protected.protect_branch,
    "Branch protected.",
    access=MAINTAINER,
    home=PAGE,
    form_page=show_repository_settings,
)
act(
    pages,
    f"{PAGE}/branches/{{name:.+}}/update",
    protected.update_protected_branch,
    "Branch protection updated.",
    access=MAINTAINER,
    home=PAGE,
    form_page=show_repository_settings,
)
act(
    pages,
    f"{PAGE}/branches/{{name:.+}}/unprotect",
    protected.unprotect_branch,
    "Branch unprotected.",
    access=MAINTAINER,
    home=PAGE,
)
act(
    pages,
    f"{PAGE}/tags",
    protected.protect_tag,
    "Tag protected.",
    access=MAINTAINER,
    home=PAGE,
    form_page=show_repository_settings,
)
act(
    pages,
    f"{PAGE}/tags/{{name:.+}}/unprotect",
    protected.unprotect_tag,
    "Tag unprotected.",
    access=MAINTAINER,
    home=PAGE,
)


def _back(request: web.Request, visitor: Visitor, project: Project, text: str) -> web.Response:
    return page.see_other(request, visitor, f"/{project.full_path}/-/settings/repository", text)
