"""Statements about users."""

from typing import Any, Literal, get_args

import attrs

from api_server.state.audit_trail import Entity
from api_server.state.database import Executor, Shown, Transaction
from api_server.state.listing import Listed, Listing, Page, Search, one, read_sql
from api_server.state.statements import Query, Statement

_ENTITIES = read_sql("api_server.accounts.users")
_ORDERS = {
    "name": "name",
    "username": "username",
    "created_at": "id",  # ids are given in that order, and have an index
    "updated_at": "updated_at",
}
SEARCH = Search(
    "users",
    "username",
    "name",
    "lower(users.public_email) = lower(%(search)s::text)",
    "(%(finds_private)s AND lower(users.email) = lower(%(search)s::text))",
)
_MATCHING = f"""
    SELECT users.* FROM users
    WHERE users.state <> 'deactivated'
        AND (%(username)s::text IS NULL OR lower(users.username) = lower(%(username)s))
        AND (%(bots)s::boolean IS NULL OR users.bot = %(bots)s)
        AND (NOT %(active)s OR users.state = 'active')
        AND (NOT %(blocked)s OR users.state = 'blocked')
        AND {SEARCH.condition}
"""
_LISTS = {
    False: Listing(_ENTITIES["basic_user"], _MATCHING, _ORDERS),
    True: Listing(_ENTITIES["user_for_administrators"], _MATCHING, _ORDERS),
}
LISTING = _LISTS[False]


async def list_users(
    database: Executor,
    page: Page,
    *,
    for_administrator: bool,
    username: str | None,
    search: str | None,
    active: bool,
    blocked: bool,
    bots: bool | None,
) -> Listed:
    """Those who are `bots`, those who are not, or (None) both. Administrators also find users by their private
    addresses."""
    return await _LISTS[for_administrator].read(
        database,
        page,
        username=username,
        search=search,
        found=await SEARCH.find(database, search, finds_private=for_administrator),
        active=active,
        blocked=blocked,
        bots=bots,
        finds_private=for_administrator,
    )


#: To everybody, to the user herself, and to administrators: when the account is changed, and when it is looked at.
View = Literal["user", "own_user", "user_for_administrators", "user_in_detail"]

_SHOW: dict[View, Statement[Shown]] = {
    view: one(
        _ENTITIES[view], "SELECT users.* FROM users WHERE users.id = %(id)s AND users.state <> 'deactivated'"
    )
    for view in get_args(View)
}


async def show_user(database: Executor, user_id: int, view: View) -> str:
    """Raises NotFound."""
    return await database.entity(_SHOW[view], id=user_id)


async def show_user_if_there(database: Executor, user_id: int, view: View) -> str | None:
    return await database.entity_if_there(_SHOW[view], id=user_id)


@attrs.frozen
class User:
    """An account, as far as pages and changes of what it has look at it."""

    id: int
    username: str
    name: str
    email: str
    admin: bool
    bot: bool

    @property
    def entity(self) -> Entity:
        """What audit events of this user belong to."""
        return Entity(type="User", id=self.id, path=self.username)


_USER = """
    SELECT users.id, users.username, users.name, users.email, users.admin, users.bot FROM users
    WHERE users.state <> 'deactivated'
"""

FIND_USER = Query(f"{_USER} AND users.id = %(id)s", User)


async def find_user(database: Executor, user_id: int) -> User | None:
    return await database.row(FIND_USER, id=user_id)


FIND_BY_USERNAME = Query(f"{_USER} AND lower(users.username) = lower(%(username)s)", User)


async def find_user_by_username(database: Executor, username: str) -> User | None:
    return await database.row(FIND_BY_USERNAME, username=username)


CREATE_USER = """
    INSERT INTO users (username, name, email, admin, external, can_create_group, projects_limit, password_hash,
        static_object_seed, static_object_digest, confirmed_at, bio, location, public_email, website_url, organization,
        job_title, bot, bot_project_id, bot_namespace_id, created_by_id, created_at, updated_at)
    VALUES (%(username)s, %(name)s, %(email)s, %(admin)s, %(external)s, %(can_create_group)s, %(projects_limit)s,
        %(password_hash)s, %(static_object_seed)s, %(static_object_digest)s,
        CASE WHEN %(confirmed)s THEN %(now)s::timestamptz END, %(bio)s, %(location)s, %(public_email)s, %(website_url)s,
        %(organization)s, %(job_title)s, %(bot)s, %(bot_project_id)s, %(bot_namespace_id)s,
        %(created_by_id)s, %(now)s, %(now)s)
    RETURNING id
"""


async def create_user(transaction: Transaction, **values: Any) -> int:
    """The new id. Raises Conflict on `users_username` or `users_email`."""
    return int(await transaction.value(CREATE_USER, **values))


UPDATE_USER = """
    UPDATE users SET
        username = coalesce(%(username)s, username),
        name = coalesce(%(name)s, name),
        email = coalesce(%(email)s, email),
        admin = coalesce(%(admin)s, admin),
        external = coalesce(%(external)s, external),
        can_create_group = coalesce(%(can_create_group)s, can_create_group),
        projects_limit = coalesce(%(projects_limit)s, projects_limit),
        password_hash = coalesce(%(password_hash)s, password_hash),
        bio = coalesce(%(bio)s, bio),
        location = coalesce(%(location)s, location),
        public_email = coalesce(%(public_email)s, public_email),
        website_url = coalesce(%(website_url)s, website_url),
        organization = coalesce(%(organization)s, organization),
        job_title = coalesce(%(job_title)s, job_title),
        updated_at = %(now)s
    WHERE id = %(id)s
"""


async def update_user(transaction: Transaction, user_id: int, **values: Any) -> None:
    """Changes what is not None. Raises Conflict as `create_user`."""
    await transaction.run(UPDATE_USER, id=user_id, **values)


SET_STATE = """
    UPDATE users SET state = %(state)s, updated_at = %(now)s WHERE id = %(id)s AND state <> %(state)s
"""


async def set_state(transaction: Transaction, user_id: int, state: str) -> bool:
    """Whether that was a change."""
    return await transaction.run(SET_STATE, id=user_id, state=state) > 0


DELETE_USER = """
    DELETE FROM users WHERE id = %(id)s
"""


async def delete_user(transaction: Transaction, user_id: int) -> None:
    await transaction.run(DELETE_USER, id=user_id)


SET_STATIC_OBJECT_TOKEN = """
    UPDATE users SET static_object_seed = %(seed)s, static_object_digest = %(digest)s WHERE id = %(id)s
"""


async def set_static_object_token(transaction: Transaction, user_id: int, seed: bytes, digest: bytes) -> None:
    await transaction.run(SET_STATIC_OBJECT_TOKEN, id=user_id, seed=seed, digest=digest)
