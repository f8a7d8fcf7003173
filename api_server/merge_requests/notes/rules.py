"""Who may read, change and resolve notes, and what can be said in one."""

from collections.abc import Mapping, Sequence

import orjson

from api_server.merge_requests.notes.change_queries import Noteable
from api_server.merge_requests.notes.queries import Note
from api_server.namespaces.resources import Project
from api_server.settings import Settings
from api_server.web.errors import ApiError, bad_request
from api_server.web.routes import Role

#: Characters.
MAX_BODY = 1_000_000


def not_saved(problems: Mapping[str, Sequence[str]]) -> ApiError:
    """400 in GitLab's words, which are Ruby's: `Note {:note=>["can't be blank"]}`."""
    told = ", ".join(
        f":{field}=>[{', '.join(orjson.dumps(text).decode() for text in texts)}]"
        for field, texts in problems.items()
    )
    return bad_request(f"Note {{{told}}}")


def check_body(body: str) -> None:
    """Raises 400."""
    if not body.strip():
        raise not_saved({"note": ["can't be blank"]})
    if len(body) > MAX_BODY:
        raise not_saved({"note": [f"is too long (maximum is {MAX_BODY} characters)"]})


def check_room(about: Noteable, settings: Settings, body: str, instead_of: Note | None = None) -> None:
    """Raises 400 where one more note, or a longer one in the place of another, is more than a merge request has room
    for."""
    if instead_of is None and about.notes >= settings.notes_limit:
        raise not_saved({"base": ["Maximum number of comments exceeded"]})
    length = about.length + len(body.encode()) - (instead_of.length if instead_of else 0)
    if length > max(settings.notes_size_limit, about.length):
        raise not_saved(
            {"base": [f"Comments are too large together (maximum is {settings.notes_size_limit} bytes)"]}
        )


def reads_internal(project: Project) -> bool:
    """Whether the caller reads, and may write, what is for members only."""
    return project.role >= Role.REPORTER


def may_date(project: Project) -> bool:
    """Whether the caller may say when a note was written."""
    return project.role >= Role.OWNER


def may_change(project: Project, note: Note, user_id: int) -> bool:
    """Whether the caller may edit and delete it: whoever wrote it, and Maintainers; what the service wrote nobody."""
    return not note.system and (note.author_id == user_id or project.role >= Role.MAINTAINER)


def may_resolve(project: Project, about: Noteable, note: Note | None, user_id: int) -> bool:
    """Whether the caller may say that a note (or a whole thread, where it is None) is settled: Developers, whoever made
    the merge request, and whoever wrote the note."""
    is_author = about.author_id == user_id or (note is not None and note.author_id == user_id)
    return is_author or project.role >= Role.DEVELOPER
