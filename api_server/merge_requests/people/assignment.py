"""Naming assignees and reviewers."""

from collections.abc import Mapping, Sequence
from typing import Any

from api_server.merge_requests.people import queries
from api_server.merge_requests.people.queries import Part
from api_server.state.database import Transaction
from api_server.web.errors import invalid

#: Of one merge request, and as many reviewers.
MOST_PEOPLE = 200


async def name_people(
    transaction: Transaction, project_id: int, merge_request_id: int, wanted: Mapping[Part, Sequence[int]]
) -> dict[str, tuple[Any, Any]]:
    """Makes these users the assignees and reviewers, those who cannot see the merge request left out, as GitLab does.

    Gives what has changed, as listeners are told of it. Raises 400 for too many.
    """
    changes: dict[str, tuple[Any, Any]] = {}
    for part, user_ids in wanted.items():
        if len(set(user_ids)) > MOST_PEOPLE:
            raise invalid({f"{part}s": [f"total must be less than or equal to {MOST_PEOPLE}"]})
        readers = await queries.readers_among(transaction, project_id, list(dict.fromkeys(user_ids)))
        before = await queries.delivered(transaction, merge_request_id, part)
        if {person["id"] for person in before} != set(readers):
            await queries.replace(transaction, merge_request_id, part, readers)
            changes[f"{part}s"] = (before, await queries.delivered(transaction, merge_request_id, part))
    return changes
