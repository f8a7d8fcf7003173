"""What happens to merge requests, told to whoever wants to know, in the transaction in which it happens."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import attrs
from aiohttp import web

from api_server.state.database import Transaction

Action = Literal["open", "update", "close", "reopen", "merge", "approved", "unapproved"]


@attrs.frozen(kw_only=True)
class MergeRequestEvent:
    """`changes` is what differs, by attribute: `{"title": (previous, current)}`; `old_head` is the SHA that a push to
    the source branch replaced."""

    merge_request_id: int
    action: Action
    user_id: int | None
    changes: Mapping[str, tuple[Any, Any]] = attrs.field(factory=dict)
    old_head: str | None = None


#: Runs when the merge request's row is up to date; it queues what takes time.
MergeRequestListener = Callable[[Transaction, MergeRequestEvent], Awaitable[None]]

MERGE_REQUEST_LISTENERS: web.AppKey[list[MergeRequestListener]] = web.AppKey("merge_request_listeners", list)
