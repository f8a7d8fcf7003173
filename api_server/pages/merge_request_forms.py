"""Forms that create and change merge requests (`/-/merge_requests/new`, `/edit`, closing) and comment on them."""

import re
from collections.abc import Iterable
from typing import Any

import attrs
from aiohttp import web

from api_server.accounts import user_handlers
from api_server.code.reading import opened, reading_refs
from api_server.git import references
from api_server.merge_requests import handlers, note_handlers
from api_server.merge_requests.changes import with_draft, without_draft
from api_server.merge_requests.handlers import CHANGE
from api_server.merge_requests.note_handlers import WRITE
from api_server.namespaces import member_handlers
from api_server.namespaces.resources import Project
from api_server.pages import commits, page
from api_server.pages.forms import Choices
from api_server.pages.merge_requests import OneMergeRequest, ShowMergeRequest, show_merge_request
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.state.listing import Page
from api_server.web import context
from api_server.web.errors import ApiError, invalid
from api_server.web.routes import ask

pages = Pages()

_LIST = "/{project}/-/merge_requests"
_ONE = f"{_LIST}/{{iid}}"
#: Maximum number of branches and of people that are offered, and of files that are shown below the form.
_MAX_BRANCHES = 500
_MAX_PEOPLE = 100
_MAX_FILES = 50
#: The part of a branch's name before its words: `feature/`, `42-`.
_BEFORE_WORDS = re.compile(r"^(.*/)?(\d+[-_])?")


@attrs.frozen(kw_only=True)
class NewMergeRequest:
    """The names of the branches, also as in GitLab's addresses: `merge_request[source_branch]=topic`."""

    source_branch: str = ""
    target_branch: str = ""
    merge_request: dict[str, str] = attrs.field(factory=dict)

    @property
    def source(self) -> str:
        return self.source_branch or self.merge_request.get("source_branch", "")

    @property
    def target(self) -> str:
        return self.target_branch or self.merge_request.get("target_branch", "")


@pages.get(f"{_LIST}/new", access=CHANGE)
async def show_new(
    request: web.Request, visitor: Visitor, params: NewMergeRequest, project: Project
) -> web.Response:
    """Show the choice of branches or, once they are chosen, the form and the changes of the merge request."""
    source, target = params.source, params.target or project.default_branch
    comparison, problem = None, ""
    if source:
        try:
            comparison = await commits.read_comparison(request, project, target, source, Page(_MAX_FILES))
        except ApiError as refused:
            if refused.status != 404:
                raise
            problem = "The source or target branch does not exist."
        else:
            problem = (
                "" if comparison.commits else f"{source} has no commits that are not already in {target}."
            )
    return page.answer(
        request,
        visitor,
        "merge_requests/new.html",
        project=project,
        source=source,
        target=target,
        branches=await _branches(request, project, source, target),
        comparison=None if problem else comparison,
        problem=problem,
        suggested=_suggestion(source, comparison.commits) if comparison else ("", ""),
        people=await _people(request, project),
    )


@pages.post(_LIST, access=CHANGE, form_page=show_new)
async def create(request: web.Request, visitor: Visitor, form: Form, project: Project) -> web.Response:
    fields = await _fields(request, form)
    merge_request = await page.read(request, handlers.create_merge_request, project, **fields)
    return page.see_other(request, visitor, f"/{project.full_path}/-/merge_requests/{merge_request['iid']}")


async def _branches(request: web.Request, project: Project, *chosen: str) -> Choices:
    """Return the chosen branches and then the first ones by name, as options."""
    repository = await opened(context.services(request), project)
    branches = await reading_refs(request, references.branches, repository)
    names = dict.fromkeys([*filter(None, chosen), *(branch.name for branch in branches[:_MAX_BRANCHES])])
    return Choices([(name, name) for name in names], len(branches) <= _MAX_BRANCHES)


async def _people(request: web.Request, project: Project, chosen: Iterable[dict[str, Any]] = ()) -> Choices:
    """Return the chosen users and then the first members, as options."""
    members = await page.read_list(request, member_handlers.list_all_members, project, per_page=_MAX_PEOPLE)
    people = {
        user["id"]: (user["id"], user["name"], f"@{user['username']}") for user in [*chosen, *members.rows]
    }
    return Choices(list(people.values()), members.pages.next is None)


def _suggestion(source: str, new: list[dict[str, Any]]) -> tuple[str, str]:
    """Return a title and a description: those of a single commit, otherwise the words of the branch's name and ""."""
    if len(new) == 1:
        return new[0]["title"], new[0]["message"].partition("\n")[2].strip()
    words = re.sub(r"[-_]+", " ", _BEFORE_WORDS.sub("", source)).strip() or source
    return words[:1].upper() + words[1:], ""


async def _fields(request: web.Request, form: Form) -> dict[str, Any]:
    """Return the form's fields as the API takes them: a draft is marked in the title, and users are given by ids."""
    title = str(form.get("title", ""))
    fields = {**form, "title": with_draft(title, draft="draft" in form) if title.strip() else ""}
    for kind in ("assignee", "reviewer"):
        if typed := str(form.get(f"{kind}_names", "")).strip():
            chosen = [user_id for user_id in form.get(f"{kind}_ids", []) if user_id]
            fields[f"{kind}_ids"] = [*chosen, *await _user_ids(request, f"{kind}_names", typed)]
    return fields


async def _user_ids(request: web.Request, field: str, typed: str) -> list[int]:
    """Return the ids of the users with the typed user names. Raise 400 for a name that nobody has."""
    ids = []
    for name in re.split(r"[\s,]+", typed)[:_MAX_PEOPLE]:
        users = await page.read(request, user_handlers.list_users, username=name.removeprefix("@"))
        if name and not users:
            raise invalid({field: [f"No user with the username {name}."]})
        ids += [user["id"] for user in users]
    return ids


@pages.get(f"{_ONE}/edit", access=CHANGE)
async def show_edit(
    request: web.Request, visitor: Visitor, params: OneMergeRequest, project: Project
) -> web.Response:
    entity = await page.read(request, handlers.show_merge_request, project, merge_request_iid=params.iid)
    return page.answer(
        request,
        visitor,
        "merge_requests/edit.html",
        project=project,
        mr=entity,
        title=without_draft(entity["title"]),
        branches=await _branches(request, project, entity["target_branch"]),
        people=await _people(request, project, [*entity["assignees"], *entity["reviewers"]]),
    )


@pages.post(f"{_ONE}/edit", access=CHANGE, form_page=show_edit)
async def update(
    request: web.Request, visitor: Visitor, params: OneMergeRequest, form: Form, project: Project
) -> web.Response:
    fields = await _fields(request, form)
    return await _change(request, visitor, project, params, "Changes saved.", **fields)


@pages.post(f"{_ONE}/close", access=CHANGE)
async def close(
    request: web.Request, visitor: Visitor, params: OneMergeRequest, project: Project
) -> web.Response:
    return await _change(request, visitor, project, params, "Merge request closed.", state_event="close")


@pages.post(f"{_ONE}/reopen", access=CHANGE)
async def reopen(
    request: web.Request, visitor: Visitor, params: OneMergeRequest, project: Project
) -> web.Response:
    return await _change(request, visitor, project, params, "Merge request reopened.", state_event="reopen")


@attrs.frozen(kw_only=True)
class Draft(OneMergeRequest):
    draft: bool


@pages.post(f"{_ONE}/draft", access=CHANGE)
async def mark_as_draft(
    request: web.Request, visitor: Visitor, params: Draft, project: Project
) -> web.Response:
    """Mark the merge request as a draft, or as ready."""
    entity = await page.read(request, handlers.show_merge_request, project, merge_request_iid=params.iid)
    text = "Marked as draft." if params.draft else "Marked as ready."
    title = with_draft(entity["title"], draft=params.draft)
    return await _change(request, visitor, project, params, text, title=title)


async def _change(
    request: web.Request,
    visitor: Visitor,
    project: Project,
    params: OneMergeRequest,
    text: str,
    **fields: Any,
) -> web.Response:
    await ask(request, handlers.update_merge_request, project, **fields | {"merge_request_iid": params.iid})
    return page.see_other(request, visitor, f"/{project.full_path}/-/merge_requests/{params.iid}", text)


@attrs.frozen(kw_only=True)
class Comment(ShowMergeRequest):
    """A new comment. With `thread`, it starts a thread that somebody has to resolve."""

    body: str = ""
    thread: bool = False


@attrs.frozen(kw_only=True)
class OneComment(ShowMergeRequest):
    note_id: int


@attrs.frozen(kw_only=True)
class EditComment(OneComment):
    body: str = ""


@attrs.frozen(kw_only=True)
class Reply(ShowMergeRequest):
    discussion_id: str
    body: str = ""


@attrs.frozen(kw_only=True)
class Resolve(ShowMergeRequest):
    discussion_id: str
    resolved: bool


@pages.post(f"{_ONE}/notes", access=WRITE, form_page=show_merge_request)
async def comment(request: web.Request, visitor: Visitor, params: Comment, project: Project) -> web.Response:
    fields = {"merge_request_iid": params.iid, "body": params.body}
    if params.thread:
        thread = await page.read(request, note_handlers.create_discussion, project, **fields)
        return _at_note(request, visitor, project, params, thread["notes"][0]["id"])
    note = await page.read(request, note_handlers.create_note, project, **fields)
    return _at_note(request, visitor, project, params, note["id"])


@pages.post(f"{_ONE}/notes/{{note_id}}/edit", access=WRITE, form_page=show_merge_request)
async def edit_comment(
    request: web.Request, visitor: Visitor, params: EditComment, project: Project
) -> web.Response:
    fields = {"merge_request_iid": params.iid, "note_id": params.note_id, "body": params.body}
    await ask(request, note_handlers.update_note, project, **fields)
    return _at_note(request, visitor, project, params, params.note_id)


@pages.post(f"{_ONE}/notes/{{note_id}}/delete", access=WRITE)
async def delete_comment(
    request: web.Request, visitor: Visitor, params: OneComment, project: Project
) -> web.Response:
    fields = {"merge_request_iid": params.iid, "note_id": params.note_id}
    await ask(request, note_handlers.delete_note, project, **fields)
    return page.see_other(request, visitor, f"{_address(project, params)}#notes", "Comment deleted.")


@pages.post(f"{_ONE}/discussions/{{discussion_id}}/notes", access=WRITE, form_page=show_merge_request)
async def reply(request: web.Request, visitor: Visitor, params: Reply, project: Project) -> web.Response:
    note = await page.read(
        request,
        note_handlers.create_discussion_note,
        project,
        merge_request_iid=params.iid,
        discussion_id=params.discussion_id,
        body=params.body,
    )
    return _at_note(request, visitor, project, params, note["id"])


@pages.post(f"{_ONE}/discussions/{{discussion_id}}/resolve", access=WRITE)
async def resolve(request: web.Request, visitor: Visitor, params: Resolve, project: Project) -> web.Response:
    """Resolve a thread, or open it again with `resolved=false`."""
    discussion = await page.read(
        request,
        note_handlers.resolve_discussion,
        project,
        merge_request_iid=params.iid,
        discussion_id=params.discussion_id,
        resolved=params.resolved,
    )
    return _at_note(request, visitor, project, params, discussion["notes"][0]["id"])


def _at_note(
    request: web.Request, visitor: Visitor, project: Project, params: ShowMergeRequest, note_id: int
) -> web.Response:
    """Redirect the browser to the note, on the same page of the threads."""
    return page.see_other(request, visitor, f"{_address(project, params)}#note_{note_id}")


def _address(project: Project, params: ShowMergeRequest) -> str:
    """Return the address of the page of threads that the form was on."""
    query = f"?page={params.page}" if params.page else ""
    return f"/{project.full_path}/-/merge_requests/{params.iid}{query}"
