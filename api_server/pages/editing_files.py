"""`/-/new`, `/-/edit`, `/-/delete` and `/-/upload`: changing files in the browser, each time with one commit.

The commit is made on the branch that is shown, or on a new one that begins there. After the latter, the browser can be
redirected to the form of a merge request.
"""

import asyncio
import base64
from typing import Any

import attrs
from aiohttp import web

from api_server.code import commit_handlers
from api_server.code.protection import protection_of
from api_server.code.reading import reading
from api_server.git import commits, references, trees
from api_server.git.commits import History
from api_server.git.trees import Entry
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.account import user_of
from api_server.pages.files import EDIT, TreePath, read_tree_path
from api_server.pages.page import url_path
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.web import context
from api_server.web.errors import invalid, not_found
from api_server.web.request_data import UploadedFile
from api_server.web.routes import ask, caller

pages = Pages()

#: Maximum size, in bytes, of a file that can be edited here.
_MAX_BYTES = 1024 * 1024
#: The first word of the default commit message, by action.
_DEEDS = {"create": "Add", "update": "Update", "move": "Move", "delete": "Delete"}
#: The text that the form of a new CI file contains.
_CI_EXAMPLE = """\
# Each job has commands that a runner executes. Jobs of the same stage run in parallel.
stages: [build, test]

build:
  stage: build
  script:
    - echo "Build it here"

test:
  stage: test
  script:
    - echo "Test it here"
"""


@attrs.frozen(kw_only=True)
class OnBranch:
    """A branch and the path of a file or folder on it."""

    rest: str


@attrs.frozen(kw_only=True)
class NewFile(OnBranch):
    file_name: str = ""


@attrs.frozen
class EditTarget:
    """The path on a branch that a form changes. `at` is None if the repository has no commit on its default branch."""

    branch: str
    path: str
    at: TreePath | None

    @property
    def file(self) -> Entry:
        """The file at the path. Reading it raises 404 if there is none."""
        entry = trees.find_entry(self.at.repository, self.at.commit, self.path) if self.at else None
        if entry is None or not entry.is_blob:
            raise not_found("File")
        return entry


async def _target(request: web.Request, project: Project, rest: str) -> EditTarget:
    """Return the branch and path that `rest` names. Raise 404 if it begins with no branch."""
    tree_path = await read_tree_path(request, project, rest)
    if tree_path is None:
        return EditTarget(project.default_branch, "", None)
    if references.branch(tree_path.repository, tree_path.ref) is None:
        raise not_found("Branch")
    return EditTarget(tree_path.ref, tree_path.path, tree_path)


@pages.get("/{project}/-/new/{rest:.+}", access=EDIT)
async def show_new_file(
    request: web.Request, visitor: Visitor, params: NewFile, project: Project
) -> web.Response:
    target = await _target(request, project, params.rest)
    text = _CI_EXAMPLE if params.file_name == project.ci_file else ""
    return await _answer(request, visitor, project, "new", target, file_name=params.file_name, text=text)


@pages.post("/{project}/-/create/{rest:.+}", access=EDIT, form_page=show_new_file)
async def create_file(
    request: web.Request, visitor: Visitor, params: NewFile, form: Form, project: Project
) -> web.Response:
    target = await _target(request, project, params.rest)
    path = _path_in(target, params.file_name.strip(), "file_name")
    action = {"action": "create", "file_path": path, "content": _lines(str(form.get("content", "")), "\n")}
    return await _commit(request, visitor, project, target, form, action)


@pages.get("/{project}/-/upload/{rest:.+}", access=EDIT)
async def show_upload(
    request: web.Request, visitor: Visitor, params: OnBranch, project: Project
) -> web.Response:
    target = await _target(request, project, params.rest)
    max_bytes = context.services(request).settings.body_limit
    return await _answer(request, visitor, project, "upload", target, most=max_bytes)


@pages.post("/{project}/-/upload/{rest:.+}", access=EDIT, form_page=show_upload)
async def upload_file(
    request: web.Request, visitor: Visitor, params: OnBranch, form: Form, project: Project
) -> web.Response:
    """Upload a new file, or with the field `replace` a new content of an existing one."""
    target, file = await _target(request, project, params.rest), form.get("file")
    if not isinstance(file, UploadedFile):
        raise invalid({"file": ["is missing: choose a file"]})
    path = _path_in(target, file.name.replace("\\", "/").rpartition("/")[2], "file")
    exists = (
        target.at is not None and trees.find_entry(target.at.repository, target.at.commit, path) is not None
    )
    if exists and "replace" not in form:
        raise invalid({"file": [f"{file.name} already exists. Select the checkbox to replace the file."]})
    action = {
        "action": "update" if exists else "create",
        "file_path": path,
        "content": (await asyncio.to_thread(base64.b64encode, file.data)).decode(),
        "encoding": "base64",
    }
    return await _commit(request, visitor, project, target, form, action)


@pages.get("/{project}/-/edit/{rest:.+}", access=EDIT)
async def show_edit(
    request: web.Request, visitor: Visitor, params: OnBranch, project: Project
) -> web.Response:
    target = await _target(request, project, params.rest)
    text = await _text(target)
    return await _answer(
        request, visitor, project, "edit", target, text=text, last_commit=await _last_commit(request, target)
    )


@pages.post("/{project}/-/update/{rest:.+}", access=EDIT, form_page=show_edit)
async def update_file(
    request: web.Request, visitor: Visitor, params: OnBranch, form: Form, project: Project
) -> web.Response:
    """Change a file, and move it if the path is another one. The kind of line ends stays."""
    target = await _target(request, project, params.rest)
    before = await _text(target)
    path = str(form.get("file_path", "")).strip() or target.path
    action = {
        "action": "update" if path == target.path else "move",
        "file_path": path,
        "previous_path": target.path,
        "content": _lines(str(form.get("content", "")), "\r\n" if "\r\n" in before else "\n", end=False),
        "last_commit_id": form.get("last_commit_sha"),
    }
    return await _commit(request, visitor, project, target, form, action)


@pages.get("/{project}/-/delete/{rest:.+}", access=EDIT)
async def show_delete(
    request: web.Request, visitor: Visitor, params: OnBranch, project: Project
) -> web.Response:
    target = await _target(request, project, params.rest)
    _ = target.file
    return await _answer(
        request, visitor, project, "delete", target, last_commit=await _last_commit(request, target)
    )


@pages.post("/{project}/-/delete/{rest:.+}", access=EDIT, form_page=show_delete)
async def delete_file(
    request: web.Request, visitor: Visitor, params: OnBranch, form: Form, project: Project
) -> web.Response:
    target = await _target(request, project, params.rest)
    action = {"action": "delete", "file_path": target.path, "last_commit_id": form.get("last_commit_sha")}
    return await _commit(request, visitor, project, target, form, action)


async def _answer(
    request: web.Request, visitor: Visitor, project: Project, form: str, target: EditTarget, **values: Any
) -> web.Response:
    """Return the page of a form. It offers the target's branch for the commit, or a new one if the visitor may not push
    to that one."""
    protection = await protection_of(context.services(request).database, project.id, target.branch)
    may_push = protection.may_push(project.role, admin=project.admin)
    branch = target.branch if may_push else _new_branch(visitor, target)
    return page.answer(
        request,
        visitor,
        f"files/{form}.html",
        project=project,
        tab="files",
        target=target,
        where=f"{target.branch}/{target.path}" if target.path else target.branch,
        branch_name=branch,
        may_push=may_push,
        **values,
    )


def _new_branch(visitor: Visitor, target: EditTarget) -> str:
    """Return a name that no branch has, such as `alice-patch-1`."""
    number, start = 1, f"{user_of(visitor).username}-patch"
    while target.at is not None and references.branch(target.at.repository, f"{start}-{number}") is not None:
        number += 1
    return f"{start}-{number}"


async def _text(target: EditTarget) -> str:
    """Return the file's text. Raise 422 if it is not UTF-8 or too large to be edited."""
    file = target.file
    if (file.size or 0) > _MAX_BYTES:
        raise invalid("The file is too large to edit in the browser: change it with Git", status=422)
    assert target.at is not None  # noqa: S101 - a file that exists is in a commit
    data = await asyncio.to_thread(trees.read_blob, target.at.repository, file)
    try:
        if b"\0" not in data:
            return data.decode()
    except UnicodeDecodeError:
        pass
    raise invalid("The file is not UTF-8 text: upload a new version, or change it with Git", status=422)


async def _last_commit(request: web.Request, target: EditTarget) -> str:
    """Return the SHA of the last commit that changed the file. The form sends it, so that a later change is a
    conflict."""
    if target.at is None:
        raise not_found("File")
    start = History(start=target.at.commit, path=target.path)
    async with reading(context.services(request), caller(request)):
        (sha,) = await commits.history(target.at.repository, start, skip=0, limit=1)
    return sha


def _lines(text: str, ending: str, *, end: bool = True) -> str:
    """Return a form's text with the line end `ending`. If `end`, the last line gets one too."""
    plain = text.replace("\r\n", "\n")
    if end and plain and not plain.endswith("\n"):
        plain += "\n"
    return plain.replace("\n", ending)


def _path_in(target: EditTarget, name: str, field: str) -> str:
    """Return the path of a file in the folder of the form. Raise 400 if the name is missing."""
    if not name or name.endswith("/"):
        raise invalid({field: ["has no name"]})
    return f"{target.path}/{name}" if target.path else name


async def _commit(
    request: web.Request,
    visitor: Visitor,
    project: Project,
    target: EditTarget,
    form: Form,
    action: dict[str, Any],
) -> web.Response:
    """Commit the action, and redirect to the changed file, to its folder if it is deleted, or to a new merge request
    if that was asked for."""
    branch = str(form.get("branch_name", "")).strip() or target.branch
    if branch != target.branch and target.at and references.branch(target.at.repository, branch) is not None:
        raise invalid({"branch_name": [f"already exists: use {target.branch} or the name of a new branch"]})
    name = action["file_path"].rpartition("/")[2]
    message = str(form.get("commit_message", "")).strip() or f"{_DEEDS[action['action']]} {name}"
    body: dict[str, Any] = {"branch": branch, "commit_message": message, "actions": [action], "stats": False}
    if target.at is not None:
        body["start_branch"] = target.branch
    await ask(request, commit_handlers.create_commit, project, **body)
    base = f"/{project.full_path}/-"
    if branch != target.branch and "create_merge_request" in form:
        query = f"source_branch={url_path(branch)}&target_branch={url_path(target.branch)}"
        return page.see_other(
            request, visitor, f"{base}/merge_requests/new?{query}", "Your changes have been committed."
        )
    path = action["file_path"]
    if action["action"] == "delete":
        path = path.rpartition("/")[0]
        return page.see_other(
            request,
            visitor,
            f"{base}/tree/{url_path(f'{branch}/{path}'.rstrip('/'))}",
            "File deleted.",
        )
    return page.see_other(
        request, visitor, f"{base}/blob/{url_path(f'{branch}/{path}')}", "Your changes have been committed."
    )
