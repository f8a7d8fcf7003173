"""Statements of lists that memberships decide but that are not lists of members."""

from api_server.namespaces.members.queries import ENTITIES, EVERYBODY
from api_server.state.listing import Listing

USERS = Listing(
    ENTITIES["user"],
    f"{EVERYBODY} AND (%(skip_users)s::bigint[] IS NULL OR users.id <> ALL (%(skip_users)s::bigint[]))",
)
MEMBERSHIPS = Listing(
    ENTITIES["membership"],
    """
    SELECT members.* FROM members
    WHERE members.user_id = %(user_id)s AND counts(members, %(now)s)
        AND (%(type)s::text IS NULL OR (members.project_id IS NOT NULL) = (%(type)s = 'Project'))
    """,
)
