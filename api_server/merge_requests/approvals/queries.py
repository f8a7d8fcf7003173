"""Statements about who approves of a merge request."""

from api_server.merge_requests.queries import ENTITIES
from api_server.state.database import Executor, Transaction
from api_server.state.listing import one

SHOW_APPROVALS = one(
    ENTITIES["approvals"], "SELECT merge_requests.id FROM merge_requests WHERE merge_requests.id = %(id)s"
)


async def show_approvals(
    database: Executor, merge_request_id: int, *, viewer_id: int, viewer_may_approve: bool
) -> str:
    return await database.entity(
        SHOW_APPROVALS, id=merge_request_id, viewer_id=viewer_id, viewer_may_approve=viewer_may_approve
    )


APPROVE = """
    INSERT INTO merge_request_approvals (merge_request_id, user_id, created_at)
    VALUES (%(id)s, %(user_id)s, %(now)s) ON CONFLICT DO NOTHING
"""


async def approve(transaction: Transaction, merge_request_id: int, user_id: int) -> bool:
    """Whether this user had not approved yet."""
    return await transaction.run(APPROVE, id=merge_request_id, user_id=user_id) > 0


UNAPPROVE = """
    DELETE FROM merge_request_approvals WHERE merge_request_id = %(id)s AND user_id = %(user_id)s
"""


async def unapprove(transaction: Transaction, merge_request_id: int, user_id: int) -> bool:
    """Whether this user had approved."""
    return await transaction.run(UNAPPROVE, id=merge_request_id, user_id=user_id) > 0


RESET = """
    DELETE FROM merge_request_approvals WHERE merge_request_id = %(id)s
"""


async def reset(transaction: Transaction, merge_request_id: int) -> None:
    """Nobody approves any more."""
    await transaction.run(RESET, id=merge_request_id)
