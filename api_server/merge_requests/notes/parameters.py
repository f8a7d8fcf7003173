"""The parameters of notes and threads."""

import datetime
from typing import Literal

import attrs

from api_server.merge_requests.notes.positions import Position
from api_server.web.pagination import Paginated


@attrs.frozen(kw_only=True)
class ListNotes(Paginated):
    id: str
    merge_request_iid: int
    activity_filter: Literal["all_notes", "only_comments", "only_activity"] = "all_notes"

    @property
    def system(self) -> bool | None:
        """Whose notes are wanted: the service's, users', or (None) both."""
        return None if self.activity_filter == "all_notes" else self.activity_filter == "only_activity"


@attrs.frozen(kw_only=True)
class OneNote:
    id: str
    merge_request_iid: int
    note_id: int


@attrs.frozen(kw_only=True)
class CreateNote:
    id: str
    merge_request_iid: int
    body: str
    internal: bool = False
    #: What `internal` was called before.
    confidential: bool = False
    created_at: datetime.datetime | None = None


@attrs.frozen(kw_only=True)
class UpdateNote(OneNote):
    body: str | None = attrs.field(default=None, metadata={"present": True})


@attrs.frozen(kw_only=True)
class ListDiscussions(Paginated):
    id: str
    merge_request_iid: int


@attrs.frozen(kw_only=True)
class OneDiscussion:
    id: str
    merge_request_iid: int
    discussion_id: str


@attrs.frozen(kw_only=True)
class CreateDiscussion:
    id: str
    merge_request_iid: int
    body: str
    position: Position | None = None
    created_at: datetime.datetime | None = None


@attrs.frozen(kw_only=True)
class ResolveDiscussion(OneDiscussion):
    resolved: bool


@attrs.frozen(kw_only=True)
class ListDiscussionNotes(Paginated):
    id: str
    merge_request_iid: int
    discussion_id: str


@attrs.frozen(kw_only=True)
class CreateDiscussionNote(OneDiscussion):
    body: str
    created_at: datetime.datetime | None = None


@attrs.frozen(kw_only=True)
class OneDiscussionNote(OneDiscussion):
    note_id: int


@attrs.frozen(kw_only=True)
class UpdateDiscussionNote(OneDiscussionNote):
    """One of the two."""

    body: str | None = None
    resolved: bool | None = None

    def __attrs_post_init__(self) -> None:
        given = [name for name in ("body", "resolved") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError("body, resolved are mutually exclusive")
        if not given:
            raise ValueError("body, resolved are missing, exactly one parameter must be provided")
